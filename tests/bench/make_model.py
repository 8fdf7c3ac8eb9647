#!/usr/bin/env python3
"""Write a random Llama-shaped model for benchmarks, quantized blocks and all.

    python3 tests/bench/make_model.py q4_0 /tmp/1b-q4_0.gguf

The blocks are random bytes with scales chosen so that weights have the spread that training
gives them: speed depends on types and shapes and not on what the numbers say, and nothing
overflows on the way. No other program is needed, and memory stays at one tensor. The same
arguments give the same file, byte by byte.

TYPE is a mix of types as `llama-quantize` makes it, since that is what people run:

    q4_0    Q4_0, output Q6_K
    q8_0    Q8_0 throughout
    q4_k    the mix called Q4_K_M: Q4_K, with output and about half of attn_v and ffn_down Q6_K

Defaults make the 1.1 B shape of the benchmarks: width 2048, feed-forward 8192, 16 layers,
32 heads and 8 KV heads of 64, vocabulary 32000, untied. The vocabulary is made up (SentencePiece
kind: control tokens, 256 bytes, then invented words), so text goes in and noise comes out.
"""

import argparse
import zlib

import gguf
import numpy as np

F32, Q4_0, Q8_0, Q4_K, Q6_K = (
    gguf.GGMLQuantizationType[t] for t in ("F32", "Q4_0", "Q8_0", "Q4_K", "Q6_K")
)
SPREAD = 0.02  # standard deviation of the weights

FILE_TYPE = {
    "q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "q4_k": gguf.LlamaFileType.MOSTLY_Q4_K_M,
}


def f16(value: float) -> np.ndarray:
    """The two bytes of a half float, little endian."""
    return np.frombuffer(np.float16(value).tobytes(), np.uint8)


def blocks_q4_0(n: int, rng) -> np.ndarray:
    """{d, 16 x two 4-bit}: (q - 8) d, and q spreads by 4.6."""
    b = rng.integers(0, 256, (n, 18), np.uint8)
    b[:, 0:2] = f16(SPREAD / 4.6)
    return b


def blocks_q8_0(n: int, rng) -> np.ndarray:
    """{d, 32 x 8-bit}: q d, and q spreads by 73. No quantizer writes -128, so neither do we."""
    b = rng.integers(0, 256, (n, 34), np.uint8)
    b[b == 0x80] = 0x81
    b[:, 0:2] = f16(SPREAD / 73)
    return b


def blocks_q4_k(n: int, rng) -> np.ndarray:
    """{d, dmin, 8 x (6-bit scale, 6-bit min) in 12 bytes, 128 x two 4-bit}.

    Weight = d s q - dmin m. Every min equals its scale and dmin is 7.5 d, so weights are centred
    as real ones are: s (q - 7.5) d. The packing is ggml's: the low six bits of bytes 0-3 and 4-7
    are scales and mins of sub-blocks 0-3; their top two bits complete those of 4-7.
    """
    b = rng.integers(0, 256, (n, 144), np.uint8)
    s = rng.integers(16, 64, (n, 8), np.uint8)
    high = s[:, 4:] >> 4 << 6
    b[:, 0:2] = f16(SPREAD / (42 * 4.6))
    b[:, 2:4] = f16(SPREAD / (42 * 4.6) * 7.5)
    b[:, 4:8] = b[:, 8:12] = s[:, :4] | high
    b[:, 12:16] = (s[:, 4:] & 15) * 17
    return b


def blocks_q6_k(n: int, rng) -> np.ndarray:
    """{128 + 64 bytes of 6-bit, 16 x 8-bit scale, d}: s (q - 32) d, scales of either sign."""
    b = rng.integers(0, 256, (n, 210), np.uint8)
    s = rng.integers(16, 32, (n, 16), np.int8) * rng.choice(np.array([-1, 1], np.int8), (n, 16))
    b[:, 192:208] = s.view(np.uint8)
    b[:, 208:210] = f16(SPREAD / (24 * 18.5))
    return b


BLOCKS = {Q4_0: blocks_q4_0, Q8_0: blocks_q8_0, Q4_K: blocks_q4_k, Q6_K: blocks_q6_k}


