#!/usr/bin/env python3
"""Every family against llama.cpp: mean KL divergence of the golden cases' models through the logits file of perplexity.

    python3 tests/bench/families.py --peer .../llama-perplexity -f models/tiny/household-tales.txt [CASE ...]

Without CASE: all of tests/golden/cases.txt. A model is written by tests/golden/fixture.c (weights are random, so a
perplexity is large and says nothing; the divergence does). `same` is ours against the peer's, `exact` each one's against
the file dequantised to F32 (tests/golden/dequantize.py; run by us, who agree there with the peer). Bars: 5e-6 for f32, which is
what the file's 16 bits for a logit leave; otherwise 6e-3 for `same`, where both programs round activations to 8 bits, each in
its way, or ours no further from exact than 1.1 times the peer. Exit code 1 where a bar is missed.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden"
F32_BAR, ROUNDED_BAR, FURTHER = 5e-6, 6e-3, 1.1


# The peer runs phi3 without its sliding window, and says so; takes a deepseek2 for a Lite only by its 27 layers; and scores the
# groups of V2 as V3 does (we follow transformers).
ANOTHER_MODEL = ("phi3", "deepseek2-lite", "deepseek2-group")


def cases() -> list[tuple[str, str]]:
    rows = (line.split() for line in (GOLDEN / "cases.txt").read_text().splitlines())
    return [(row[0], row[2]) for row in rows if row and row[0][0] != "#" and not row[0].startswith(ANOTHER_MODEL)]


def fixture(folder: pathlib.Path) -> pathlib.Path:
    program = folder / "fixture"
    subprocess.run(["cc", "-std=c17", "-O2", "-DFIXTURE_MAIN", GOLDEN / "fixture.c", "-o", program, "-lm"], check=True)
    return program


def compared(command: list, *, text: bool) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, errors="replace")
    if done.returncode:
        sys.exit(f"families.py: {' '.join(str(c) for c in command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout if text else done.stdout + done.stderr


def ours(a, model: pathlib.Path, base: pathlib.Path, write=False) -> float | None:
    out = compared([a.sheaf, "perplexity", "-m", model, *a.text, "--devices", a.devices, "-q", "--json",
                    "--kl-divergence-base", base, *([] if write else ["--kl-divergence"])], text=True)
    return None if write else json.loads(out)["kl_mean"]


def theirs(a, model: pathlib.Path, base: pathlib.Path, write=False) -> float | None:
    command = [a.peer, "-m", model, *a.text, "-t", "2", "--kl-divergence-base", base]
    if write:
        return compared(command, text=False) and None
    for _ in range(20):  # at times it ends before its last lines are out
        found = re.search(r"Mean\s+KLD:\s+(\S+)", compared([*command, "--kl-divergence"], text=False))
        if found:
            return float(found.group(1))
    sys.exit(f"families.py: {model.name}: the peer told no divergence in twenty runs")


def row(a, name: str, kind: str, model: pathlib.Path, folder: pathlib.Path) -> bool:
    """Prints it; true when a bar is missed."""
    base, dense = folder / "base", folder / "dense.gguf"
    theirs(a, model, base, write=True)
    same = ours(a, model, base)
    if kind == "f32":
        missed = same > F32_BAR
        print(f"| {name} | {same:.1e} | | |{' MISSED' if missed else ''}", flush=True)
        return missed
    compared([sys.executable, GOLDEN / "dequantize.py", model, dense], text=True)
    ours(a, dense, base, write=True)
    mine, peer = ours(a, model, base), theirs(a, model, base)
    missed = same > ROUNDED_BAR and mine > FURTHER * peer
    print(f"| {name} | {same:.1e} | {mine:.1e} | {peer:.1e} |{' MISSED' if missed else ''}", flush=True)
    return missed


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--peer", required=True, help="llama-perplexity")
    p.add_argument("--sheaf", default="build/sheaf")
    p.add_argument("--devices", default="cpu/2")
    p.add_argument("-f", "--file", required=True, help="a text")
    p.add_argument("-c", "--ctx", default="64")
    p.add_argument("--chunks", default="8")
    p.add_argument("cases", nargs="*")
    a = p.parse_args()
    a.text = ["-f", a.file, "-c", a.ctx, "--chunks", a.chunks]
    missed = 0
    print("| case | same | exact, ours | exact, peer |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write = fixture(folder)
        for name, kind in cases():
            if a.cases and name not in a.cases:
                continue
            model = folder / f"{name}.gguf"
            subprocess.run([write, GOLDEN / "cases.txt", name, model], check=True)
            missed += row(a, name, kind, model, folder)
            model.unlink()
    return 1 if missed else 0


sys.exit(main())
