#!/usr/bin/env python3
"""Copy a GGUF file with every matrix dequantized to F32.

    python3 tests/golden/dequantize.py model.Q4_1.gguf model-f32.gguf

Metadata is copied as it is, save the file type. The result is the model that the quantized file
stands for, exactly: what is left between two runs of both files is the rounding of activations.
One tensor is in memory at a time.
"""

import argparse

import gguf
import numpy as np

SET_BY_WRITER = {"GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture"}


def copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for field in reader.fields.values():
        if field.name in SET_BY_WRITER:
            continue
        value = field.contents()
        if field.name == "general.file_type":
            value = int(gguf.LlamaFileType.ALL_F32)
        kind = field.types[0]
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, value, kind, sub_type=sub)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("source")
    p.add_argument("out")
    a = p.parse_args()
    reader = gguf.GGUFReader(a.source)
    writer = gguf.GGUFWriter(a.out, reader.get_field("general.architecture").contents())
    copy_metadata(reader, writer)
    for t in reader.tensors:
        shape = [int(n) for n in reversed(t.shape)]
        writer.add_tensor_info(t.name, shape, np.dtype(np.float32), int(np.prod(shape)) * 4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for t in reader.tensors:
        writer.write_tensor_data(gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32))
    writer.close()


if __name__ == "__main__":
    main()
