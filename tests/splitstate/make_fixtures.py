#!/usr/bin/env python3
"""Writes the tensor lists of the models that the placement tests cut: names, shapes and types only, as
`sheaf split --tensors` reads them. Run once; the lists are kept because a person should be able to read
them. Shapes are those of the published files; `k_mix` spreads types as llama-quantize's Q4_K_M does."""
import pathlib

HERE = pathlib.Path(__file__).parent / "fixtures"


def k_mix(i, n, name):
    if name in ("attn_v", "ffn_down"):
        return "q6_k" if i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2 else "q4_k"
    return "q4_k"


def llama(path, layers, embd, heads, kv, ff, vocab, kind, tied=False, head=None, out=None, ctx=256):
    head = head or embd // heads
    lines = [f"llama.attention.head_count = {heads}", f"llama.attention.head_count_kv = {kv}",
             f"token_embd.weight {embd} {vocab} {'q8_0' if kind == 'q8_0' else kind if kind != 'k' else 'q4_k'}"]
    if not tied:
        lines.append(f"output.weight {embd} {vocab} {out or ('q6_k' if kind == 'k' else kind)}")
    lines.append(f"output_norm.weight {embd} f32")
    for i in range(layers):
        def t(name):
            return k_mix(i, layers, name) if kind == "k" else kind
        b = f"blk.{i}."
        lines += [f"{b}attn_norm.weight {embd} f32",
                  f"{b}attn_q.weight {embd} {heads * head} {t('attn_q')}",
                  f"{b}attn_k.weight {embd} {kv * head} {t('attn_k')}",
                  f"{b}attn_v.weight {embd} {kv * head} {t('attn_v')}",
                  f"{b}attn_output.weight {heads * head} {embd} {t('attn_output')}",
                  f"{b}ffn_norm.weight {embd} f32",
                  f"{b}ffn_gate.weight {embd} {ff} {t('ffn_gate')}",
                  f"{b}ffn_up.weight {embd} {ff} {t('ffn_up')}",
                  f"{b}ffn_down.weight {ff} {embd} {t('ffn_down')}",
                  f"{b}cache_k {kv * head} {ctx} f16",
                  f"{b}cache_v {kv * head} {ctx} f16"]
    (HERE / path).write_text("\n".join(lines) + "\n")


def family(path, arch, layers, embd, heads, kv, head, ff, vocab, kinds, tied, qk_norm=0, before=True, after=False,
           fused=False, gate=True, bias=(), extra=(), ctx=256):
    """Another family: `kinds` gives each kind of matrix its type, "" all others; `bias` names those with one; qk_norm is
    the number of elements of a norm of queries and one of keys, -1: as many as they have."""
    def kind(name):
        return kinds.get(name, kinds[""])

    q, k = heads * head, kv * head
    lines = [f"{arch}.attention.head_count = {heads}", f"{arch}.attention.head_count_kv = {kv}"]
    lines += [f"token_embd.weight {embd} {vocab} {kind('token_embd')}", *extra]
    lines += [] if tied else [f"output.weight {embd} {vocab} {kind('output')}"]
    lines += [f"output_norm.weight {embd} f32"] + ([f"output_norm.bias {embd} f32"] if "norm" in bias else [])
    qkv = [("attn_qkv", embd, q + 2 * k)] if fused else [("attn_q", embd, q), ("attn_k", embd, k), ("attn_v", embd, k)]
    up = [("ffn_up", embd, 2 * ff)] if fused and gate else [("ffn_gate", embd, ff)] * gate + [("ffn_up", embd, ff)]
    for i in range(layers):
        b = f"blk.{i}."
        for n in ["attn_norm", "ffn_norm"] * before + ["post_attention_norm", "post_ffw_norm"] * after:
            lines += [f"{b}{n}.weight {embd} f32"] + ([f"{b}{n}.bias {embd} f32"] if "norm" in bias else [])
        if qk_norm:
            lines += [f"{b}attn_q_norm.weight {qk_norm if qk_norm > 0 else q} f32",
                      f"{b}attn_k_norm.weight {qk_norm if qk_norm > 0 else k} f32"]
        for n, cols, rows in [*qkv, ("attn_output", q, embd), *up, ("ffn_down", ff, embd)]:
            lines.append(f"{b}{n}.weight {cols} {rows} {kind(n)}")
            if n in bias:
                lines.append(f"{b}{n}.bias {rows} f32")
        lines += [f"{b}cache_k {k} {ctx} f16", f"{b}cache_v {k} {ctx} f16"]
    (HERE / path).write_text("\n".join(lines) + "\n")


