#!/usr/bin/env python3
"""Writes tests/golden/quants.txt: blocks of every quantised type and what they decode to.

    python tests/golden/make_quants.py tests/golden/quants.txt

needs the packages of tests/requirements.txt. The blocks are random bytes with finite scales; the
floats come from the `gguf` package's dequantize, so that sheaf's decoders are held against code
that is not ours. Per type, three lines: `type NAME`, `bytes HEX`, `floats HEX` (IEEE bits, eight
digits an element).
"""
import sys

import numpy as np
from gguf import GGMLQuantizationType, quants

# Where halves lie in a block: their bytes are made finite and moderate. MXFP4's first byte is an
# exponent.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": []}
BYTES = {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34, "Q2_K": 84, "Q3_K": 110, "Q4_K": 144,
         "Q5_K": 176, "Q6_K": 210, "IQ4_NL": 18, "IQ4_XS": 136, "MXFP4": 17}


def main(path):
    random = np.random.default_rng(20240229)
    with open(path, "w", encoding="ascii") as out:
        out.write("# made by tests/golden/make_quants.py\n")
        for name, halves in HALVES.items():
            blocks = random.integers(0, 256, size=(2, BYTES[name]), dtype=np.uint8)
            for at in halves:
                scale = random.normal(size=2).astype(np.float16)
                blocks[:, at:at + 2] = scale.view(np.uint8).reshape(2, 2)
            if name == "MXFP4":
                blocks[:, 0] = [125, 130]
            flat = blocks.reshape(-1)
            floats = quants.dequantize(flat, GGMLQuantizationType[name]).astype(np.float32).reshape(-1)
            out.write(f"type {name.lower()}\nbytes {flat.tobytes().hex()}\n")
            out.write("floats " + "".join(f"{x:08x}" for x in floats.view(np.uint32)) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_quants.py OUTPUT")
    main(sys.argv[1])
