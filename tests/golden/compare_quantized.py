#!/usr/bin/env python3
"""Quantizes one file with sheaf and with llama-quantize, and compares tensor by tensor.

    python tests/golden/compare_quantized.py SHEAF LLAMA_QUANTIZE FLOAT.gguf [TYPE ...] [-- OPTION ...]

Without TYPE: every type that both know. Options behind -- go to both programs. Prints, per type, how many tensors
have the same type and the same bytes, and the names of those that do not; exit 1 if there are any. FLOAT.gguf may be
made from a quantized file: sheaf quantize --allow-requantize IN OUT F32.
"""
import subprocess
import sys
import tempfile

from gguf import GGUFReader

TYPES = ("F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K IQ4_NL "
         "IQ4_XS MXFP4_MOE").split()


def tensors(path: str) -> dict:
    return {t.name: t for t in GGUFReader(path).tensors}


def compare(ours: str, theirs: str) -> tuple:
    a, b = tensors(ours), tensors(theirs)
    wrong = sorted(a.keys() ^ b.keys())
    counts = {}
    for name in a.keys() & b.keys():
        x, y = a[name], b[name]
        if x.tensor_type != y.tensor_type or x.data.tobytes() != y.data.tobytes():
            wrong.append(f"{name} ({x.tensor_type.name}, {y.tensor_type.name})")
        counts[x.tensor_type.name] = counts.get(x.tensor_type.name, 0) + 1
    mix = ", ".join(f"{n} {t}" for t, n in sorted(counts.items()))
    return len(a), wrong, mix


def main() -> None:
    words = sys.argv[1:]
    extra = words[words.index("--") + 1:] if "--" in words else []
    words = words[:words.index("--")] if "--" in words else words
    if len(words) < 3:
        sys.exit(__doc__)
    sheaf, peer, source, *types = words
    bad = 0
    for kind in types or TYPES:
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs = folder + "/ours.gguf", folder + "/theirs.gguf"
            subprocess.run([sheaf, "quantize", "-q", *extra, source, ours, kind], check=True)
            subprocess.run([peer, *extra, source, theirs, kind], check=True, capture_output=True)
            n, wrong, mix = compare(ours, theirs)
        print(f"{kind:10} {n - len(wrong)} of {n} tensors are the same ({mix})", flush=True)
        for name in wrong[:5]:
            print(f"           differs: {name}")
        bad += bool(wrong)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