def tensor_type(mix: str, name: str, layer: int, layers: int):
    """The type of one matrix. The Q4_K_M rule is llama-quantize's: the first and the last
    eighth of the layers and every third between get more bits for attn_v and ffn_down."""
    if mix == "q8_0":
        return Q8_0
    if name == "output":
        return Q6_K
    if mix == "q4_0":
        return Q4_0
    more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    return Q6_K if name in ("attn_v", "ffn_down") and more else Q4_K


def tensors(a) -> list:
    """(name, [out, in] or [n], type) in file order."""
    kv = a.width // a.heads * a.kv_heads
    layer = {
        "attn_norm": (a.width,),
        "attn_q": (a.width, a.width),
        "attn_k": (kv, a.width),
        "attn_v": (kv, a.width),
        "attn_output": (a.width, a.width),
        "ffn_norm": (a.width,),
        "ffn_gate": (a.ff, a.width),
        "ffn_up": (a.ff, a.width),
        "ffn_down": (a.width, a.ff),
    }
    out = [("token_embd.weight", (a.vocab, a.width), tensor_type(a.type, "token_embd", 0, 0))]
    for i in range(a.layers):
        for name, shape in layer.items():
            kind = F32 if len(shape) == 1 else tensor_type(a.type, name, i, a.layers)
            out.append((f"blk.{i}.{name}.weight", shape, kind))
    out.append(("output_norm.weight", (a.width,), F32))
    out.append(("output.weight", (a.vocab, a.width), tensor_type(a.type, "output", 0, 0)))
    return out


def data_of(name: str, shape: tuple, kind, seed: int) -> np.ndarray:
    """The bytes of one tensor; each has its own stream, so order and neighbours do not matter."""
    if kind == F32:
        return np.ones(shape, np.float32)
    rng = np.random.Generator(np.random.SFC64([seed, zlib.crc32(name.encode())]))
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    return BLOCKS[kind](shape[0] * shape[1] // block, rng).reshape(shape[0], -1)


def add_vocabulary(w: gguf.GGUFWriter, size: int) -> None:
    kind = gguf.TokenType
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    kinds = [kind.UNKNOWN, kind.CONTROL, kind.CONTROL] + [kind.BYTE] * 256
    words = size - len(tokens)
    tokens += [f"\u2581w{i:x}" for i in range(words)]
    kinds += [kind.NORMAL] * words
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens)
    w.add_token_scores([0.0] * 259 + [-float(i) for i in range(words)])
    w.add_token_types(kinds)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("type", choices=sorted(FILE_TYPE))
    p.add_argument("out", help="file to write")
    p.add_argument("--width", type=int, default=2048)
    p.add_argument("--ff", type=int, default=8192)
    p.add_argument("--layers", type=int, default=16)
    p.add_argument("--heads", type=int, default=32)
    p.add_argument("--kv-heads", type=int, default=8)
    p.add_argument("--vocab", type=int, default=32000, help="at least 259")
    p.add_argument("--context", type=int, default=8192)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    if a.width % a.heads or a.heads % a.kv_heads or a.vocab < 259:
        p.error("width must be a multiple of heads, heads of kv-heads, and vocab at least 259")
    for name, shape, kind in tensors(a):
        if shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
            p.error(f"{name}: rows of {shape[-1]} are not whole {kind.name} blocks")

    w = gguf.GGUFWriter(a.out, "llama")
    w.add_name(f"random llama shape, {a.type}")
    w.add_file_type(FILE_TYPE[a.type])
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    w.add_vocab_size(a.vocab)
    w.add_context_length(a.context)
    w.add_embedding_length(a.width)
    w.add_block_count(a.layers)
    w.add_feed_forward_length(a.ff)
    w.add_head_count(a.heads)
    w.add_head_count_kv(a.kv_heads)
    w.add_rope_dimension_count(a.width // a.heads)
    w.add_rope_freq_base(10000.0)
    w.add_layer_norm_rms_eps(1e-5)
    add_vocabulary(w, a.vocab)

    todo = tensors(a)
    for name, shape, kind in todo:
        block, n_bytes = gguf.GGML_QUANT_SIZES[kind]
        size = int(np.prod(shape)) // block * n_bytes
        w.add_tensor_info(name, shape, np.dtype(np.float32), size, raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for name, shape, kind in todo:
        w.write_tensor_data(data_of(name, shape, kind, a.seed))
    w.close()
    print(f"{a.out}: {sum(int(np.prod(s)) for _, s, _ in todo) / 1e9:.2f} B parameters")


if __name__ == "__main__":
    main()
