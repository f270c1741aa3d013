"""Means, deviations, and Welch's t-test as the paper uses it.

Every function refuses a value that is not finite. A run that diverged is a finding to be told, not a number to be
averaged: count such runs and leave them out before, or rank the method as failed.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from catnat_lab.errors import UserError

ALPHA = 0.05  # the level of all tests
ENDS = (0.025, 0.975)  # the quantiles of all intervals
RESAMPLES = 20_000  # of a permutation test, where there are more: up to 8 values a side all are taken
Name = TypeVar("Name")


@dataclass(frozen=True)
class Summary:
    """Mean, sample standard deviation (n - 1) and count. One value alone has a deviation of NaN."""

    mean: float
    std: float
    count: int


@dataclass(frozen=True)
class Comparison:
    """A mean minus another one: Welch's 95% interval of that difference, Cohen's d, and the p-value of Welch's test."""

    difference: float
    low: float
    high: float
    effect: float
    p: float


Standing = Literal["ahead", "behind", "tied"]


def standing(difference: float, p: float, lower_is_better: bool, level: float = ALPHA) -> Standing:
    """The one rule for what a difference says: too little to tell, or which way it goes."""
    if p >= level:
        return "tied"
    return "ahead" if (difference < 0) == lower_is_better else "behind"


def summarize(values: Sequence[float], *, least: int = 1, name: str = "values") -> Summary:
    """Mean, standard deviation and count of so many finite values, at least."""
    numbers = _finite(values, least, name).tolist()
    return Summary(mean(numbers), stdev(numbers) if len(numbers) > 1 else math.nan, len(numbers))


def welch_from_summaries(a: Summary, b: Summary) -> float:
    """Two-sided p-value of Welch's t-test that two samples, of at least two values each, have the same mean.

    It needs no more than a paper prints. Without any spread on either side the test is undefined; then p is 1 for equal
    means and 0 for different ones.
    """
    # As scipy's ttest_ind, which would warn of values that are nearly the same: our sums are exact.
    for summary in (a, b):
        if summary.count < 2:
            raise UserError(f"Welch's test needs at least 2 values a side; got {summary}")
        if not (math.isfinite(summary.mean) and math.isfinite(summary.std) and summary.std >= 0):
            raise UserError(f"Welch's test needs a finite mean and a finite deviation of at least 0; got {summary}")
    if a.std == b.std == 0:
        return 1.0 if a.mean == b.mean else 0.0
    test = stats.ttest_ind_from_stats(a.mean, a.std, a.count, b.mean, b.std, b.count, equal_var=False)
    return float(test.pvalue)


def paired(a: Sequence[float], b: Sequence[float]) -> float:
    """The two-sided p-value of a paired t-test: for runs that share all but what is compared, seed by seed."""
    first, second = _finite(a, 2), _finite(b, 2)
    if len(first) != len(second):
        raise UserError(f"a paired test needs as many values on both sides; got {len(first)} and {len(second)}")
    if not np.ptp(first - second):
        return 1.0 if first[0] == second[0] else 0.0
    return float(stats.ttest_rel(first, second).pvalue)


def bold(groups: Mapping[str, Sequence[float]], lower_is_better: bool = True) -> set[str]:
    """The best-performing groups: the best mean, and all that Welch's test cannot tell from it."""
    best = _best(groups, lower_is_better)
    return {name for name in groups if name == best or compare(groups[name], groups[best]).p >= ALPHA}


def best_in_pairs(groups: Mapping[str, Sequence[float]], lower_is_better: bool = True) -> str | None:
    """The group with the best mean if paired tests tell every other from it, corrected by Holm; else None."""
    best = _best(groups, lower_is_better)
    pvalues = holm([paired(values, groups[best]) for name, values in groups.items() if name != best])
    return best if all(p < ALPHA for p in pvalues) else None


def _best(groups: Mapping[str, Sequence[float]], lower_is_better: bool) -> str:
    means = {name: summarize(values, least=2, name=name).mean for name, values in groups.items()}
    return (min if lower_is_better else max)(means, key=means.__getitem__)


def compare(a: Sequence[float], b: Sequence[float]) -> Comparison:
    """The mean of ``a`` less that of ``b``, at least two values each.

    Without any spread the interval is one point and the effect infinite.
    """
    first, second = summarize(a, least=2), summarize(b, least=2)
    difference, p = first.mean - second.mean, welch_from_summaries(first, second)
    parts = [x.std**2 / x.count for x in (first, second)]
    if not sum(parts):
        effect = math.copysign(math.inf, difference) if difference else 0.0
        return Comparison(difference, difference, difference, effect, p)
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (first.count - 1) + parts[1] ** 2 / (second.count - 1))
    reach = float(stats.t.ppf(ENDS[1], freedom)) * math.sqrt(sum(parts))
    effect = difference / math.sqrt((first.std**2 + second.std**2) / 2)
    return Comparison(difference, difference - reach, difference + reach, effect, p)


