#!/usr/bin/env python3
"""Two small vocabularies and what the package `tokenizers` makes of hard strings with them.

    python3 tests/golden/make_tokenizer.py

writes into tests/golden/tokenizer/, from the public-domain text of models/tiny:
  merges.txt   joins of a byte-level vocabulary, best first; ids 0 to 255 are the bytes, then one a line
  pieces.txt   pieces of a SentencePiece vocabulary, best first; ids 0 to 2 are <unk> <s> </s>, then
               256 bytes, then one a line
  ids.golden   one line a vocabulary and string of strings.txt: pre-tokenizer, number, ids
strings.txt is written by hand. Needs the package tokenizers (tests/requirements.txt).
"""
import json
import pathlib

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent / "tokenizer"
TEXT = HERE.parents[2] / "models/tiny/household-tales.txt"
JOINS = 700

LLAMA = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


def byte_level(digits):
    steps = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    return pre_tokenizers.Sequence(steps + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])


PRE = {
    "gpt-2": (byte_level(False), None, False),
    "smollm": (byte_level(True), None, False),
    "starcoder": (byte_level(True), None, False),
    "llama-bpe": (split(LLAMA % "{1,3}"), None, True),
    "qwen2": (split(LLAMA % ""), normalizers.NFC(), False),
}


def byte_letters():
    """The letter of each byte in a byte-level vocabulary, by byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def learn_merges(text):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = byte_level(False)
    t.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=256 + JOINS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return [tuple(pair) for pair in json.loads(t.to_str())["model"]["merges"]]


def learn_pieces(text):
    """Pieces in the order a SentencePiece file has them: by score, single letters last."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    t.train_from_iterator([text], trainers.BpeTrainer(vocab_size=JOINS, show_progress=False))
    pieces = sorted(((p, i) for p, i in t.get_vocab().items() if p.isprintable()), key=lambda item: item[1])
    return [p for p, _ in pieces if len(p) > 1] + [p for p, _ in pieces if len(p) == 1]


def tokenizer_of_merges(merges, pre):
    vocab = {letter: i for i, letter in enumerate(byte_letters())}
    for a, b in merges:
        assert a + b not in vocab
        vocab[a + b] = len(vocab)
    steps, normal, whole_first = PRE[pre]
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=whole_first))
    t.pre_tokenizer = steps
    if normal:
        t.normalizer = normal
    return t


def tokenizer_of_pieces(pieces):
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + pieces
    vocab = {p: i for i, p in enumerate(names)}
    merges = []
    for p in pieces:  # every way to join two pieces to one, by the rank of what comes out
        for cut in range(1, len(p)):
            if p[:cut] in vocab and p[cut:] in vocab:
                merges.append((p[:cut], p[cut:]))
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return t


def main():
    text = TEXT.read_text(encoding="utf-8")[:200_000]
    merges, pieces = learn_merges(text), learn_pieces(text)
    (HERE / "merges.txt").write_text("".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")
    (HERE / "pieces.txt").write_text("".join(p + "\n" for p in pieces), encoding="utf-8")
    lines = (HERE / "strings.txt").read_text(encoding="utf-8").split("\n")[1:-1]
    strings = [s.replace("\\n", "\n").replace("\\r", "\r").replace("\\t", "\t") for s in lines]
    made = {pre: tokenizer_of_merges(merges, pre) for pre in PRE} | {"default": tokenizer_of_pieces(pieces)}
    with open(HERE / "ids.golden", "w", encoding="utf-8") as out:
        out.write("# pre-tokenizer (default: pieces.txt), number of the string, ids; by make_tokenizer.py\n")
        for pre, t in made.items():
            for k, s in enumerate(strings):
                out.write(f"{pre} {k}" + "".join(f" {i}" for i in t.encode(s, add_special_tokens=False).ids) + "\n")


main()
