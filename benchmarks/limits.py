"""What the verdict of `compare` does not know, by simulation: `python -m benchmarks.limits [--output results/compare]`.

Welch's test at 5% between two heads of equal means: heads of unequal spread, a head that loses a run now and then, and
looks at a study that grows. And what a study says it would take, where the truth is known.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.calibration import KINDS
from catnat_lab.provenance import provenance
from catnat_lab.stats import ALPHA, needed

STUDIES, SEEDS = 20_000, 5
Values = NDArray[np.float64]


def pvalues(a: Values, b: Values) -> Values:
    """Of the studies along the first axis."""
    return stats.ttest_ind(a, b, axis=-1, equal_var=False).pvalue


def shares() -> Iterator[tuple[str, float]]:
    """What is simulated, and in what share of studies there is a verdict."""
    random = np.random.default_rng(0)
    shape = (STUDIES, SEEDS)
    unequal = KINDS["skewed"](random, shape), 0.3 * KINDS["skewed"](random, shape)
    yield "log-normal results of deviation 1 beside such of 0.3", float((pvalues(*unequal) < ALPHA).mean())
    lost = 5 * (random.random(shape) < 0.1) - 0.5
    rare = lost + 0.3 * random.standard_normal(shape), 0.3 * random.standard_normal(shape)
    yield "one run in ten lost by 5, all else of deviation 0.3", float((pvalues(*rare) < ALPHA).mean())
    a, b = random.standard_normal((2, STUDIES, 20))
    for looks in ((5, 10), (5, 10, 15, 20)):
        seen = [pvalues(a[:, :n], b[:, :n]) * (k + 1) < ALPHA for k, n in enumerate(looks)]
        yield f"looks at {looks}, p times their number, stopped at the first verdict", float(np.any(seen, 0).mean())
    a, b = 1 + random.standard_normal(shape), random.standard_normal(shape)
    unseen = pvalues(a, b) >= ALPHA
    spread = np.sqrt((a.var(-1, ddof=1) + b.var(-1, ddof=1)) / 2)
    effects = (abs(a.mean(-1) - b.mean(-1)) / spread)[unseen][:2_000]
    told = np.quantile([needed(float(effect)) for effect in effects], (0.1, 0.9))
    yield f"a true effect of 1 wants {needed(1.0)}; told without a verdict, 10% quantile", float(told[0])
    yield "90% quantile", float(told[1])


def main() -> None:
    """Simulate, print and, with --output, record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits", description=__doc__.split("\n\n")[0])
    parser.add_argument("--output", type=Path, help="folder for limits.csv and limits.json")
    options = parser.parse_args()
    rows = [(what, f"{share:.4g}") for what, share in shares() if math.isfinite(share)]
    for row in rows:
        print(*reversed(row))
    if options.output:
        with (options.output / "limits.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([("simulated", "seen"), *rows])
        facts = provenance(" ".join(["python -m benchmarks.limits", *sys.argv[1:]]))
        (options.output / "limits.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
