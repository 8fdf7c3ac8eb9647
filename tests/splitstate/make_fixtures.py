#!/usr/bin/env python3
"""Writes the tensor lists that the placement tests cut: names, shapes and types only, as `sheaf split --tensors` reads
them. Everything follows from the table of configurations below, which are the published ones, and from how llama-quantize
spreads types. Run it after a change of the table, then bless the placements:

    python3 tests/splitstate/make_fixtures.py && SHEAF_BLESS=1 build/tests/splitstate/test-splitstate
"""
import pathlib

HERE = pathlib.Path(__file__).parent / "fixtures"
CONTEXT = 256  # of the KV caches: their cut does not depend on it

# What a family's layers have beside attention and a gated feed-forward.
FAMILIES = {
    "llama": {},
    "qwen2": {"bias": ("attn_q", "attn_k", "attn_v")},
    "qwen3": {"qk_norm": "head"},
    "qwen3moe": {"qk_norm": "head"},
    "gemma2": {"norms": ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")},
    "gemma3": {"norms": ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"), "qk_norm": "head"},
    "olmo2": {"norms": ("post_attention_norm", "post_ffw_norm"), "qk_norm": "row"},
    "olmoe": {"qk_norm": "row"},
    "phi3": {"fused": True},
    "gpt2": {"fused": True, "gate": False, "bias": ("norm", "attn_qkv", "attn_output", "ffn_up", "ffn_down")},
    "gpt-oss": {
        "norms": ("attn_norm", "post_attention_norm"),
        "bias": ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"),
        "sinks": True,
    },
    "deepseek2": {"latent": (512, 128, 64, 128)},  # latent, a head's unrotated and rotated part, its value
}

# name, architecture, types, layers, width, heads, KV heads, head, feed-forward, vocabulary, and what else there is:
# tied, experts (how many), ff_exp, shared (width), dense (leading layers without experts), extra (tensors of no layer)
MODELS = [
    ("sheaf-tiny", "llama", "q8_0", 6, 192, 6, 3, 32, 512, 2048, {"tied": True}),
    ("smollm2-135m", "llama", "q4_1", 30, 576, 9, 3, 64, 1536, 49152, {"tied": True}),
    ("smollm2-360m", "llama", "q4_k_m", 32, 960, 15, 5, 64, 2560, 49152, {"tied": True}),
    ("smollm2-1.7b", "llama", "q4_k_m", 24, 2048, 32, 32, 64, 8192, 49152, {"tied": True}),
    ("tinyllama-1.1b", "llama", "q4_0", 22, 2048, 32, 4, 64, 5632, 32000, {}),
    ("llama-7b", "llama", "q4_0", 32, 4096, 32, 32, 128, 11008, 32000, {}),
    ("llama-13b", "llama", "q4_k_m", 40, 5120, 40, 40, 128, 13824, 32000, {}),
    ("llama-30b", "llama", "q4_0", 60, 6656, 52, 52, 128, 17920, 32000, {}),
    ("llama3.1-8b", "llama", "q4_k_m", 32, 4096, 32, 8, 128, 14336, 128256, {"extra": ("rope_freqs.weight 64 f32",)}),
    ("llama3.1-70b", "llama", "q4_k_m", 80, 8192, 64, 8, 128, 28672, 128256, {"extra": ("rope_freqs.weight 64 f32",)}),
    ("llama3.2-1b", "llama", "q8_0", 16, 2048, 32, 8, 64, 8192, 128256,
     {"tied": True, "extra": ("rope_freqs.weight 32 f32",)}),
    ("llama3.2-3b", "llama", "q8_0", 28, 3072, 24, 8, 128, 8192, 128256,
     {"tied": True, "extra": ("rope_freqs.weight 64 f32",)}),
    ("mistral-7b", "llama", "q4_k_m", 32, 4096, 32, 8, 128, 14336, 32768, {}),
    ("mixtral-8x7b", "llama", "q4_k_m", 32, 4096, 32, 8, 128, 14336, 32000, {"experts": 8, "ff_exp": 14336}),
    ("qwen2.5-0.5b", "qwen2", "q4_k_m", 24, 896, 14, 2, 64, 4864, 151936, {"tied": True}),
    ("qwen2.5-1.5b", "qwen2", "q4_k_m", 28, 1536, 12, 2, 128, 8960, 151936, {"tied": True}),
    ("qwen2.5-7b", "qwen2", "q4_k_m", 28, 3584, 28, 4, 128, 18944, 152064, {}),
    ("qwen3-0.6b", "qwen3", "q8_0", 28, 1024, 16, 8, 128, 3072, 151936, {"tied": True}),
    ("qwen3-8b", "qwen3", "q4_k_m", 36, 4096, 32, 8, 128, 12288, 151936, {}),
    ("qwen3-32b", "qwen3", "q4_k_m", 64, 5120, 64, 8, 128, 25600, 151936, {}),
    ("qwen3-30b-a3b", "qwen3moe", "q4_k_m", 48, 2048, 32, 4, 128, 6144, 151936, {"experts": 128, "ff_exp": 768}),
    ("gemma2-2b", "gemma2", "q4_k_m", 26, 2304, 8, 4, 256, 9216, 256000, {"tied": True}),
    ("gemma2-9b", "gemma2", "q8_0", 42, 3584, 16, 8, 256, 14336, 256000, {"tied": True}),
    ("gemma3-270m", "gemma3", "q4_k_m", 18, 640, 4, 1, 256, 2048, 262144, {"tied": True}),
    ("gemma3-1b", "gemma3", "q4_k_m", 26, 1152, 4, 1, 256, 6912, 262144, {"tied": True}),
    ("gemma3-4b", "gemma3", "q4_k_m", 34, 2560, 8, 4, 256, 10240, 262208, {"tied": True}),
    ("gemma3-27b", "gemma3", "q4_k_m", 62, 5376, 32, 16, 128, 21504, 262208, {"tied": True}),
    ("phi3-mini", "phi3", "q4_k_m", 32, 3072, 32, 32, 96, 8192, 32064,
     {"extra": ("rope_factors_long.weight 48 f32", "rope_factors_short.weight 48 f32")}),
    ("phi3-medium", "phi3", "q4_k_m", 40, 5120, 40, 10, 128, 17920, 32064, {}),
    ("olmo2-7b", "olmo2", "q4_k_m", 32, 4096, 32, 32, 128, 11008, 100352, {}),
    ("olmo2-13b", "olmo2", "q4_k_m", 40, 5120, 40, 40, 128, 13824, 100352, {}),
    ("olmoe-1b-7b", "olmoe", "q4_k_m", 16, 2048, 16, 16, 128, 1024, 50304, {"experts": 64, "ff_exp": 1024}),
    ("gpt2-124m", "gpt2", "f16", 12, 768, 12, 12, 64, 3072, 50257,
     {"tied": True, "extra": ("position_embd.weight 768 1024 f32",)}),
    ("gpt2-xl", "gpt2", "q4_k_m", 48, 1600, 25, 25, 64, 6400, 50257,
     {"tied": True, "extra": ("position_embd.weight 1600 1024 f32",)}),
    ("gpt-oss-20b", "gpt-oss", "mxfp4", 24, 2880, 64, 8, 64, 2880, 201088, {"experts": 32, "ff_exp": 2880}),
    ("gpt-oss-120b", "gpt-oss", "mxfp4", 36, 2880, 64, 8, 64, 2880, 201088, {"experts": 128, "ff_exp": 2880}),
    ("deepseek-v2-lite", "deepseek2", "q4_k_m", 27, 2048, 16, 1, 192, 10944, 102400,
     {"experts": 64, "ff_exp": 1408, "shared": 2816, "dense": 1}),
    # made up: what no published model has, and short
    ("heads-12-4", "llama", "f16", 4, 768, 12, 4, 64, 2048, 32003, {}),
    ("heads-8-1", "llama", "q8_0", 4, 2048, 8, 1, 256, 16384, 32000, {}),
    ("heads-28-4", "llama", "q4_k_m", 28, 3584, 28, 4, 128, 18944, 152064, {}),
    ("ff-1408", "llama", "q8_0", 2, 256, 8, 4, 32, 1408, 512, {}),
    ("ff-768", "llama", "q4_k_m", 2, 256, 8, 4, 32, 768, 512, {}),
]


def more_bits(i, n):
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def type_of(mix, name, cols, layer, layers, experts, tied):
    """llama-quantize's choice; rows that are no whole superblocks get a type with blocks of 32."""
    if mix == "mxfp4":
        return "mxfp4" if name.endswith("_exps") else "q8_0"
    if mix in ("q4_0", "q4_1"):
        return "q6_k" if name == "output" or name == "token_embd" and tied and cols % 256 == 0 else mix
    if mix != "q4_k_m":
        return mix
    kind = "q4_k"
    if name == "output" or name == "token_embd" and tied:
        kind = "q6_k"
    elif name == "attn_v" or name.startswith("ffn_down"):
        kind = "q6_k" if more_bits(layer, layers) else "q4_k"
    elif name == "attn_qkv":
        kind = "q5_k"
    if experts == 8 and name in ("attn_k", "attn_v", "attn_output"):
        kind = "q5_k" if name == "attn_output" else "q8_0"
    return kind if cols % 256 == 0 else {"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}.get(kind, kind)


def layer_tensors(f, c, il):
    """(name, shape, type or None for what the mix says) of one layer's weights and cache."""
    embd, heads, kv, head, ff = c["embd"], c["heads"], c["kv"], c["head"], c["ff"]
    bias, q, k = f.get("bias", ()), heads * head, kv * head
    experts = c.get("experts", 0) if il >= c.get("dense", 0) else 0
    for n in f.get("norms", ("attn_norm", "ffn_norm")):
        yield f"{n}.weight", (embd,), "f32"
        if "norm" in bias:
            yield f"{n}.bias", (embd,), "f32"
    if (norm := f.get("qk_norm")):
        yield "attn_q_norm.weight", (head if norm == "head" else q,), "f32"
        yield "attn_k_norm.weight", (head if norm == "head" else k,), "f32"
    if "latent" in f:
        lora, nope, rope, v = f["latent"]
        yield "attn_kv_a_norm.weight", (lora,), "f32"
        matrices = [("attn_q", embd, heads * (nope + rope)), ("attn_kv_a_mqa", embd, lora + rope),
                    ("attn_k_b", nope, lora, heads), ("attn_v_b", lora, v, heads), ("attn_output", heads * v, embd)]
        caches = [("cache_k", lora + rope)]
    else:
        apart = [("attn_q", embd, q), ("attn_k", embd, k), ("attn_v", embd, k)]
        matrices = [("attn_qkv", embd, q + 2 * k)] if f.get("fused") else apart
        matrices.append(("attn_output", q, embd))
        caches = [("cache_k", k), ("cache_v", k)]
    if f.get("sinks"):
        yield "attn_sinks.weight", (heads,), "f32"
    if experts:
        wide = c["ff_exp"]
        matrices += [("ffn_gate_inp", embd, experts), ("ffn_gate_exps", embd, wide, experts),
                     ("ffn_up_exps", embd, wide, experts), ("ffn_down_exps", wide, embd, experts)]
        if "shared" in c:
            wide = c["shared"]
            matrices += [("ffn_gate_shexp", embd, wide), ("ffn_up_shexp", embd, wide), ("ffn_down_shexp", wide, embd)]
    else:
        gate = f.get("gate", True)
        if gate and not f.get("fused"):
            matrices.append(("ffn_gate", embd, ff))
        matrices += [("ffn_up", embd, 2 * ff if gate and f.get("fused") else ff), ("ffn_down", ff, embd)]
    for n, *shape in matrices:
        yield f"{n}.weight", tuple(shape), "f32" if n == "ffn_gate_inp" else None
        if n in bias:
            yield f"{n}.bias", tuple(shape[1:]), "f32"
    for n, row in caches:
        yield n, (row, CONTEXT), "f16"


def ranges(numbers):
    """[0, 1, 2, 5] -> "0-2,5"."""
    out = []
    for n in numbers:
        if out and out[-1][1] == n - 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return ",".join(f"{a}-{b}" if a < b else f"{a}" for a, b in out)


def model(name, arch, mix, layers, embd, heads, kv, head, ff, vocab, more):
    f, c = FAMILIES[arch], dict(embd=embd, heads=heads, kv=kv, head=head, ff=ff) | more
    tied, experts = more.get("tied", False), more.get("experts", 0)

    def kind(tensor, cols, layer=0):
        return type_of(mix, tensor, cols, layer, layers, experts, tied)

    lines = [f"general.architecture = {arch}", f"{arch}.attention.head_count = {heads}",
             f"{arch}.attention.head_count_kv = {kv}", f"token_embd.weight {embd} {vocab} {kind('token_embd', embd)}",
             *more.get("extra", ())]
    if not tied:
        lines.append(f"output.weight {embd} {vocab} {kind('output', embd)}")
    lines.append(f"output_norm.weight {embd} f32")
    if "norm" in f.get("bias", ()):
        lines.append(f"output_norm.bias {embd} f32")
    same = {}  # tensors that differ by nothing but their layer
    for il in range(layers):
        for tensor, shape, given in layer_tensors(f, c, il):
            row = (tensor, shape, given or kind(tensor.split(".")[0], shape[0], il))
            same.setdefault(row, []).append(il)
    for (tensor, shape, t), where in same.items():
        lines.append(f"blk.{{{ranges(where)}}}.{tensor} {' '.join(map(str, shape))} {t}")
    (HERE / f"{name}-{mix}.tensors").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for row in MODELS:
        model(*row)
