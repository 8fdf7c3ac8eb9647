#!/usr/bin/env python3
"""Write the seed corpus of fuzz_gguf: small files that reach every branch of an honest header.

    python3 tests/fuzz/make_seeds.py tests/fuzz/corpus/gguf
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


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
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
