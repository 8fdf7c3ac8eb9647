#!/usr/bin/env python3
"""How far our logits are from llama.cpp's, and from exact arithmetic, as mean KL divergence; with bars.

    python3 tests/bench/kl.py --peer .../llama-perplexity -f household-tales.txt SmolLM2-135M-Instruct.Q4_1.gguf

Three figures, each over the same text in the same chunks:
  same     ours against the peer's logits of the same file: both round activations to 8 bits, each in its way
  exact    ours, and the peer's, against the peer's logits of the file dequantised to F32 (tests/golden/dequantize.py)
  f32      ours against the peer's, both on that F32 file
Exit code 1 if a bar is missed. Needs the packages of tests/requirements.txt that dequantize.py needs, and disk for the F32
file and two files of logits (--keep FOLDER keeps them).
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def run(*command) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, errors="replace")
    if done.returncode:
        sys.exit(f"kl.py: running {' '.join(str(c) for c in command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def ours(a, model, base) -> float:
    done = subprocess.run([a.sheaf, "perplexity", "-m", str(model), *a.text, "--devices", a.devices, "-q", "--json",
                           "--kl-divergence-base", str(base), "--kl-divergence"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"kl.py: {a.sheaf}: exit {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)["kl_mean"]


def peer(a, model, base, compare=False) -> float | None:
    """The peer writes its logits to `base`, or compares its own with them."""
    text = run(a.peer, "-m", model, *a.text, "-t", a.threads, "-ngl", 0, "--kl-divergence-base", base,
               *(["--kl-divergence"] if compare else []))
    found = re.search(r"Mean\s+KLD:\s*([-+0-9.eE]+)", text)
    if compare and not found:
        sys.exit(f"kl.py: no mean divergence in the peer's output:\n{text[-2000:]}")
    return float(found.group(1)) if compare else None


def measure(a, folder: pathlib.Path) -> list[tuple[str, float, float]]:
    """(what, divergence, bar) of each."""
    exact = folder / "exact-f32.gguf"
    run(sys.executable, HERE.parent / "golden" / "dequantize.py", a.model, exact)
    peer(a, a.model, folder / "quantized.kld")
    peer(a, exact, folder / "exact.kld")
    theirs = peer(a, a.model, folder / "exact.kld", compare=True)
    return [
        ("same: ours against the peer, the same file", ours(a, a.model, folder / "quantized.kld"), a.same),
        (f"exact: ours against exact arithmetic (the peer is {theirs:.5f} from it)",
         ours(a, a.model, folder / "exact.kld"), a.exact * theirs),
        ("f32: ours against the peer, both on the F32 file", ours(a, exact, folder / "exact.kld"), a.f32),
    ]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=pathlib.Path)
    p.add_argument("--peer", required=True, help="a llama-perplexity")
    p.add_argument("--sheaf", default="build/sheaf", help="our binary")
    p.add_argument("--devices", default="cpu")
    p.add_argument("-f", "--file", type=pathlib.Path, default=HERE.parents[1] / "models/tiny/household-tales.txt")
    p.add_argument("-c", "--context", type=int, default=512)
    p.add_argument("--chunks", type=int, default=4)
    p.add_argument("-t", "--threads", type=int, default=2, help="of the peer")
    p.add_argument("--same", type=float, default=0.006, help="bar")
    p.add_argument("--exact", type=float, default=1.1, help="bar, times the peer's divergence")
    p.add_argument("--f32", type=float, default=1e-4, help="bar")
    p.add_argument("--keep", type=pathlib.Path, help="folder for the F32 file and the logits, kept")
    a = p.parse_args()
    a.text = ["-f", str(a.file), "-c", str(a.context), "--chunks", str(a.chunks)]
    with tempfile.TemporaryDirectory() as scratch:
        rows = measure(a, a.keep or pathlib.Path(scratch))
    for what, kl, bar in rows:
        print(f"{'ok' if kl <= bar else 'MISSED':6s} {kl:.7f}  bar {bar:.5f}  {what}")
    sys.exit(0 if all(kl <= bar for _, kl, bar in rows) else 1)


if __name__ == "__main__":
    main()
