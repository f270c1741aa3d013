"""What pruning costs a comparison: `python -m benchmarks.pruning [--output results/compare]`.

Studies of two heads that are equal at their best rates, by the library's own stages, in memory. A run's loss falls to
its final value, at a speed that is proportional to its rate; the final one grows by the square of the steps, of half a
decade, to the head's best rate. Softmax is best in the middle of the grid, natural there or so many steps below, where
it learns late, the more the deeper curves fall; three steps below is beyond the grid, which grows. Noise is normal and
has deviation 1.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.calibration import InMemory
from catnat_lab.comparison.study import STOPPED, TEST, Comparing, Setup, grid
from catnat_lab.experiment import Finished, RunContext
from catnat_lab.files import write
from catnat_lab.provenance import provenance
from catnat_lab.report.page import as_csv
from catnat_lab.stats import ALPHA, compare

HEADS, POINTS = ("softmax", "natural"), 12  # a curve's points


def study(
    random: np.random.Generator, below: float, height: float, prune: bool
) -> tuple[list[float], list[float], float]:
    """The final tests of both heads, and the share of searched runs that were stopped."""

    def train(head: str, rate: float, seed: int) -> Iterator[tuple[int, float]]:
        steps = 2 * math.log10(rate / 1e-3)  # from the middle of the grid
        loss, speed = (steps + below * (head == "natural")) ** 2, 10 ** (steps / 2)
        for point in range(1, 1 + POINTS):
            left = math.exp(-speed * point) - math.exp(-speed * POINTS)
            yield point, loss + height * left + random.standard_normal()
        return loss + random.standard_normal(), loss + random.standard_normal()  # type: ignore[return-value]

    done, place = InMemory(), RunContext(Path())
    plan = Setup(("simulated",), HEADS, grid("1e-4..1e-2"), 5, True, prune=prune)
    experiment = Comparing(plan, {"simulated": train})
    while jobs := experiment.left(done):
        for job, came in experiment.train(jobs, place):
            done.runs.setdefault(job.cell, []).append(Finished(came.value, came.metrics, came.record, job.config))
    base, new = ([run.metrics[TEST] for run in done.finished(cell, stage="final")] for cell in experiment.cells)
    searched = [run for runs in done.runs.values() for run in runs if run.config["stage"] != "final"]
    return base, new, sum(STOPPED in run.metrics for run in searched) / len(searched)


def rows(count: int) -> Iterator[dict[str, Any]]:
    """How often a difference is seen that is not there, and the mean test of either head."""
    for below, height, prune in product((0, 2, 3), (8.0, 40.0), (False, True)):
        random = np.random.default_rng(0)
        found = [study(random, below, height, prune) for _ in range(count)]
        seen = sum(compare(new, base).p < ALPHA for base, new, _ in found) / count
        means = [round(float(np.mean([tests[i] for tests in found])), 3) for i in (0, 1)]
        known = {"natural's best rate, steps below": below, "curves fall by": height, "pruned": prune}
        stopped = round(float(np.mean([share for *_, share in found])), 3)
        results = {"studies": count, "seen": seen, **dict(zip(HEADS, means, strict=True)), "stopped": stopped}
        yield known | results


def main() -> None:
    """Simulate and print; with --output, record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pruning", description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    every = []
    for row in rows(arguments.studies):
        every.append(row)
        print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if arguments.output:
        write(arguments.output / "pruning.csv", as_csv(every))
        facts = provenance(" ".join(["python -m benchmarks.pruning", *sys.argv[1:]]))
        write(arguments.output / "pruning.json", json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
