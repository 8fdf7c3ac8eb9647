#!/usr/bin/env bash
# One fuzzer, for FUZZ_SECONDS (15), from the corpus in the repository: .ci/fuzz_one.sh fuzz-NAME
set -euo pipefail
name=$1
mkdir -p "build-fuzz/corpus/$name"
echo "fuzz smoke: $name, ${FUZZ_SECONDS:-15} s"
build-fuzz/tests/fuzz/"${name//-/_}" -max_total_time="${FUZZ_SECONDS:-15}" -timeout=10 -rss_limit_mb=2048 -verbosity=0 \
    "build-fuzz/corpus/$name" "tests/fuzz/corpus/${name#fuzz-}"
