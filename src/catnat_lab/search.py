"""How rates, and other settings, are searched: on seeds of their own, before the final runs.

Usually one search is shared by all final seeds of a cell: a coarse grid of rates, widened while the best is at its end,
and a refined one around the best, all judged by the mean over the search seeds. A plan with ``own_search`` has every
final seed search for itself, on one seed: then the luck of a search is among what makes the final runs differ.
"""

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import create_trial

from catnat_lab.errors import UserError
from catnat_lab.experiment import Config, Done, Experiment, Finished, Job, missing
from catnat_lab.studies import quiet

OWN = 1000  # final seed i has its own search with seed 1000 + i
FURTHER_SEEDS = 1001  # of a shared search: the first one is 0; the final seeds are 1, 2, ...
SEARCHING = ("coarse", "refined")
NOT_SETTINGS = ("stage", "seed", "trial")  # in the configuration of a run


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


class Round(NamedTuple):
    """The seeds of one search, and the final ones that train at what it finds."""

    searched: tuple[int, ...]
    final: tuple[int, ...]


class RateSearch(Experiment):
    """The stages of a search, each of which follows from what is done, and the final seeds.

    The plan has ``rates``, by how many to ``widen`` either end, and ``seeds``; of a shared search also
    ``search_seeds``, and perhaps how many rates to refine by and the ``ratio`` between those.
    """

    searching: ClassVar[tuple[str, ...]] = SEARCHING  # stages; the first is the grid
    beyond: ClassVar[str] = "coarse"  # the stage of rates that the grid grows by

    @property
    def rounds(self) -> list[Round]:
        final = tuple(range(1, 1 + self.plan.seeds))
        if self.plan.own_search:
            return [Round((OWN + seed,), (seed,)) for seed in final]
        return [Round(tuple(search_seeds(self.plan.search_seeds)), final)]

    @property
    def rates(self) -> Sequence[float]:
        """The grid, as it is tried."""
        return tuple(map(rounded, self.plan.rates))

    def next_rate(self, best: float, neighbour: float) -> float:
        """Beyond the end of a grid, away from its neighbour."""
        return rounded(best / 2 if best < neighbour else best * 2)

    def tried(self, done: Done, cell: str, one: Round, *stages: str) -> list[Finished]:
        """In an order that does not depend on what was finished first."""
        every = [run for stage in stages or self.searching for run in done.finished(cell, stage=stage)]
        found = [run for run in every if run.config["seed"] in one.searched]
        return sorted(found, key=lambda run: (run.config.get("trial", 0), run.config["rate"], run.config["seed"]))

    def tries(self, cell: str, stage: str, one: Round, tried: Iterable[float]) -> list[Job]:
        return [Job(cell, {"stage": stage, "rate": rate, "seed": seed}) for rate in tried for seed in one.searched]

    def coarse(self, cells: Iterable[str]) -> list[Job]:
        every = product(cells, self.rounds)
        return [job for cell, one in every for job in self.tries(cell, self.searching[0], one, self.rates)]

    def wider(self, done: Done, cells: Iterable[str]) -> list[Job]:
        """The next rate beyond that end of a search's grid where its best is, unless enough were added.

        Where every final seed has a search, each has a grid of its own: whether a shared one grew would be the luck
        of one end, and no test would see that.
        """
        low, high = min(self.rates), max(self.rates)
        jobs = []
        for cell, one in product(cells, self.rounds):
            means = by_rate(self.tried(done, cell, one, self.searching[0], self.beyond))
            rates = list(means)
            begun = self.tries(cell, self.beyond, one, (rate for rate in rates if not low <= rate <= high))
            if len(rates) < min(2, len(self.rates)) or missing(done, begun):  # some seeds of a rate, after a kill
                jobs += begun
                continue
            best = min(rates, key=means.__getitem__)
            if best == rates[0]:
                added, neighbour = sum(rate < low for rate in rates), rates[1] if rates[1:] else math.inf
            else:
                added, neighbour = sum(rate > high for rate in rates), rates[-2]
            rate = self.next_rate(best, neighbour)
            if best in (rates[0], rates[-1]) and added < self.plan.widen and not rates[0] <= rate <= rates[-1]:
                jobs += self.tries(cell, self.beyond, one, [rate])
        return jobs

    def refined(self, done: Done, cells: Iterable[str]) -> list[Job]:
        # halves, because the power 0 is the coarse rate, which is known
        powers = [power - self.plan.refined // 2 + 0.5 for power in range(self.plan.refined)]
        jobs = []
        for cell, one in product(cells if powers else (), self.rounds):
            if found := self.chosen(done, cell, one, self.searching[0]):
                around = [rounded(found["rate"] * self.plan.ratio**power) for power in powers]
                jobs += self.tries(cell, "refined", one, around)
        return jobs

    def chosen(self, done: Done, cell: str, one: Round, *stages: str) -> Config | None:
        """The best of a search. None where all of it has failed, or, of a search of one seed, has diverged."""
        if not self.plan.has_search:
            return {"rate": self.plan.rates[0]}
        tried = self.tried(done, cell, one, *stages)
        if self.plan.own_search:
            tried = [run for run in tried if math.isfinite(run.value)]
            return min(tried, key=lambda run: run.value).config if tried else None
        return {"rate": best_rate(tried)} if tried else None

    def final(self, done: Done, cell: str, searched: str) -> list[Job]:
        """The final seeds of a cell, at the best of one that was searched."""
        jobs = []
        for one in self.rounds:
            before = [run for run in done.finished(cell, stage="final") if run.config["seed"] in one.final]
            # a search that went on later changes no line of a table
            chosen = before[0].config if before else self.chosen(done, searched, one)
            kept = {name: value for name, value in (chosen or {}).items() if name not in NOT_SETTINGS}
            jobs += [Job(cell, kept | {"stage": "final", "seed": seed}) for seed in one.final if chosen]
        return jobs


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
