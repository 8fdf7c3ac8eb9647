#!/usr/bin/env python3
"""Write the seed corpora of fuzz_gguf (small files that reach every branch of an honest header) and fuzz_imatrix.

    python3 tests/fuzz/make_seeds.py tests/fuzz/corpus
"""

import pathlib
import struct
import sys

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


def text(s: bytes) -> bytes:
    return struct.pack("<Q", len(s)) + s


def array(kind: int, items: list) -> bytes:
    body = b"".join(text(i) if kind == STRING else i if kind == ARRAY else struct.pack("<" + SCALARS[kind], i) for i in items)
    return struct.pack("<IQ", kind, len(items)) + body


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: bytes, shape: list, kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def whole(keys: list, tensors: list, data: int, version: int = 3, align: int = 32) -> bytes:
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys + tensors)
    return out + b"\0" * (-len(out) % align) + b"\0" * data


def imatrix() -> dict:
    """Both forms of an importance matrix of two tensors."""
    name = b"blk.0.ffn_up.weight"
    weights = struct.pack("<4f", 1, 2, 3, 4)
    entry = struct.pack("<i", len(name)) + name + struct.pack("<ii", 2, 4) + weights
    other = struct.pack("<i", 2) + b"t0" + struct.pack("<iif", 0, 1, 5)
    keys = [key(b"general.type", STRING, text(b"imatrix")), key(b"imatrix.chunk_count", 4, struct.pack("<I", 3)),
            key(b"imatrix.datasets", ARRAY, array(STRING, [b"tales"]))]
    infos = [tensor(name + b".in_sum2", [2, 2], 0, 0), tensor(name + b".counts", [1, 2], 0, 32)]
    head = whole(keys, infos, 0)
    return {
        "dat": struct.pack("<i", 2) + entry + other + struct.pack("<ii", 3, 5) + b"tales",
        "dat-old": struct.pack("<i", 1) + entry,
        "gguf": head + weights + b"\0" * 16 + struct.pack("<2f", 4, 0),
    }


def main() -> None:
    for name, content in imatrix().items():
        (pathlib.Path(sys.argv[1]) / "imatrix").mkdir(parents=True, exist_ok=True)
        (pathlib.Path(sys.argv[1]) / "imatrix" / name).write_bytes(content)
    folder = pathlib.Path(sys.argv[1]) / "gguf"
    folder.mkdir(parents=True, exist_ok=True)
    scalars = [key(f"k{t}".encode(), t, struct.pack("<" + c, 1)) for t, c in SCALARS.items()]
    arrays = [key(f"a{t}".encode(), ARRAY, array(t, [1, 0, 1])) for t in SCALARS]
    strings = [key(b"s", STRING, text(b"x\0\xff")), key(b"ss", ARRAY, array(STRING, [b"a", b"", b"bc"]))]
    nested = [key(b"n", ARRAY, array(ARRAY, [array(0, [1, 2]), array(STRING, [b"q"])]))]
    shapes = [tensor(b"w", [4, 2], 0, 0), tensor(b"q", [32, 1, 1, 2], 2, 32), tensor(b"k", [256], 12, 96)]
    aligned = [key(b"general.alignment", 4, struct.pack("<I", 64))]
    split = [key(b"split.no", 2, b"\1\0"), key(b"split.count", 2, b"\2\0"), key(b"split.tensors.count", 5, b"\1\0\0\0")]
    seeds = {
        "scalars": whole(scalars, [], 0),
        "arrays": whole(arrays + strings + nested, [], 0),
        "tensors": whole([], shapes, 96 + 144),
        "v2-aligned": whole(aligned, [tensor(b"w", [4], 0, 0)], 16, version=2, align=64),
        "split": whole(split, [tensor(b"w", [4], 0, 0)], 16),
        "joined": whole([], [], 0) + b"\0" * 8 + whole([], [], 0),
        "empty": b"",
    }
    for name, content in seeds.items():
        (folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