K = {"": "q4_k", "output": "q6_k", "ffn_down": "q6_k", "attn_v": "q6_k"}
# what llama-quantize makes of rows of 640, which are no whole superblocks
SMALL_ROWS = {"": "q5_0", "token_embd": "q8_0", "attn_v": "q8_0", "attn_output": "q4_k", "ffn_down": "q6_k"}


def families():
    # name, architecture, layers, width, heads, KV heads, head, feed-forward, vocabulary, types, tied
    family("qwen2.5-7b-q4_k_m.tensors", "qwen2", 28, 3584, 28, 4, 128, 18944, 152064, K, False,
           bias=("attn_q", "attn_k", "attn_v"))
    family("qwen3-8b-q4_k_m.tensors", "qwen3", 36, 4096, 32, 8, 128, 12288, 151936, K, False, qk_norm=128)
    family("gemma2-9b-q8_0.tensors", "gemma2", 42, 3584, 16, 8, 256, 14336, 256000, {"": "q8_0"}, True, after=True)
    family("gemma3-270m-q4_k_m.tensors", "gemma3", 18, 640, 4, 1, 256, 2048, 262144, SMALL_ROWS, True, qk_norm=256,
           after=True)
    family("olmo2-7b-q4_k_m.tensors", "olmo2", 32, 4096, 32, 32, 128, 11008, 100352, K, False, qk_norm=-1,
           before=False, after=True)
    family("phi3-mini-q4_k_m.tensors", "phi3", 32, 3072, 32, 32, 96, 8192, 32064, K, False, fused=True,
           extra=("rope_factors_long.weight 48 f32", "rope_factors_short.weight 48 f32"))
    family("gpt2-124m-f16.tensors", "gpt2", 12, 768, 12, 12, 64, 3072, 50257, {"": "f16"}, True, fused=True, gate=False,
           bias=("norm", "attn_qkv", "attn_output", "ffn_up", "ffn_down"), extra=("position_embd.weight 768 1024 f32",))


def main():
    HERE.mkdir(exist_ok=True)
    # name, layers, width, heads, KV heads, feed-forward, vocabulary, type
    llama("sheaf-tiny-q8_0.tensors", 6, 192, 6, 3, 512, 2048, "q8_0", tied=True)
    llama("smollm2-135m-q4_1.tensors", 30, 576, 9, 3, 1536, 49152, "q4_1", tied=True)
    llama("tinyllama-1.1b-q4_0.tensors", 22, 2048, 32, 4, 5632, 32000, "q4_0", out="q6_k")
    llama("llama-7b-q4_0.tensors", 32, 4096, 32, 32, 11008, 32000, "q4_0", out="q6_k")
    llama("llama-13b-q4_k_m.tensors", 40, 5120, 40, 40, 13824, 32000, "k")
    llama("llama3-8b-q4_k_m.tensors", 32, 4096, 32, 8, 14336, 128256, "k")
    llama("llama3.2-3b-q8_0.tensors", 28, 3072, 24, 8, 8192, 128256, "q8_0", tied=True)
    llama("llama-30b-q4_0.tensors", 60, 6656, 52, 52, 17920, 32000, "q4_0", out="q6_k")
    llama("heads-28-4-q4_k.tensors", 28, 3584, 28, 4, 18944, 152064, "k")
    llama("heads-12-4-f16.tensors", 4, 768, 12, 4, 2048, 32003, "f16")
    llama("heads-8-1-q8_0.tensors", 4, 2048, 8, 1, 16384, 32000, "q8_0", head=256)
    llama("ff-1408-q8_0.tensors", 2, 256, 8, 4, 1408, 512, "q8_0")
    llama("ff-768-q4_k.tensors", 2, 256, 8, 4, 768, 512, "q4_k")
    families()


if __name__ == "__main__":
    main()
