"""Rates are compared on seeds of their own, by the mean of what they come to."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from catnat_lab.store import Finished

FURTHER_SEEDS = 1001  # the first one is 0; the final seeds are 1, 2, ...


def search_seeds(count: int) -> list[int]:
    """So many seeds that no final run has."""
    return [0, *range(FURTHER_SEEDS, FURTHER_SEEDS + count - 1)]


def by_rate(trials: Iterable[Finished], measure: str | None = None) -> dict[float, float]:
    """From the smallest rate to the largest: the mean over seeds of the trials' values, or of one of their measures."""
    found: dict[float, list[float]] = {}
    for trial in sorted(trials, key=lambda trial: trial.config["rate"]):
        found.setdefault(trial.config["rate"], []).append(trial.value if measure is None else trial.metrics[measure])
    return {rate: fmean(values) for rate, values in found.items()}


def best_rate(trials: Iterable[Finished]) -> float:
    """The one with the lowest mean."""
    means = by_rate(trials)
    return min(means, key=means.__getitem__)
