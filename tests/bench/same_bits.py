#!/usr/bin/env python3
"""What the same bits on any number of devices cost: `sheaf bench` with SHEAF_SAME_BITS 1 and 0, in turn.

    python3 tests/bench/same_bits.py --sheaf build/sheaf model.gguf ...

Each round runs every pair of devices and setting once, the order reversed from round to round, since machines are shared and
noisy. Printed are medians, and the median over rounds of two ratios: against the same devices with the same bits (the price),
and against the first devices with them (what more devices cost or bring). Only the standard library is used.
"""

import argparse
import json
import os
import statistics
import subprocess


def bench(a, model: str, devices: str, same: str) -> dict[str, float]:
    command = [a.sheaf, "bench", "-m", model, "--devices", devices, "-p", str(a.prompt), "-n", str(a.gen), "-r", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ, SHEAF_SAME_BITS=same))
    return {"decode" if r["n_gen"] else "prefill": r["tokens_per_s"]["median"] for r in json.loads(done.stdout)}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="+")
    p.add_argument("--sheaf", default="build/sheaf")
    p.add_argument("--devices", nargs="+", default=["cpu", "cpu/2"])
    p.add_argument("--prompt", type=int, default=256)
    p.add_argument("--gen", type=int, default=32)
    p.add_argument("--rounds", type=int, default=6)
    a = p.parse_args()
    for model in a.models:
        kinds = [(d, same) for d in a.devices for same in "10"]
        results = {k: [] for k in kinds}
        for r in range(a.rounds):
            for k in kinds if r % 2 == 0 else kinds[::-1]:
                results[k].append(bench(a, model, *k))
        print(f"\n{os.path.basename(model)}\n\n| phase | devices | same bits | tokens/s | against same bits | against {a.devices[0]} |\n"
              "|---|---|---|---|---|---|")
        for phase in ("prefill", "decode"):
            for d, same in kinds:
                own = [x[phase] for x in results[d, same]]
                ratio = lambda k: statistics.median(y / x[phase] for x, y in zip(results[k], own))
                print(f"| {phase} | {d} | {'yes' if same == '1' else 'no'} | {statistics.median(own):.1f} | "
                      f"{ratio((d, '1')):.3f} | {ratio((a.devices[0], '1')):.3f} |")


if __name__ == "__main__":
    main()
