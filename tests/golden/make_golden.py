#!/usr/bin/env python3
"""Compute the golden logits of the models in cases.txt with `transformers`.

    python3 tests/golden/make_golden.py                  all cases, into tests/golden/logits/
    python3 tests/golden/make_golden.py h9k3-q8_0 ...    some

The reference is independent of sheaf and of llama.cpp: the family's class of `transformers` in f32, fed with what
the `gguf` package reads and dequantizes from the file that fixture.c wrote. So a quantized case
has the logits of its dequantized weights with f32 activations, and a runtime that rounds
activations to 8 bits stays within the bound of the case list (NMSE <= 1e-3), not at zero.

README.md beside this file describes the output. Versions are pinned in tests/requirements.txt.
"""

import argparse
import pathlib
import subprocess
import tempfile

import gguf
import numpy as np
import torch
import transformers as tf

HERE = pathlib.Path(__file__).resolve().parent
TOKENS = 32  # of the fixed sequence
KEPT = 4  # last positions whose logits are kept
GREEDY = 32  # tokens generated after the sequence
CONTEXT = 256
FIELDS = "name family type alt layers width heads kv_heads head_size ff vocab tied bias rope".split()


def read_cases() -> list[dict]:
    lines = (HERE / "cases.txt").read_text().splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return [dict(zip(FIELDS, (int(v) if v.isdigit() else v for v in row))) for row in rows]


def build_fixture(folder: pathlib.Path) -> pathlib.Path:
    program = folder / "fixture"
    subprocess.run(["cc", "-std=c17", "-O2", "-DFIXTURE_MAIN", HERE / "fixture.c", "-o", program, "-lm"], check=True)
    return program


