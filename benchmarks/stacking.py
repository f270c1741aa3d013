"""How much faster many runs train as one program than one by one: `python -m benchmarks.stacking`.

The same 20 runs of graph structure learning at the paper's sizes, stacked and one by one, interleaved. First both must
give the same results in float64.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from catnat_lab.gsl.data import make_dataset
from catnat_lab.gsl.presets import Settings
from catnat_lab.gsl.train import Run, train
from catnat_lab.heads import PAPER_HEADS
from catnat_lab.provenance import provenance


def main() -> None:
    """Check, time, print and, with --output, record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stacking", description=__doc__)
    parser.add_argument("--output", type=Path, help="folder for stacking.json; nothing is written without it")
    parser.add_argument("--steps", type=int, default=100, help="training steps of every run")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds; the median is reported")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = make_dataset(0.5, communities=4, pairs=80 * arguments.steps)  # one epoch of that many batches of 64
    runs = [Run(dataset, head, rate, 0) for head in PAPER_HEADS for rate in (0.005, 0.01, 0.02, 0.05, 0.1)]
    _check(runs, device)
    plan = Settings(epochs=1, choice_graphs=32)
    times: dict[str, list[float]] = {"stacked": [], "one by one": []}
    train(runs[:1], plan, device)  # warm-up
    for _ in range(arguments.rounds):
        times["stacked"].append(_seconds(lambda: train(runs, plan, device), device))
        times["one by one"].append(_seconds(lambda: [train([run], plan, device) for run in runs], device))
    ratios = [slow / fast for fast, slow in zip(times["stacked"], times["one by one"], strict=True)]
    found = {
        "runs": len(runs),
        "steps": arguments.steps,
        "speed-up": round(statistics.median(ratios), 2),
        "rounds": ratios,
    }
    print(f"{len(runs)} runs of {arguments.steps} steps, stacked: {found['speed-up']} times faster than one by one")
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        command = " ".join(["python -m benchmarks.stacking", *sys.argv[1:]])
        text = json.dumps(found | provenance(command, device), indent=2)
        (arguments.output / "stacking.json").write_text(text + "\n")


def _check(runs: list[Run], device: torch.device) -> None:
    few = make_dataset(0.5, communities=4, pairs=400)
    runs = [Run(few, run.head, run.rate, run.seed) for run in runs]
    plan = Settings(epochs=5, choice_graphs=32)
    for run, stacked in zip(runs, train(runs, plan, device, dtype=torch.float64), strict=True):
        (alone,) = train([run], plan, device, dtype=torch.float64)
        for key, value in alone.metrics.items():
            if abs(value - stacked.metrics[key]) > 1e-6 * abs(value):
                raise SystemExit(f"benchmarks: {run.head}, {key}: {stacked.metrics[key]} stacked, {value} alone")


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    started = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
