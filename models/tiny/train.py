#!/usr/bin/env python3
"""Train sheaf's demo model from the text beside this file, and write it as GGUF.

    python3 models/tiny/train.py

One command makes everything: it learns the tokenizer, trains the model, keeps the
checkpoint with the lowest held-out loss, lets it settle (see `settle`) and writes `sheaf-tiny-q8_0.gguf` and
`heldout.txt` next to itself. `README.md` here is the model card: what came out, and how
it was measured. Versions are pinned in `tests/requirements.txt`.

The model is a plain Llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU,
tied embeddings. Its shape was chosen to be awkward on purpose: 6 heads and 3 KV heads, so
cutting it for two devices cannot be even, and the demo exercises uneven cuts.

What this file deliberately does not do: resume, log to a service, use a GPU. The whole run
fits in a coffee break on two idle cores; where others use them too, `--threads 1` is the faster
way, for two threads then wait for each other at every operation.
"""

import argparse
import json
import math
import pathlib
import re
import time

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn

HERE = pathlib.Path(__file__).resolve().parent

VOCAB = 2048
WIDTH = 192
LAYERS = 6
HEADS = 6
KV_HEADS = 3
HEAD_SIZE = 32
FEED_FORWARD = 512
CONTEXT = 512
ROPE_BASE = 10000.0
NORM_EPS = 1e-5
HELD_OUT = 0.03
END = "<|endoftext|>"
END_ID = 0


# ---------------------------------------------------------------------------------- the text


def split_text(text: str) -> tuple[str, str]:
    """(seen, held out): the last 3 % of the bytes, from a paragraph's start.

    The cut moves back to a blank line, so the held-out part is never under 3 % and starts
    with a whole sentence. The tokenizer is learnt from the seen part alone.
    """
    raw = text.encode()
    cut = raw.rfind(b"\n\n", 0, int(len(raw) * (1 - HELD_OUT))) + 2
    return raw[:cut].decode(), raw[cut:].decode()


def split_tales(text: str) -> list[str]:
    """The tales one by one. A heading is a number and a title after a blank line.

    Between tales the training stream carries END, so the model learns to end a tale, and
    generation stops by itself instead of running on into the next heading.
    """
    starts = [m.start() for m in re.finditer(r"(?:(?<=\n\n)|\A)\d+ [A-Z].*\n", text)]
    return [text[a:b] for a, b in zip(starts, starts[1:] + [len(text)])]


# ----------------------------------------------------------------------------- the tokenizer


def split_words() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