def rope_parameters(kind: str) -> dict:
    """What cases.txt's rope names mean, in transformers' words. fixture.c says it in GGUF's."""
    base = {"rope_type": "default", "rope_theta": 10000.0}
    stretch = {"factor": 4.0, "original_max_position_embeddings": 64}
    if kind == "linear":
        return base | {"rope_type": "linear", "factor": 4.0}
    if kind == "yarn":
        return base | {"rope_type": "yarn"} | stretch
    if kind == "llama3":
        return base | {"rope_type": "llama3"} | stretch | {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return base


# What fixture.c's families say in GGUF's words.
WINDOW = {"gemma2": 9, "gemma3": 9, "phi3": 20, "gpt-oss": 9, "olmo3": 9}
BASE = {"qwen3moe": 1e6, "qwen2": 1e6, "qwen3": 1e6, "gemma3": 1e6, "olmo2": 5e5, "olmo3": 5e5}


def common(c: dict) -> dict:
    return dict(
        vocab_size=c["vocab"],
        hidden_size=c["width"],
        intermediate_size=c["ff"],
        num_hidden_layers=c["layers"],
        num_attention_heads=c["heads"],
        num_key_value_heads=c["kv_heads"],
        head_dim=c["head_size"],
        rms_norm_eps=1e-5,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=bool(c["tied"]),
        rope_parameters=rope_parameters(c["rope"]) | {"rope_theta": BASE.get(c["family"], 10000.0)},
        attn_implementation="eager",
        dtype="float32",
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
    )


def llama(c: dict):
    bias = bool(c["bias"])
    return tf.LlamaForCausalLM, tf.LlamaConfig(**common(c), attention_bias=bias, mlp_bias=bias)


def qwen2(c: dict):
    return tf.Qwen2ForCausalLM, tf.Qwen2Config(**common(c))


def qwen3(c: dict):
    return tf.Qwen3ForCausalLM, tf.Qwen3Config(**common(c))


def gemma2(c: dict):
    config = tf.Gemma2Config(
        **common(c),
        sliding_window=WINDOW["gemma2"],
        query_pre_attn_scalar=c["head_size"],
        attn_logit_softcapping=5.0,
        final_logit_softcapping=30.0,
    )
    return tf.Gemma2ForCausalLM, config


def gemma3(c: dict):
    """Five layers with a window and positions of their own, then one without."""
    keys = common(c)
    whole = keys.pop("rope_parameters")
    ropes = {"full_attention": whole, "sliding_attention": whole | {"rope_theta": 10000.0}}
    config = tf.Gemma3TextConfig(
        **keys, rope_parameters=ropes, sliding_window=WINDOW["gemma3"], query_pre_attn_scalar=c["head_size"]
    )
    return tf.Gemma3ForCausalLM, config


def olmo2(c: dict):
    return tf.Olmo2ForCausalLM, tf.Olmo2Config(**common(c))


def olmo3(c: dict):
    """Three layers with a window and plain positions, then one without, its positions stretched."""
    keys = common(c)
    whole = keys.pop("rope_parameters")
    plain = {"rope_type": "default", "rope_theta": whole["rope_theta"]}
    ropes = {"full_attention": whole, "sliding_attention": plain}
    return tf.Olmo3ForCausalLM, tf.Olmo3Config(**keys, rope_parameters=ropes, sliding_window=WINDOW["olmo3"])


def phi3(c: dict):
    return tf.Phi3ForCausalLM, tf.Phi3Config(
        **common(c),
        sliding_window=WINDOW["phi3"],
        original_max_position_embeddings=16 if c["rope"] == "long" else 128 if c["rope"] == "short" else CONTEXT,
    )


def gpt2(c: dict):
    return tf.GPT2LMHeadModel, tf.GPT2Config(
        vocab_size=c["vocab"],
        n_embd=c["width"],
        n_inner=c["ff"],
        n_layer=c["layers"],
        n_head=c["heads"],
        n_positions=CONTEXT,
        layer_norm_epsilon=1e-5,
        tie_word_embeddings=bool(c["tied"]),
        attn_implementation="eager",
        dtype="float32",
        bos_token_id=0,
        eos_token_id=0,
    )


def mixtral(c: dict):
    return tf.MixtralForCausalLM, tf.MixtralConfig(**common(c), num_local_experts=5, num_experts_per_tok=2)


def qwen3moe(c: dict):
    return tf.Qwen3MoeForCausalLM, tf.Qwen3MoeConfig(
        **common(c), moe_intermediate_size=c["ff"], num_experts=9, num_experts_per_tok=4, norm_topk_prob=True
    )


def olmoe(c: dict):
    return tf.OlmoeForCausalLM, tf.OlmoeConfig(
        **common(c), num_experts=7, num_experts_per_tok=3, norm_topk_prob=False
    )


def gpt_oss(c: dict):
    return tf.GptOssForCausalLM, tf.GptOssConfig(
        **common(c), num_local_experts=6, num_experts_per_tok=2, sliding_window=WINDOW["gpt-oss"], attention_bias=True
    )


def deepseek2(c: dict):
    return tf.DeepseekV2ForCausalLM, tf.DeepseekV2Config(
        **common(c) | dict(intermediate_size=2 * c["ff"], head_dim=c["head_size"] // 2, num_key_value_heads=c["heads"]),
        moe_intermediate_size=c["ff"],
        n_routed_experts=6,
        num_experts_per_tok=2,
        n_shared_experts=2,
        first_k_dense_replace=1,
        routed_scaling_factor=1.5,
        topk_method="greedy",
        n_group=1,
        topk_group=1,
        norm_topk_prob=False,
        **latents(c),
    )


def deepseek2_lite(c: dict):
    """Queries without a latent."""
    kind, config = deepseek2(c)
    config.q_lora_rank = None
    config.routed_scaling_factor = 1.0
    return kind, config


def deepseek2_group(c: dict):
    """Experts from the groups with the best of them."""
    return tf.DeepseekV2ForCausalLM, tf.DeepseekV2Config(
        **common(c) | dict(intermediate_size=2 * c["ff"], head_dim=c["head_size"] // 2, num_key_value_heads=c["heads"]),
        moe_intermediate_size=c["ff"],
        n_routed_experts=12,
        num_experts_per_tok=3,
        n_shared_experts=1,
        first_k_dense_replace=1,
        routed_scaling_factor=1.5,
        topk_method="group_limited_greedy",
        n_group=4,
        topk_group=2,
        norm_topk_prob=False,
        **latents(c),
    )


def deepseek3(c: dict):
    """Sigmoids, a bias of the choice, experts from the groups whose two best are best."""
    return tf.DeepseekV3ForCausalLM, tf.DeepseekV3Config(
        **common(c) | dict(intermediate_size=2 * c["ff"], head_dim=c["head_size"] // 2, num_key_value_heads=c["heads"]),
        moe_intermediate_size=c["ff"],
        n_routed_experts=16,
        num_experts_per_tok=4,
        n_shared_experts=1,
        first_k_dense_replace=1,
        routed_scaling_factor=2.5,
        n_group=4,
        topk_group=2,
        norm_topk_prob=True,
        **latents(c),
    )


def latents(c: dict) -> dict:
    return dict(
        q_lora_rank=c["width"] // 2,
        kv_lora_rank=c["width"] // 2,
        qk_nope_head_dim=c["head_size"],
        qk_rope_head_dim=c["head_size"] // 2,
        v_head_dim=c["head_size"],
    )


FAMILIES = {
    f.__name__.replace("_", "-"): f
    for f in (llama, qwen2, qwen3, gemma2, gemma3, olmo2, phi3, gpt2, mixtral, qwen3moe, olmoe, gpt_oss,
              deepseek2, deepseek2_lite, deepseek2_group, deepseek3, olmo3)
}

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
}
GEMMA = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
OWN_NAMES = {
    "gemma2": GEMMA,
    "gemma3": GEMMA,
    "olmo2": GEMMA,
    "olmo3": GEMMA,
    "phi3": {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "gpt-oss": {"ffn_gate_inp": "mlp.router", "post_attention_norm": "post_attention_layernorm"},
    "gpt2": {
        "token_embd": "transformer.wte",
        "position_embd": "transformer.wpe",
        "output_norm": "transformer.ln_f",
        "attn_norm": "ln_1",
        "ffn_norm": "ln_2",
        "attn_qkv": "attn.c_attn",
        "attn_output": "attn.c_proj",
        "ffn_up": "mlp.c_fc",
        "ffn_down": "mlp.c_proj",
    },
}


def half_rotation(rows: np.ndarray, heads: int) -> np.ndarray:
    """Q and K rows from GGUF's order to transformers'.

    GGUF's llama rotates neighbours (0 1)(2 3)..., transformers rotates halves (0 16)(1 17)...
    Within each head the even rows come first, then the odd ones.
    """
    shape = rows.shape
    return rows.reshape(heads, shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(shape)


def converted(c: dict, name: str, data: np.ndarray) -> np.ndarray:
    """A tensor as GGUF has it to what the family's class in transformers wants."""
    if c["family"] in ("llama", "mixtral") and name in ("attn_q", "attn_k"):
        return half_rotation(data, c["heads"] if name == "attn_q" else c["kv_heads"])
    if c["family"].startswith("gemma") and name.endswith("norm"):
        return data - 1  # GGUF has 1 + w
    if c["family"] == "gpt2" and data.ndim == 2 and name in ("attn_qkv", "attn_output", "ffn_up", "ffn_down"):
        return data.T  # inputs by outputs
    return data


def joined(c: dict, state: dict) -> dict:
    """Experts' gates and ups are one tensor in transformers, interleaved and turned for gpt-oss; so are the two
    projections up from a latent. Takes the parts out of `state` ("layer|name.suffix") and gives the wholes."""
    out = {}
    for prefix in sorted({k.split("|")[0] for k in state}):
        part = lambda name: state.pop(f"{prefix}|{name}", None)
        k, v = part("attn_k_b.weight"), part("attn_v_b.weight")  # {heads, lora, nope}, {heads, v, lora}
        if k is not None:
            both = np.concatenate([k.swapaxes(1, 2), v], axis=1)
            out[f"{prefix}self_attn.kv_b_proj.weight"] = both.reshape(-1, both.shape[2])
        if (sinks := part("attn_sinks.weight")) is not None:
            out[f"{prefix}self_attn.sinks"] = sinks
        if (bias := part("exp_probs_b.bias")) is not None:
            out[f"{prefix}mlp.gate.e_score_correction_bias"] = bias
        for suffix, end in (("weight", ""), ("bias", "_bias")):
            gate, up, down = (part(f"ffn_{n}_exps.{suffix}") for n in ("gate", "up", "down"))
            if gate is None:
                continue
            if c["family"] != "gpt-oss":
                gate_up = np.concatenate([gate, up], axis=1)
            elif suffix == "weight":
                gate_up = np.stack([gate, up], axis=2).reshape(len(gate), -1, gate.shape[2]).swapaxes(1, 2)
                down = down.swapaxes(1, 2)
            else:
                gate_up = np.stack([gate, up], axis=2).reshape(len(gate), -1)
            out[f"{prefix}mlp.experts.gate_up_proj{end}"] = gate_up
            out[f"{prefix}mlp.experts.down_proj{end}"] = down
    assert not state, state.keys()
    return {k: torch.from_numpy(v.copy()) for k, v in out.items()}


def factors_of(path: pathlib.Path) -> dict:
    """LongRoPE's factors, which transformers wants in its configuration."""
    tensors = {t.name: t.data for t in gguf.GGUFReader(path).tensors}
    if "rope_factors_long.weight" not in tensors:
        return {}
    return {f"{k}_factor": tensors[f"rope_factors_{k}.weight"].tolist() for k in ("long", "short")}


def load(path: pathlib.Path, c: dict):
    state, parts = {}, {}
    names = NAMES | OWN_NAMES.get(c["family"], {})
    layers = "transformer.h" if c["family"] == "gpt2" else "model.layers"
    for t in gguf.GGUFReader(path).tensors:
        *layer, name, suffix = t.name.split(".")
        if name.startswith("rope_"):
            continue  # transformers computes its own from the config; that they agree is part of the test
        data = converted(c, name, gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32))
        prefix = f"{layers}.{layer[1]}." if layer else ""
        if name.endswith("_exps") or name in ("attn_k_b", "attn_v_b", "attn_sinks", "exp_probs_b"):
            parts[f"{prefix}|{name}.{suffix}"] = data
            continue
        state[f"{prefix}{names[name]}.{suffix}"] = torch.from_numpy(data.copy())
    state |= joined(c, parts)
    kind, config = FAMILIES[c["family"]](c)
    if factors := factors_of(path):
        config.rope_parameters |= {"rope_type": "longrope"} | factors
    model = kind(config).eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= ({"lm_head.weight"} if c["tied"] else set()), (missing, unexpected)
    model.tie_weights()
    return model


def tokens_of(c: dict) -> list[int]:
    """A fixed sequence over the whole vocabulary, without the end marker 0."""
    rng = np.random.Generator(np.random.PCG64(list(c["name"].encode())))
    return rng.integers(1, c["vocab"], TOKENS).tolist()


@torch.no_grad()
def compute(model, tokens: list[int]) -> tuple:
    """(logits of the last KEPT positions, greedy continuation, gap of the two best logits at each)."""
    logits = model(torch.tensor([tokens])).logits[0, -KEPT:]
    ids, gaps = list(tokens), []
    for _ in range(GREEDY):  # the whole prefix again each time: slow, and no cache to be wrong
        best = model(torch.tensor([ids])).logits[0, -1].topk(2)
        gaps.append((best.values[0] - best.values[1]).item())
        ids.append(int(best.indices[0]))
    return logits.numpy(), ids[len(tokens):], gaps


def write(path: pathlib.Path, name: str, tokens: list, logits: np.ndarray, greedy: list, gaps: list) -> None:
    out = [f"# python3 tests/golden/make_golden.py {name}"]
    out.append(f"tokens {len(tokens)} " + " ".join(map(str, tokens)))
    for i, row in enumerate(logits):
        out.append(f"logits {len(tokens) - KEPT + i} {len(row)}")
        out += [" ".join(f"{v:.8g}" for v in row[k : k + 8]) for k in range(0, len(row), 8)]
    out.append(f"greedy {len(greedy)} " + " ".join(map(str, greedy)))
    out.append(f"gaps {len(gaps)} " + " ".join(f"{g:.4f}" for g in gaps))
    path.write_text("\n".join(out) + "\n")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("cases", nargs="*", help="names; all without")
    p.add_argument("--out", type=pathlib.Path, default=HERE / "logits")
    p.add_argument("--keep", type=pathlib.Path, help="folder that keeps the models")
    args = p.parse_args()
    torch.set_num_threads(1)  # one order of addition
    args.out.mkdir(exist_ok=True)
    cases = [c for c in read_cases() if not args.cases or c["name"] in args.cases]
    if not cases:
        p.error("no such case")
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        folder = args.keep or scratch
        folder.mkdir(exist_ok=True)
        fixture = build_fixture(scratch)
        for c in cases:
            path = folder / f"{c['name']}.gguf"
            subprocess.run([fixture, HERE / "cases.txt", c["name"], path], check=True)
            tokens = tokens_of(c)
            logits, greedy, gaps = compute(load(path, c), tokens)
            write(args.out / f"{c['name']}.txt", c["name"], tokens, logits, greedy, gaps)
            print(f"{c['name']:16s} spread of logits {logits.std():.3f}, least gap {min(gaps):.4f}", flush=True)


if __name__ == "__main__":
    main()
