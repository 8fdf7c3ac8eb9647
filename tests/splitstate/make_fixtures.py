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


if __name__ == "__main__":
    main()