def compare_ranks(a: Sequence[float], b: Sequence[float], lower_is_better: bool) -> Comparison:
    """By ranks, where runs diverged: one that did is last. A permutation test of their sum, exact for few values.

    There is no difference of means, so it is infinite, with the sign of the difference of the mean ranks.
    """
    worst = math.inf if lower_is_better else -math.inf
    values = [value if math.isfinite(value) else worst for value in (*a, *b)]
    ranks = stats.rankdata(values)

    def gap(first: NDArray[Any], second: NDArray[Any], axis: int) -> Any:
        return first.mean(axis) - second.mean(axis)

    sides = (ranks[: len(a)], ranks[len(a) :])
    found = stats.permutation_test(sides, gap, vectorized=True, n_resamples=RESAMPLES, rng=0)
    infinite = math.copysign(math.inf, found.statistic)
    return Comparison(infinite, -math.inf, math.inf, infinite, float(found.pvalue))


def compare_runs(a: Sequence[float], b: Sequence[float], lower_is_better: bool) -> Comparison:
    """By Welch's test of the means; where a run of either side diverged, by ranks."""
    if np.isfinite([*a, *b]).all():
        return compare(a, b)
    return compare_ranks(a, b, lower_is_better)


def needed(effect: float, power: float = 0.8, most: int = 1000, level: float = ALPHA) -> int:
    """How many values a side, at most, Welch's test needs to see a difference of so many deviations that often."""

    def seen(count: int) -> float:
        freedom = 2 * (count - 1)
        return float(stats.nct.sf(stats.t.ppf(1 - level / 2, freedom), freedom, abs(effect) * math.sqrt(count / 2)))

    return 2 + bisect_left(range(2, most), power, key=seen)


def compare_all(pairs: Mapping[Name, tuple[Sequence[float], Sequence[float]]]) -> dict[Name, Comparison]:
    """Every pair, with p-values corrected by Holm over all of them."""
    return corrected({name: compare(*pair) for name, pair in pairs.items()})


def corrected(found: Mapping[Name, Comparison], looks: int = 1) -> dict[Name, Comparison]:
    """P-values by Holm over all of these, times how often they were looked at while runs were added (Bonferroni)."""
    pvalues = holm([each.p for each in found.values()])
    return {name: replace(each, p=min(1.0, looks * p)) for (name, each), p in zip(found.items(), pvalues, strict=True)}


def holm(pvalues: Sequence[float]) -> list[float]:
    """P-values adjusted by Holm's method, in the order given: compare each with alpha as it is."""
    numbers = _finite(pvalues, 0)
    if not ((numbers >= 0) & (numbers <= 1)).all():
        raise UserError(f"p-values must lie in [0, 1]; got {numbers.tolist()}")
    order, adjusted = numbers.argsort(), np.zeros_like(numbers)
    scaled = np.minimum(1.0, np.arange(len(numbers), 0, -1) * numbers[order])
    adjusted[order] = np.maximum.accumulate(scaled)  # a larger p-value never comes to less than a smaller one
    return [float(number) for number in adjusted]


def interquartile_mean(values: ArrayLike) -> Any:
    """The mean of the middle half, over the last axis: a quarter, rounded down, is left out at either end."""
    return stats.trim_mean(_finite(values, 1), 0.25, axis=-1)


def bootstrap(values: ArrayLike, *, less: ArrayLike | None = None, draws: int = 2000) -> tuple[Any, Any]:
    """The percentile interval of the interquartile mean of samples that are drawn again, always the same ones.

    With ``less``, of that of ``values`` less that of these, each drawn again by itself.
    """
    random = np.random.default_rng(0)
    samples = [_finite(sample, 2) for sample in (values, less) if sample is not None]
    found = [interquartile_mean(random.choice(sample, (draws, sample.shape[-1]), axis=-1)) for sample in samples]
    low, high = np.quantile(found[0] - sum(found[1:]), ENDS, axis=-1)
    return low, high


def improvement(pairs: Sequence[tuple[ArrayLike, ArrayLike]], *, draws: int = 2000) -> tuple[float, float, float]:
    """How probably a run of the first scores higher than one of the second, the mean over pairs; and its interval.

    A tie counts half. The interval is the percentiles of a stratified bootstrap: every sample is drawn again by itself.
    Below about ten runs it is too narrow, and it has no width where all runs of one beat all of the other.
    """
    if not pairs:
        raise UserError("there is no pair to compare")
    random, point, drawn = np.random.default_rng(0), 0.0, np.zeros(draws)
    for a, b in pairs:
        first, second = _finite(a, 2, "first"), _finite(b, 2, "second")
        wins = (1 + np.sign(first[:, None] - second)) / 2
        point += wins.mean() / len(pairs)
        # how often each run is drawn
        times = [random.multinomial(n, np.full(n, 1 / n), draws) / n for n in wins.shape]
        drawn += ((times[0] @ wins) * times[1]).sum(-1) / len(pairs)
    low, high = np.quantile(drawn, ENDS)
    return float(point), float(low), float(high)


def _finite(values: ArrayLike, least: int, name: str = "values") -> NDArray[np.float64]:
    numbers = np.asarray(values, np.float64)
    for place in np.argwhere(~np.isfinite(numbers)):
        told = f"{name}[{', '.join(map(str, place))}] is {numbers[tuple(place)]} (a run that diverged?)"
        raise UserError(f"{name} must be finite; {told}")
    if numbers.shape[-1] < least:
        raise UserError(f"{name} must hold at least {least} numbers; got {numbers.shape[-1]}")
    return numbers
