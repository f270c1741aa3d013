"""How rates, and other hyperparameters, are searched: on seeds of their own, by the mean of what they come to."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.trial import create_trial

from catnat_lab.errors import UserError
from catnat_lab.experiment import Finished, Job
from catnat_lab.studies import quiet

FURTHER_SEEDS = 1001  # the first one is 0; the final seeds are 1, 2, ...


def search_seeds(count: int) -> list[int]:
    return [0, *range(FURTHER_SEEDS, FURTHER_SEEDS + count - 1)]


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


def between(low: float, high: float) -> BaseDistribution:
    """Any rate from one to the other, on a logarithmic scale."""
    return FloatDistribution(low, high, log=True)


def proposed(
    cell: str,
    space: Mapping[str, BaseDistribution],
    fixed: Mapping[str, Any],
    tried: Sequence[Finished],
    count: int,
) -> list[Job]:
    """What TPE would try next in a cell, given what came of what was tried: the same again for the same results."""
    seed = zlib.crc32(f"{cell} {len(tried)}".encode())
    with quiet():
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(constant_liar=True, seed=seed))
        for trial in tried:
            params = {name: trial.config[name] for name in space}
            study.add_trial(create_trial(value=trial.value, params=params, distributions=dict(space)))
        return [Job(cell, {**fixed, **study.ask(dict(space)).params}) for _ in range(count)]
