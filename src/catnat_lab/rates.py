"""How rates, and other hyperparameters, are searched: on seeds of their own, by the mean of what they come to."""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import create_trial

from catnat_lab.errors import UserError
from catnat_lab.experiment import Done, Experiment, Finished, Job, missing
from catnat_lab.studies import quiet

FURTHER_SEEDS = 1001  # the first one is 0; the final seeds are 1, 2, ...
SEARCHING = ("coarse", "refined")


def search_seeds(count: int) -> list[int]:
    return [0, *range(FURTHER_SEEDS, FURTHER_SEEDS + count - 1)]


def rounded(rate: float) -> float:
    """To the three digits that a rate is tried with."""
    return float(f"{rate:.3g}")


def by_rate(trials: Iterable[Finished], measure: str | None = None) -> dict[float, float]:
    """From the smallest rate to the largest: the mean over seeds of the trials' values, or of one of their measures."""
    found: dict[float, list[float]] = {}
    for trial in sorted(trials, key=lambda trial: trial.config["rate"]):
        found.setdefault(trial.config["rate"], []).append(trial.value if measure is None else trial.metrics[measure])
    return {rate: fmean(values) for rate, values in found.items()}


def best_rate(trials: Iterable[Finished]) -> float:
    means = by_rate(trials)
    if not means:
        raise UserError("no run of a search has been finished, so no rate can be chosen")
    return min(means, key=means.__getitem__)


class RateSearch(Experiment):
    """A coarse grid of rates, widened while the best is at its end; a refined one around the best; the final seeds.

    The plan has ``rates``, by how many to ``widen`` either end, how many to refine by, the ``ratio`` between those,
    ``search_seeds`` and ``seeds``.
    """

    def best(self, done: Done, cell: str, *stages: str) -> float | None:
        """None where all jobs of the search have failed: the study goes on without the cell."""
        found = [trial for stage in stages for trial in done.finished(cell, stage=stage)]
        return best_rate(found) if found else None

    def tries(self, cell: str, stage: str, tried: Iterable[float]) -> list[Job]:
        seeds = search_seeds(self.plan.search_seeds)
        return [Job(cell, {"stage": stage, "rate": rate, "seed": s}) for rate in map(rounded, tried) for s in seeds]

    def coarse(self, cells: Iterable[str]) -> list[Job]:
        return [job for cell in cells for job in self.tries(cell, "coarse", self.plan.rates)]

    def wider(self, done: Done, cells: Iterable[str]) -> list[Job]:
        """The next rate beyond that end of the grid where a cell's best is, unless enough were added."""
        low, high = rounded(min(self.plan.rates)), rounded(max(self.plan.rates))
        jobs = []
        for cell in cells:
            tried, best = list(by_rate(done.finished(cell, stage="coarse"))), self.best(done, cell, "coarse")
            begun = self.tries(cell, "coarse", (rate for rate in tried if not low <= rate <= high))
            if best is None or missing(done, begun):  # of a study that was killed some seeds of a rate are there
                jobs += begun
                continue
            if best == tried[0] and sum(rate < low for rate in tried) < self.plan.widen:
                jobs += self.tries(cell, "coarse", [best / 2])
            elif best == tried[-1] and sum(rate > high for rate in tried) < self.plan.widen:
                jobs += self.tries(cell, "coarse", [best * 2])
        return jobs

    def refined(self, done: Done, cells: Iterable[str]) -> list[Job]:
        # halves, because the power 0 is the coarse rate, which is known
        powers = [power - self.plan.refined // 2 + 0.5 for power in range(self.plan.refined)]
        jobs = []
        for cell in cells if powers else ():
            if (rate := self.best(done, cell, "coarse")) is not None:
                jobs += self.tries(cell, "refined", [rate * self.plan.ratio**power for power in powers])
        return jobs

    def final(self, done: Done, cell: str, searched: str) -> list[Job]:
        """The final seeds of a cell, at the best rate of one that was searched."""
        before = done.finished(cell, stage="final")  # a search that went on later changes no line of a table
        rate = before[0].config["rate"] if before else self.best(done, searched, *SEARCHING)
        seeds = () if rate is None else range(1, self.plan.seeds + 1)
        return [Job(cell, {"stage": "final", "rate": rate, "seed": seed}) for seed in seeds]


def proposed(
    cell: str, space: Mapping[str, BaseDistribution], fixed: Mapping[str, Any], tried: Sequence[Finished]
) -> Job:
    """What TPE would try next in a cell, given what came of what was tried: the same again for the same results."""
    seed = zlib.crc32(f"{cell} {len(tried)}".encode())
    with quiet():
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(constant_liar=True, seed=seed))
        for trial in tried:
            params = {name: trial.config[name] for name in space}
            study.add_trial(create_trial(value=trial.value, params=params, distributions=dict(space)))
        return Job(cell, {**fixed, **study.ask(dict(space)).params})
