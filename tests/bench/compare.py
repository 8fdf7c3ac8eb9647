#!/usr/bin/env python3
"""Run `sheaf bench` and llama-bench in turn on the same files, and say how they compare.

    python3 tests/bench/compare.py --peer .../llama-bench model.gguf ...
    tests/bench/peer.sh run model.gguf ...             the same, with the peer found

Machines are shared and noisy, so one round runs every program once, rounds are repeated, the
order within a round is reversed each time, and the table shows medians and ratios: `ratio` is
ours over the peer's, of medians; the range behind it is that of the single rounds. With more
than one --devices the first is the one that later lines are also set against (column `self`).

Only the standard library is used. Exit code 1 if a bar given by --at-least or --self-at-least is missed.
"""

import argparse
import json
import statistics
import subprocess
import sys

PHASES = ("prefill", "decode")


def run(command: list[str]) -> list[dict]:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"compare.py: running {' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def by_phase(rows: list[dict], speed) -> dict[str, float]:
    """{phase: tokens/s}: rows of either program tell the phase by which of n_prompt, n_gen is set."""
    return {"decode" if row["n_gen"] else "prefill": speed(row) for row in rows}


def bench_peer(a, program: str, model: str) -> dict[str, float]:
    rows = run([program, "-m", model, "-p", str(a.prompt), "-n", str(a.gen), "-r", "1",
                "-t", str(a.threads), "-ngl", "0", "-o", "json"])
    return by_phase(rows, lambda row: row["avg_ts"])


def bench_sheaf(a, devices: str, model: str) -> dict[str, float]:
    rows = run([a.sheaf, "bench", "-m", model, "-p", str(a.prompt), "-n", str(a.gen), "-r", "1",
                "-t", str(a.threads), "--devices", devices, "--json"])
    return by_phase(rows, lambda row: row["tokens_per_s"]["median"])


def measure(a, model: str) -> dict[str, list[dict[str, float]]]:
    """{who: [one result a round]}, peers first."""
    jobs = [(peer, bench_peer, peer) for peer in a.peer] + [(f"sheaf {d}", bench_sheaf, d) for d in a.devices]
    results = {who: [] for who, _, _ in jobs}
    for r in range(a.rounds):
        for who, bench, what in jobs if r % 2 == 0 else reversed(jobs):
            results[who].append(bench(a, what, model))
    return results


def ratio(ours: list[float], theirs: list[float]) -> dict[str, float]:
    each = [o / t for o, t in zip(ours, theirs)]
    return {"ratio": statistics.median(ours) / statistics.median(theirs), "min": min(each), "max": max(each)}


def summarize(a, model: str, results: dict) -> list[dict]:
    rows = []
    for phase in PHASES:
        speeds = {who: [r[phase] for r in runs] for who, runs in results.items()}
        best_peer = max(a.peer, key=lambda p: statistics.median(speeds[p]))
        first = f"sheaf {a.devices[0]}"
        for who, values in speeds.items():
            row = {"model": model, "phase": phase, "who": who, "tokens_per_s": statistics.median(values),
                   "rounds": values}
            if who.startswith("sheaf "):
                row["against_peer"] = ratio(values, speeds[best_peer])
                if who != first:
                    row["against_self"] = ratio(values, speeds[first])
            rows.append(row)
    return rows


def show(rows: list[dict]) -> None:
    def text(r):
        return f"{r['ratio']:5.2f} ({r['min']:.2f}-{r['max']:.2f})" if r else ""

    print(f"{'model':36s} {'phase':8s} {'who':14s} {'tokens/s':>9s}  {'ratio':18s} self")
    for row in rows:
        who = row["who"].rsplit("/", 1)[-1] if "llama" in row["who"] else row["who"]
        print(f"{row['model'].rsplit('/', 1)[-1]:36.36s} {row['phase']:8s} {who:14s} {row['tokens_per_s']:9.1f}  "
              f"{text(row.get('against_peer')):18s} {text(row.get('against_self'))}", flush=True)


def missed(a, rows: list[dict]) -> list[str]:
    """The first device list must reach the bars against the peer, the others those against the first."""
    bad = []
    for bars, column, other in ((a.at_least, "against_peer", "the peer"), (a.self_at_least, "against_self", a.devices[0])):
        for r in rows if bars else []:
            if column not in r or (column == "against_peer" and r["who"] != f"sheaf {a.devices[0]}"):
                continue
            bar, is_now = dict(zip(PHASES, bars))[r["phase"]], r[column]["ratio"]
            if is_now < bar:
                bad.append(f"{r['model']}: {r['who']}: {r['phase']}: {is_now:.2f} x {other}, wanted {bar}")
    return bad


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="+")
    p.add_argument("--peer", action="append", required=True, help="a llama-bench; repeat for several, the better one counts")
    p.add_argument("--sheaf", default="build/sheaf", help="our binary")
    p.add_argument("--devices", action="append", help="repeat for several; default cpu and cpu/2")
    p.add_argument("-t", "--threads", type=int, default=2)
    p.add_argument("-p", "--prompt", type=int, default=256)
    p.add_argument("-n", "--gen", type=int, default=64)
    p.add_argument("-r", "--rounds", type=int, default=5)
    p.add_argument("--at-least", type=float, nargs=2, metavar=("PREFILL", "DECODE"), help="exit 1 below these ratios to the peer")
    p.add_argument("--self-at-least", type=float, nargs=2, metavar=("PREFILL", "DECODE"),
                   help="exit 1 where another device list is below these ratios to the first")
    p.add_argument("--json", action="store_true", help="one JSON document instead of the table")
    a = p.parse_args()
    a.devices = a.devices or ["cpu", "cpu/2"]
    rows = []
    for model in a.models:
        rows += summarize(a, model, measure(a, model))
    print(json.dumps(rows, indent=1)) if a.json else show(rows)
    bad = missed(a, rows)
    for line in bad:
        print(f"compare.py: {line}", file=sys.stderr)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
