"""How often `compare` is wrong, and what it sees: `python -m benchmarks.calibration [--output results/compare]`.

Studies are simulated: two heads, five rates half a decade apart, a validation and a test per run. Noise has deviation 1
and is normal, skewed (log-normal) or heavy-tailed (Student's t with 2.5 degrees of freedom); a run at k steps from a
head's best rate is worse by curvature * k^2. A difference is one of the heads at their best rates. The verdict on a
study is the library's, `catnat_lab.stats.compare_runs` and p < ALPHA.

Designs: `own search`, as `compare` does it, where every repetition searches with one seed and is judged with another;
`one search` of so many seeds, whose best rate all final runs share, as is usual; `best test`, where the rate is chosen
by the tests that are then compared; `best test of one`, where only the new head is tuned so, and the other one has its
best rate. With an offset the other head's best rate lies between two of the grid, of which one is as good as the best
of the new head.

`compare itself` drives the library's own stages, in memory: the best rates lie beyond the grid, where every
one is better by 3 deviations than any on it, so that each repetition has to grow its grid.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from catnat_lab.comparison.study import TEST, Comparing, Setup, grid, outcome_of
from catnat_lab.experiment import Finished, Job
from catnat_lab.files import write
from catnat_lab.provenance import provenance
from catnat_lab.report.page import as_csv
from catnat_lab.stats import ALPHA, compare_runs

Values = NDArray[np.float64]
STEPS = np.arange(-2.0, 3.0)  # of five rates, from the best one
CURVATURES = (0.0, 0.1, 0.3, 1.0, 2.0, 4.0)  # from a flat curve to one whose best is plain
DRIVEN = 500  # studies through the library's own stages
CHECKED = 200  # studies of a condition that the library judges, too
DIFFERENCES = (0.5, 1.0, 1.5, 2.0, 3.0)
KINDS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Values]] = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "skewed": lambda random, shape: (random.lognormal(size=shape) - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e),
    "heavy": lambda random, shape: random.standard_t(2.5, shape) / math.sqrt(5),
}


def tests(
    random: np.random.Generator, design: str, kind: str, curvature: float, seeds: int, count: int, offset: float = 0.0
) -> Values:
    """[studies, seeds] the final tests of a head in so many studies; lower is better, and 0 at the grid's best rate."""
    loss, noise = curvature * (STEPS - offset) ** 2, KINDS[kind]
    loss -= loss.min()
    if design == "its best rate":
        return noise(random, (count, seeds))
    if design.startswith("best test"):
        every = loss[:, None] + noise(random, (count, len(loss), seeds))
        best = every.mean(-1).argmin(-1)
        return np.take_along_axis(every, best[:, None, None], 1)[:, 0]
    if design == "own search":
        validation = loss + noise(random, (count, seeds, len(loss)))
        return loss[validation.argmin(-1)] + noise(random, (count, seeds))
    searched = int(design.split()[-1])  # seeds of the one search
    validation = loss + noise(random, (count, searched, len(loss))).mean(1)
    return loss[validation.argmin(-1)][:, None] + noise(random, (count, seeds))


class InMemory:
    """What is done of a study that no database keeps."""

    def __init__(self) -> None:
        self.given_up: set[Job] = set()
        self.runs: dict[str, list[Finished]] = {}

    def finished(self, cell: str, **match: Any) -> list[Finished]:
        """As a study has it."""
        return [run for run in self.runs.get(cell, []) if match.items() <= run.config.items()]


def driven(random: np.random.Generator, kind: str, seeds: int = 5) -> tuple[Values, Values]:
    """[seeds] the final tests of two equal heads, by the library's stages."""

    def train(head: str, rate: float, seed: int) -> tuple[float, float]:
        steps = 2 * math.log10(rate / 1e-3)  # from the middle of the grid
        loss = -3 / (1 + math.exp(-(steps - 2.5) / 0.3))
        validation, test = loss + KINDS[kind](random, (2,))
        return float(validation), float(test)

    done, heads = InMemory(), ("softmax", "natural")
    experiment = Comparing(Setup(("simulated",), heads, grid("1e-4..1e-2"), seeds, True), {"simulated": train})
    while jobs := experiment.left(done):
        for job in jobs:
            _, head = experiment.cells[job.cell]
            outcome = outcome_of(train(head, job.config["rate"], job.config["seed"]), True)
            run = Finished(outcome.value, outcome.metrics, outcome.record, job.config)
            done.runs.setdefault(job.cell, []).append(run)
    base, new = ([run.metrics[TEST] for run in done.finished(cell, stage="final")] for cell in experiment.cells)
    return np.array(new), np.array(base)