def train_tokenizer(text: str) -> Tokenizer:
    """Byte-level BPE whose pre-tokenizer is what GGUF files call "smollm".

    Digits stand alone, then GPT-2's split. The split must be one that runtimes know by
    name, since a GGUF file carries the name and not the regular expression.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split_words()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    assert tokenizer.get_vocab_size() == VOCAB and tokenizer.token_to_id(END) == END_ID
    return tokenizer


# --------------------------------------------------------------------------------- the model


class Block(nn.Module):
    """One layer. Every matrix is [out, in], as GGUF stores it."""

    def __init__(self, dropout: float):
        super().__init__()
        self.attn_norm = nn.Parameter(torch.ones(WIDTH))
        self.attn_q = nn.Linear(WIDTH, HEADS * HEAD_SIZE, bias=False)
        self.attn_k = nn.Linear(WIDTH, KV_HEADS * HEAD_SIZE, bias=False)
        self.attn_v = nn.Linear(WIDTH, KV_HEADS * HEAD_SIZE, bias=False)
        self.attn_output = nn.Linear(HEADS * HEAD_SIZE, WIDTH, bias=False)
        self.ffn_norm = nn.Parameter(torch.ones(WIDTH))
        self.ffn_gate = nn.Linear(WIDTH, FEED_FORWARD, bias=False)
        self.ffn_up = nn.Linear(WIDTH, FEED_FORWARD, bias=False)
        self.ffn_down = nn.Linear(FEED_FORWARD, WIDTH, bias=False)
        self.dropout = dropout

    def forward(self, x, rope):
        batch, length, _ = x.shape
        h = F.rms_norm(x, (WIDTH,), self.attn_norm, NORM_EPS)
        q = self.attn_q(h).view(batch, length, HEADS, HEAD_SIZE).transpose(1, 2)
        k = self.attn_k(h).view(batch, length, KV_HEADS, HEAD_SIZE).transpose(1, 2)
        v = self.attn_v(h).view(batch, length, KV_HEADS, HEAD_SIZE).transpose(1, 2)
        group = HEADS // KV_HEADS
        k = rotate(k, rope).repeat_interleave(group, dim=1)
        v = v.repeat_interleave(group, dim=1)
        # No dropout inside attention: it would leave the fused kernel, and costs 1.5 x.
        a = F.scaled_dot_product_attention(rotate(q, rope), k, v, is_causal=True)
        a = self.attn_output(a.transpose(1, 2).reshape(batch, length, -1))
        x = x + F.dropout(a, self.dropout, self.training)
        h = F.rms_norm(x, (WIDTH,), self.ffn_norm, NORM_EPS)
        h = self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))
        return x + F.dropout(h, self.dropout, self.training)


def rope_table(length: int):
    """cos and sin, each [length, HEAD_SIZE / 2]."""
    frequency = ROPE_BASE ** (-torch.arange(0, HEAD_SIZE, 2) / HEAD_SIZE)
    angle = torch.outer(torch.arange(length), frequency)
    return angle.cos(), angle.sin()


def rotate(x, rope):
    """Rotary positions on neighbouring pairs (x0 x1)(x2 x3)...

    GGUF's "llama" wants neighbours. Training with them means that no row of Q and K has to
    be permuted on export, which is where conversions of half-rotated models go wrong.
    """
    cos, sin = (t[: x.shape[-2]].to(x.dtype) for t in rope)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class Tiny(nn.Module):
    def __init__(self, dropout: float):
        super().__init__()
        self.token_embd = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(LAYERS))
        self.output_norm = nn.Parameter(torch.ones(WIDTH))
        self.rope = rope_table(CONTEXT)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)
            if name.endswith(("attn_output.weight", "ffn_down.weight")):
                nn.init.zeros_(p)  # every layer starts as the identity

    def forward(self, tokens):
        x = self.token_embd(tokens)
        for block in self.blocks:
            x = block(x, self.rope)
        x = F.rms_norm(x, (WIDTH,), self.output_norm, NORM_EPS)
        return x @ self.token_embd.weight.T  # tied: the head is the embedding


# ---------------------------------------------------------------------------------- training


def optimizers(model: Tiny, lr: float, embed_lr: float, decay: float):
    """Muon for the matrices of the layers, AdamW for the rest.

    With so few steps Muon's orthogonal updates reach a given loss in about two thirds of
    AdamW's. Embeddings are lookups and norms are vectors: neither suits it.
    """
    matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    muon = torch.optim.Muon(
        matrices, lr=lr, momentum=0.95, weight_decay=decay, adjust_lr_fn="match_rms_adamw"
    )
    adam = torch.optim.AdamW(
        [
            {"params": [model.token_embd.weight], "weight_decay": decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=embed_lr,
        betas=(0.9, 0.95),
    )
    return muon, adam


def rate(step: int, steps: int) -> float:
    """Factor on the learning rate: 2 % up, flat, then the last 60 % straight down to zero."""
    up = min(1.0, (step + 1) / (0.02 * steps))
    return up * min(1.0, (steps - step) / (0.6 * steps))


def batches(ids: torch.Tensor, size: int, generator: torch.Generator):
    """Endless batches [size, CONTEXT + 1], every epoch cut at a new offset and reshuffled."""
    while True:
        offset = int(torch.randint(CONTEXT, (1,), generator=generator))
        count = (len(ids) - offset - 1) // CONTEXT
        starts = offset + CONTEXT * torch.randperm(count, generator=generator)
        for chunk in starts.split(size):
            if len(chunk) == size:
                yield torch.stack([ids[s : s + CONTEXT + 1] for s in chunk.tolist()])


@torch.no_grad()
def bits_per_byte(model: Tiny, ids: torch.Tensor, n_bytes: int) -> float:
    """Bits per byte of the held-out text, as one stream, in f32.

    Windows of CONTEXT tokens advance by half a window, and only tokens not yet scored count,
    so every token but those of the first window sees at least CONTEXT / 2 tokens before it.
    The very first token has no context; it is charged log2(VOCAB) bits.
    """
    model.eval()
    nats, scored, half = math.log(VOCAB), 1, CONTEXT // 2
    for start in range(0, len(ids) - 1, half):
        window = ids[start : start + CONTEXT]
        loss = F.cross_entropy(model(window[None, :-1])[0], window[1:], reduction="none")
        nats += loss[scored - start - 1 :].sum().item()
        scored = start + len(window)
        if scored == len(ids):
            break
    assert scored == len(ids)
    model.train()
    return nats / math.log(2) / n_bytes


def train_step(args, model: Tiny, opts, batch) -> float:
    """One update; the loss before it, in nats a token."""
    with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
        logits = model(batch[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for o in opts:
        o.step()
        o.zero_grad()
    return loss.item()


def train(args, seen: torch.Tensor, held: torch.Tensor, held_bytes: int, save) -> tuple[dict, dict]:
    """The best checkpoint by held-out loss, and where it was found.

    save(state) is called for each new best, so an interrupted run leaves a usable model.
    """
    torch.manual_seed(args.seed)
    model = Tiny(args.dropout)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    opts = optimizers(model, args.lr, args.embed_lr, args.decay)
    peaks = [[g["lr"] for g in o.param_groups] for o in opts]
    source = batches(seen, args.batch, torch.Generator().manual_seed(args.seed))
    best, best_state, begin, mean = {"bpb": math.inf}, {}, time.time(), 0.0
    for step in range(args.steps):
        factor = rate(step, args.steps)
        for o, peak in zip(opts, peaks):
            for group, lr in zip(o.param_groups, peak):
                group["lr"] = lr * factor
        mean += train_step(args, model, opts, next(source)) / args.every
        if (step + 1) % args.every == 0 or step + 1 == args.steps:
            bpb = bits_per_byte(model, held, held_bytes)
            took = time.time() - begin
            print(f"step {step + 1:5d}  loss {mean:.3f}  held-out {bpb:.4f} bits/byte  {took:5.0f} s", flush=True)
            mean = 0.0
            if bpb < best["bpb"]:
                best = {"bpb": bpb, "step": step + 1, "seconds": round(took)}
                best_state = {k: v.clone() for k, v in model.state_dict().items()}
                save(best_state)
    return best_state, best


def read_weights(path: pathlib.Path) -> dict:
    """The state of a model from its GGUF file, dequantized."""
    state = {}
    for t in gguf.GGUFReader(str(path)).tensors:
        name = t.name.replace("blk.", "blocks.").removesuffix(".weight") if "norm" in t.name else t.name.replace("blk.", "blocks.")
        state[name] = torch.from_numpy(gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).copy())
    return state


def settle(args, start: dict, seen: torch.Tensor, held: torch.Tensor, held_bytes: int) -> tuple[dict, float]:
    """Second stage: a wider minimum around the one found, and what it makes of the held-out text.

    A fifth of the learning rate, more dropout, and the mean of the weights over the way (stochastic weight
    averaging, Izmailov et al. 2018): a mean of points of one valley lies lower than the points. Last, one number: how sure the model may be (temperature scaling, Guo et al. 2017), folded into the
    last norm. Like the best checkpoint it is chosen on the held-out text.
    """
    torch.manual_seed(args.settle_seed)
    model = Tiny(args.settle_dropout)
    model.load_state_dict(start)
    model.train()
    opts = optimizers(model, args.lr, args.embed_lr, args.decay)
    peaks = [[g["lr"] for g in o.param_groups] for o in opts]
    source = batches(seen, args.batch, torch.Generator().manual_seed(99))
    mean, count, steps = {}, 0, args.settle
    for step in range(steps):
        factor = 0.2 * min(1.0, (step + 1) / 10) * min(1.0, (steps - step) / (0.5 * steps))
        for o, peak in zip(opts, peaks):
            for group, lr in zip(o.param_groups, peak):
                group["lr"] = lr * factor
        train_step(args, model, opts, next(source))
        if step < steps // 8:
            continue
        count += 1
        for k, v in model.state_dict().items():
            mean[k] = v.clone() if count == 1 else mean[k] + (v - mean[k]) / count
    return calibrate(mean, held, held_bytes)


def calibrate(state: dict, held: torch.Tensor, held_bytes: int) -> tuple[dict, float]:
    """The state with the last norm divided by what suits the held-out text best, and its bits per byte."""
    model, best = Tiny(0.0), (math.inf, {})
    for factor in (1.0, 1.02, 1.04, 1.06, 1.08, 1.1, 1.12):
        scaled = state | {"output_norm": state["output_norm"] / factor}
        model.load_state_dict(scaled)
        bpb = bits_per_byte(model, held, held_bytes)
        print(f"last norm / {factor:.2f}: held-out {bpb:.4f} bits/byte", flush=True)
        if bpb < best[0]:
            best = (bpb, scaled)
    return best[1], best[0]


# ------------------------------------------------------------------------------------ export


def write_gguf(path: pathlib.Path, state: dict, tokenizer: Tokenizer) -> None:
    """Matrices as Q8_0, norms as f32: what llama.cpp and sheaf both load."""
    w = gguf.GGUFWriter(str(path), "llama")
    w.add_name("sheaf tiny: household tales")
    w.add_description("Demo model of sheaf, trained from scratch on Grimm's Household Tales")
    w.add_license("MIT")
    w.add_size_label(f"{sum(v.numel() for v in state.values()) / 1e6:.1f}M")
    w.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    w.add_vocab_size(VOCAB)
    w.add_context_length(CONTEXT)
    w.add_embedding_length(WIDTH)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(FEED_FORWARD)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_rope_dimension_count(HEAD_SIZE)
    w.add_rope_freq_base(ROPE_BASE)
    w.add_layer_norm_rms_eps(NORM_EPS)

    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list([tokenizer.id_to_token(i) for i in range(VOCAB)])
    kinds = [gguf.TokenType.NORMAL] * VOCAB
    kinds[END_ID] = gguf.TokenType.CONTROL
    w.add_token_types(kinds)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    w.add_token_merges([" ".join(pair) for pair in merges])
    w.add_bos_token_id(END_ID)
    w.add_eos_token_id(END_ID)
    # Training windows start anywhere in a tale, so a prompt needs no marker before it.
    w.add_add_bos_token(False)

    for name, tensor in state.items():
        name = name.replace("blocks.", "blk.")
        name = name if name.endswith(".weight") else name + ".weight"
        data = tensor.float().numpy()
        if data.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            w.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)
        else:
            w.add_tensor(name, data)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def quantized(state: dict) -> dict:
    """The weights as a reader of the file sees them: through Q8_0 and back."""
    kind = gguf.GGMLQuantizationType.Q8_0
    through = lambda t: torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(t.numpy(), kind), kind))
    return {k: through(v) if v.dim() == 2 else v for k, v in state.items()}


def read_gguf(path: pathlib.Path) -> tuple[dict, Tokenizer]:
    """What write_gguf wrote: the weights, dequantized, and the tokenizer."""
    reader = gguf.GGUFReader(str(path))
    data = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    state = {}
    for name in Tiny(0.0).state_dict():
        stored = name.replace("blocks.", "blk.")
        state[name] = torch.from_numpy(data[stored if stored.endswith(".weight") else stored + ".weight"].copy())
    tokens = reader.get_field("tokenizer.ggml.tokens").contents()
    merges = [tuple(pair.split(" ")) for pair in reader.get_field("tokenizer.ggml.merges").contents()]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = split_words()
    return state, tokenizer


def evaluate(path: pathlib.Path, held_text: str) -> None:
    state, tokenizer = read_gguf(path)
    model = Tiny(0.0)
    model.load_state_dict(state)
    held = torch.tensor(tokenizer.encode(held_text).ids)
    bpb = bits_per_byte(model, held, len(held_text.encode()))
    print(f"{path.name}: {bpb:.4f} bits/byte over {len(held_text.encode()):,} bytes, {len(held):,} tokens")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--text", type=pathlib.Path, default=HERE / "household-tales.txt")
    p.add_argument("--out", type=pathlib.Path, default=HERE, help="folder for the model and heldout.txt")
    p.add_argument("--seed", type=int, default=1812)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--steps", type=int, default=900)
    p.add_argument("--batch", type=int, default=8, help="windows of 512 tokens a step")
    p.add_argument("--every", type=int, default=100, help="steps between evaluations")
    p.add_argument("--lr", type=float, default=5.6e-3)
    p.add_argument("--embed-lr", type=float, default=3e-3)
    p.add_argument("--decay", type=float, default=0.3)
    p.add_argument("--dropout", type=float, default=0.15)
    p.add_argument("--settle", type=int, default=240, help="steps of the second stage")
    p.add_argument("--settle-dropout", type=float, default=0.2)
    p.add_argument("--settle-seed", type=int, default=7)
    p.add_argument("--settle-from", type=pathlib.Path, help="no first stage: begin from this file's weights")
    p.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=True,
                   help="bf16 multiplications (twice as fast where the CPU has them)")
    p.add_argument("--evaluate", type=pathlib.Path, metavar="GGUF",
                   help="train nothing: bits per byte of the held-out text under this file")
    args = p.parse_args()
    torch.set_num_threads(args.threads)

    seen_text, held_text = split_text(args.text.read_text(encoding="utf-8"))
    if args.evaluate:
        evaluate(args.evaluate, held_text)
        return
    tokenizer = train_tokenizer(seen_text)
    seen_ids = []
    for tale in split_tales(seen_text):
        seen_ids += tokenizer.encode(tale).ids + [END_ID]
    held_ids = tokenizer.encode(held_text).ids
    held_bytes = len(held_text.encode())
    print(f"seen {len(seen_text.encode()):,} bytes, {len(seen_ids):,} tokens; "
          f"held out {held_bytes:,} bytes, {len(held_ids):,} tokens")

    (args.out / "heldout.txt").write_bytes(held_text.encode())

    path = args.out / "sheaf-tiny-q8_0.gguf"
    seen, held = torch.tensor(seen_ids), torch.tensor(held_ids)
    if args.settle_from:
        state, best = read_weights(args.settle_from), {"bpb": math.nan, "step": 0, "seconds": 0}
    else:
        state, best = train(args, seen, held, held_bytes, lambda state: write_gguf(path, state, tokenizer))
        state = quantized(state)  # the second stage begins where a reader of the file would
    state, _ = settle(args, state, seen, held, held_bytes)
    write_gguf(path, state, tokenizer)

    model = Tiny(0.0)
    model.load_state_dict(quantized(state))
    bpb = bits_per_byte(model, held, held_bytes)
    print(f"best {best['bpb']:.4f} bits/byte at step {best['step']} ({best['seconds']} s); "
          f"as Q8_0 {bpb:.4f}; {path.name} {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
