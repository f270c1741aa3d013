"""Summaries and Welch's test agree with numpy and scipy, and their edges are settled."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from catnat_lab.errors import UserError
from catnat_lab.stats import (
    Summary,
    best_in_pairs,
    bold,
    bootstrap,
    compare,
    compare_all,
    compare_ranks,
    holm,
    improvement,
    interquartile_mean,
    needed,
    paired,
    summarize,
    welch_from_summaries,
)

samples = st.lists(st.floats(-1e3, 1e3).map(lambda x: round(x, 3)), min_size=2, max_size=8)
GOOD, CLOSE, BAD = [1.0, 1.1, 0.9, 1.05], [1.02, 1.12, 0.95, 1.1], [2.0, 2.1, 1.9, 2.05]


@given(samples)
def test_a_summary_is_numpys(values: list[float]) -> None:
    summary = summarize(values)
    assert summary.count == len(values)
    assert math.isclose(summary.mean, np.mean(values), rel_tol=1e-9, abs_tol=1e-9)
    assert math.isclose(summary.std, np.std(values, ddof=1), rel_tol=1e-9, abs_tol=1e-9)


def test_equal_values_deviate_by_exactly_nothing_and_one_value_by_no_number() -> None:
    assert math.isnan(summarize([0.1]).std)
    assert summarize([0.1] * 7) == Summary(0.1, 0.0, 7)


@given(samples, samples)
@pytest.mark.filterwarnings("ignore:Precision loss:RuntimeWarning")
def test_welch_is_scipys_symmetric_and_the_same_from_summaries(a: list[float], b: list[float]) -> None:
    p = compare(a, b).p
    assert 0 <= p <= 1
    assert math.isclose(p, compare(b, a).p, rel_tol=1e-9, abs_tol=1e-12)
    assert p == welch_from_summaries(summarize(a), summarize(b))
    if summarize(a).std or summarize(b).std:
        assert math.isclose(p, scipy_stats.ttest_ind(a, b, equal_var=False).pvalue, rel_tol=1e-6, abs_tol=1e-9)


@pytest.mark.parametrize(("other", "p"), [([1.0, 1.0, 1.0], 1.0), ([1.5, 1.5], 0.0)])
def test_without_spread_the_means_decide(other: list[float], p: float) -> None:
    assert compare([1.0, 1.0], other).p == p
    assert welch_from_summaries(summarize([1.0, 1.0]), summarize(other)) == p


def test_bold_is_the_best_and_what_cannot_be_told_from_it() -> None:
    groups = {"bad": BAD, "good": GOOD, "close": CLOSE}
    assert bold(groups) == {"good", "close"}
    assert bold(groups, lower_is_better=False) == {"bad"}
    assert bold({"good": GOOD, "bad": BAD}) == {"good"}


def test_a_comparison_is_welchs_with_cohens_d_and_holms_correction() -> None:
    found = compare_all({"close": (CLOSE, GOOD), "bad": (BAD, GOOD), "same": (GOOD, GOOD)})
    raw = [compare(CLOSE, GOOD).p, compare(BAD, GOOD).p, 1.0]
    assert [each.p for each in found.values()] == holm(raw) and found["bad"].p == pytest.approx(3 * raw[1])
    bad = found["bad"]
    known = scipy_stats.ttest_ind(BAD, GOOD, equal_var=False).confidence_interval()
    assert bad.difference == pytest.approx(1.0) and (bad.low, bad.high) == pytest.approx(known)
    pooled = math.sqrt((np.var(BAD, ddof=1) + np.var(GOOD, ddof=1)) / 2)
    assert bad.effect == pytest.approx(1.0 / pooled) and compare(GOOD, BAD).effect == -bad.effect
    flat = compare([2.0, 2.0], [1.0, 1.0])
    assert (flat.low, flat.high, flat.effect, flat.p) == (1.0, 1.0, math.inf, 0.0)
    assert compare([1.0, 1.0], [1.0, 1.0]).effect == 0.0


def test_differences_have_intervals() -> None:
    """Welch's excludes 0 just where the test says so; the bootstrap's moves with the values and has their width."""
    random = np.random.default_rng(1)
    for shift in np.linspace(0.2, 1.2, 11):
        a, b = random.normal(size=30) + shift, 2 * random.normal(size=20)
        found = compare(a, b)
        assert (found.p < 0.05) == (not found.low < 0 < found.high)
        assert (found.low + found.high) / 2 == pytest.approx(a.mean() - b.mean())
    a, b = random.normal(size=200), random.normal(size=200)
    low, high = bootstrap(a + 3, less=b)
    again = bootstrap(a, less=b)
    middle = interquartile_mean(a) - interquartile_mean(b)
    assert (low - 3, high - 3) == pytest.approx(again) and again[0] < middle < again[1]
    spread = 1.09 * (2 / 200) ** 0.5  # of a normal sample's middle half, a little wider than that of its mean
    assert high - low == pytest.approx(2 * 1.96 * spread, rel=0.15)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_only_raises_keeps_the_order_and_lies_below_bonferroni(pvalues: list[float]) -> None:
    adjusted = holm(pvalues)
    for p, q in zip(pvalues, adjusted, strict=True):
        assert p <= q <= min(1.0, p * len(pvalues)) or math.isclose(q, min(1.0, p * len(pvalues)))
    order = sorted(range(len(pvalues)), key=lambda i: pvalues[i])
    assert [adjusted[i] for i in order] == sorted(adjusted)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_run_that_diverged_is_refused_by_name_and_place(bad: float) -> None:
    message = rf"\[1\] is {bad} \(a run that diverged\?\)"
    for call in (
        lambda: summarize([1.0, bad]),
        lambda: compare([1.0, bad], GOOD).p,
        lambda: compare(GOOD, [1.0, bad]).p,
        lambda: compare(GOOD, [1.0, bad]),
        lambda: bold({"good": GOOD, "bad": [1.0, bad]}),
        lambda: holm([0.5, bad]),
    ):
        with pytest.raises(UserError, match=message):
            call()
    with pytest.raises(UserError, match="finite"):
        welch_from_summaries(Summary(bad, 1.0, 5), summarize(GOOD))


def test_too_little_to_compare_is_refused() -> None:
    for call in (
        lambda: compare([1.0], GOOD).p,
        lambda: compare(GOOD, []).p,
        lambda: welch_from_summaries(Summary(1.0, 0.1, 1), summarize(GOOD)),
        lambda: bold({"good": GOOD, "one": [1.0]}),
        lambda: compare([1.0], GOOD),
    ):
        with pytest.raises(UserError, match="at least 2"):
            call()
    with pytest.raises(UserError, match="at least 1"):
        summarize([])
    with pytest.raises(UserError, match=r"\[0, 1\]"):
        holm([1.5])


def test_a_paired_test_is_scipys_and_sees_what_seeds_hide():
    rng = np.random.default_rng(0)
    seeds = rng.normal(size=10)
    a, b = list(seeds), list(seeds + 0.1 + 0.02 * rng.normal(size=10))
    assert paired(a, b) == pytest.approx(scipy_stats.ttest_rel(a, b).pvalue)
    assert paired(a, b) < 1e-4 < 0.5 < compare(a, b).p
    assert paired(a, a) == 1.0 and paired([0.0, 1.0], [2.0, 3.0]) == 0.0
    with pytest.raises(UserError, match="as many values on both sides; got 10 and 9"):
        paired(a, b[:-1])


def test_the_best_in_pairs_beats_every_other_after_correction():
    rng = np.random.default_rng(1)
    seeds = rng.normal(size=10)
    near = list(seeds + 0.02 * rng.normal(size=10))
    groups = {"low": list(seeds - 0.1), "high": list(seeds + 0.2 + 0.1 * rng.normal(size=10)), "near": near}
    assert best_in_pairs(groups) == "low"
    assert best_in_pairs({"a": list(seeds), "b": near}) is None
    assert best_in_pairs({name: [-v for v in values] for name, values in groups.items()}, False) == "low"
    # p is 0.03 against each of two rivals: alone that is enough, with two it is not
    one = [0.0] * 4
    rival = [0.1, 0.2, 0.4, 0.25]
    assert 0.025 < paired(one, rival) < 0.05
    assert best_in_pairs({"one": one, "rival": rival}) == "one"
    assert best_in_pairs({"one": one, "rival": rival, "twin": list(rival)}) is None


# ---------------------------------------------------------------- many seeds


def test_the_probability_of_improvement_is_mann_and_whitneys_and_a_mean_over_games() -> None:
    random = np.random.default_rng(5)
    a, b, c = random.normal(0.4, 1, 30), random.normal(0, 1, 40), random.normal(3, 1, 20)
    a[:5] = b[:5]  # ties
    point, low, high = improvement([(a, b)])
    assert point == pytest.approx(scipy_stats.mannwhitneyu(a, b).statistic / (30 * 40))
    assert low < point < high and improvement([(b, a)])[0] == pytest.approx(1 - point)
    assert improvement([(a, b), (c, b)])[0] == pytest.approx((point + improvement([(c, b)])[0]) / 2)
    assert improvement([([3, 4], [1, 2])]) == (1, 1, 1) and improvement([([1, 1], [1, 1])]) == (0.5, 0.5, 0.5)
    for bad in ([], [([1.0], [1, 2])], [([1, math.nan], [1, 2])]):
        with pytest.raises(UserError):
            improvement(bad)


def test_its_interval_is_scipys_and_narrower_over_games() -> None:
    random = np.random.default_rng(7)
    a, b = random.normal(0.4, 1, 30), random.normal(0, 1, 40)

    def share(first: np.ndarray, second: np.ndarray, axis: int) -> np.ndarray:
        return (np.moveaxis(first, axis, -1)[..., :, None] > np.moveaxis(second, axis, -1)[..., None, :]).mean((-2, -1))

    known = scipy_stats.bootstrap((a, b), share, n_resamples=4000, method="percentile", rng=np.random.default_rng(8))
    _, low, high = improvement([(a, b)], draws=4000)
    assert (low, high) == pytest.approx(known.confidence_interval, abs=0.012)
    _, both_low, both_high = improvement([(a, b)] * 2, draws=4000)  # each is drawn by itself
    assert both_high - both_low == pytest.approx((high - low) / math.sqrt(2), rel=0.1)


def test_the_interquartile_mean_leaves_out_a_quarter_at_either_end() -> None:
    assert interquartile_mean([1000.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -1000.0]) == 3.5
    assert interquartile_mean([1.0, 2.0, 6.0]) == 3.0  # a quarter of three is none
    with pytest.raises(UserError):
        interquartile_mean([1.0, math.nan])


@given(st.lists(st.floats(-9, 9), min_size=9, max_size=9, unique=True), st.booleans())
def test_ranks_are_compared_as_scipy_does_where_all_differ(values: list[float], lower: bool) -> None:
    a, b = values[:4], values[4:]
    found = compare_ranks(a, b, lower)
    exact = scipy_stats.mannwhitneyu(a, b, method="exact")
    assert found.p == pytest.approx(min(1, exact.pvalue))
    assert (found.difference > 0) == (exact.statistic >= 10) and found.high == math.inf


def test_a_run_that_diverged_is_the_last_whatever_it_says() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        assert compare_ranks([*GOOD, bad], BAD, True) == compare_ranks([*GOOD, 9.0], BAD, True)
        assert compare_ranks([*GOOD, bad], BAD, False) == compare_ranks([*GOOD, -9.0], BAD, False)


@pytest.mark.parametrize("effect", [0.5, -1.0, 2.0])
def test_as_many_runs_as_are_needed_see_a_difference_four_times_of_five(effect: float) -> None:
    random, count = np.random.default_rng(0), needed(effect)
    a, b = random.normal(effect, 1, (20_000, count)), random.normal(0, 1, (20_000, count))
    seen = (scipy_stats.ttest_ind(a, b, axis=-1, equal_var=False).pvalue < 0.05).mean()
    assert 0.78 < seen < 0.85 if count > 10 else 0.75 < seen < 0.9
    assert needed(0.0, most=50) == needed(0.01, most=50) == 50