def seen(new: Values, base: Values, rule: str = "compare") -> float:
    """In what share of studies the two are told apart.

    Welch's test is scipy's, for all studies at once. The library judges some of them too, and all with diverged runs.
    """
    with warnings.catch_warnings():  # of samples that do not overlap, of which Brunner and Munzel's test gives no p
        warnings.simplefilter("ignore", RuntimeWarning)
        if rule == "Brunner-Munzel":
            return float((stats.brunnermunzel(new, base, axis=-1).pvalue < ALPHA).mean())
        pvalues = stats.ttest_ind(new, base, axis=-1, equal_var=False).pvalue
    judged = np.union1d(np.arange(min(CHECKED, len(new))), np.flatnonzero(np.isnan(pvalues)))
    ours = np.array([compare_runs(new[i].tolist(), base[i].tolist(), True).p for i in judged])
    assert np.allclose(ours, np.where(np.isnan(pvalues[judged]), ours, pvalues[judged])), "the library judges otherwise"
    pvalues[judged] = ours
    return float((pvalues < ALPHA).mean())


def rows(count: int) -> Iterator[dict[str, Any]]:
    """Every condition, and in what share of its studies a difference is seen."""
    random = np.random.default_rng(0)

    def found(design: str, kind: str, curvature: float, seeds: int = 5, **more: Any) -> dict[str, Any]:
        base_kind, difference = more.get("other", kind), more.get("difference", 0.0)
        studies = min(count, DRIVEN) if design == "compare itself" else count
        other = "its best rate" if design == "best test of one" else design
        if design == "compare itself":
            new, base = map(np.array, zip(*(driven(random, kind, seeds) for _ in range(studies)), strict=True))
        else:
            new = tests(random, design, kind, curvature, seeds, count) - difference
            base = tests(random, other, base_kind, curvature, seeds, count, more.get("offset", 0.0))
        for lost in (new, base):
            lost[random.random(lost.shape) < more.get("diverged", 0.0)] = math.nan
        share = seen(new, base, more.get("rule", "compare"))
        known = {"design": design, "noise": kind, "curvature": curvature, "seeds": seeds, "difference": difference}
        rest = {
            "other noise": base_kind,
            "offset": more.get("offset", 0.0),
            "diverged": more.get("diverged", 0.0),
            "rule": more.get("rule", "compare"),
        }
        means = {"mean test": round(float(np.nanmean(new)), 3), "other mean": round(float(np.nanmean(base)), 3)}
        return known | rest | {"studies": studies, "seen": round(share, 4)} | means

    for kind in KINDS:
        for curvature in CURVATURES:
            for design in (
                "own search",
                "one search, seeds: 5",
                "one search, seeds: 1",
                "best test",
                "best test of one",
            ):
                yield found(design, kind, curvature)
        for seeds in (2, 3, 10, 20):
            yield found("own search", kind, 1.0, seeds)
        for difference in DIFFERENCES:
            for seeds in (5, 10):
                yield found("own search", kind, 1.0, seeds, difference=difference)
        yield found("own search", kind, 1.0, offset=0.5)
        yield found("own search", kind, 1.0, diverged=0.2)
        for difference in (0.0, 1.0, 2.0, 3.0):
            yield found("own search", kind, 4.0, rule="Brunner-Munzel", difference=difference)
            yield found("own search", kind, 4.0, difference=difference)
    yield found("own search", "normal", 4.0, other="skewed")
    yield found("own search", "normal", 4.0, 20, other="skewed")
    for kind in KINDS:
        yield found("compare itself", kind, 0.0)


def main() -> None:
    """Simulate and print; with --output, record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration", description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=10_000)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    every = []
    for row in rows(arguments.studies):
        every.append(row)
        print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if arguments.output:
        write(arguments.output / "calibration.csv", as_csv(every))
        facts = provenance(" ".join(["python -m benchmarks.calibration", *sys.argv[1:]]))
        write(arguments.output / "calibration.json", json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
