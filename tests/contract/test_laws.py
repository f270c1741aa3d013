"""What holds for every backend, the oracle included: one law a test, over trees and activations."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from catnat import Natural
from tests.contract.backends import BACKENDS, ORACLE, PUBLIC, asked, classes_below
from tests.contract.cases import SCORE_SETS, Case, grid, inside_scores, scores_for
from tests.contract.judge import assert_close, expected_gradient

everywhere = pytest.mark.parametrize("case", grid(1, 2, 6, 33, 100), ids=str)


def wide(array: np.ndarray) -> np.ndarray:
    """What a backend was given, for the oracle."""
    return array.astype(np.float64)


# -- probabilities -----------------------------------------------------------------------------------------------


@everywhere
def test_probabilities_sum_to_one(case: Case) -> None:
    for backend in asked(BACKENDS, case):
        for score_set in SCORE_SETS:
            p = np.exp(wide(backend.log_catnat(scores_for(case.pi, score_set, 5, backend.dtype), case.pi)))
            np.testing.assert_allclose(p.sum(-1), 1, rtol=0, atol=5 * backend.tolerance)


@everywhere
def test_log_prob_is_the_entry_of_the_row(case: Case) -> None:
    pi, index = case.pi, np.arange(12) * 7 % case.pi.num_classes
    for backend in asked(BACKENDS, case):
        for score_set in SCORE_SETS:
            scores = scores_for(pi, score_set, 12, backend.dtype)
            expected = ORACLE.log_catnat(wide(scores), pi)[np.arange(12), index]
            what = f"{backend.name}, {score_set}"
            assert_close(backend.log_prob(scores, index, pi), expected, backend.tolerance, what)


@everywhere
def test_log_prob_takes_leading_axes_of_samples_and_broadcasts(case: Case) -> None:
    pi = case.pi
    index = np.random.default_rng(0).integers(pi.num_classes, size=(4, 2, 3))
    for backend in asked(PUBLIC, case):
        scores = inside_scores(pi, 3, backend.dtype)
        rows = ORACLE.log_catnat(wide(scores), pi)
        expected = rows[np.arange(3), index]
        assert_close(backend.log_prob(scores, index, pi), expected, backend.tolerance, backend.name)
        one_row = rows[0, index]
        assert_close(backend.log_prob(scores[:1], index, pi), one_row, backend.tolerance, backend.name)
        assert_close(backend.log_prob(scores[0], index, pi), one_row, backend.tolerance, backend.name)


@everywhere
def test_log_prob_gradient_is_the_rows(case: Case) -> None:
    pi, index = case.pi, np.arange(12) * 5 % case.pi.num_classes
    for backend in asked(BACKENDS, case):
        scores = scores_for(pi, "scale 10", 12, backend.dtype)
        expected, scale = expected_gradient(wide(scores), np.eye(pi.num_classes)[index], pi)
        assert_close(backend.log_prob_gradient(scores, index, pi), expected, backend.tolerance, backend.name, scale)


@everywhere
def test_mode_is_a_likeliest_class(case: Case) -> None:
    for backend in asked(BACKENDS, case):
        for score_set in SCORE_SETS:
            scores = scores_for(case.pi, score_set, 20, backend.dtype)
            log_p = ORACLE.log_catnat(wide(scores), case.pi)
            chosen = np.take_along_axis(log_p, backend.mode(scores, case.pi)[:, None], -1)[:, 0]
            assert_close(chosen, log_p.max(-1), backend.tolerance, backend.name)  # any of several that are alike


@pytest.mark.parametrize("case", grid(2, 6, 33), ids=str)
def test_samples_follow_the_probabilities(case: Case) -> None:
    for backend in asked(PUBLIC, case):
        scores = inside_scores(case.pi, 1, backend.dtype)[0]
        p = np.exp(ORACLE.log_catnat(wide(scores), case.pi))
        assert_fits(backend.counts(scores, case.pi, 20_000), p)


def assert_fits(counts: np.ndarray, p: np.ndarray) -> None:
    """A chi-square test; it wants no rare cells, so the rare classes make one."""
    expected = p * counts.sum()
    rare = expected < 8
    assert (counts[p == 0] == 0).all()
    cells, expected = (np.append(values[~rare], values[rare].sum()) for values in (counts, expected))
    if len(cells) > 2:
        assert stats.chisquare(cells[expected > 0], expected[expected > 0]).pvalue > 1e-5


# -- summaries ---------------------------------------------------------------------------------------------------


@everywhere
def test_entropy_and_kl_agree_with_the_oracle(case: Case) -> None:
    for backend in asked(PUBLIC, case):
        for score_set in SCORE_SETS:
            p, q = (scores_for(case.pi, score_set, 5, backend.dtype, seed) for seed in (0, 1))
            what = f"{backend.name}, {score_set}"
            assert_close(backend.entropy(p, case.pi), ORACLE.entropy(wide(p), case.pi), backend.tolerance, what)
            assert_close(backend.kl(p, q, case.pi), ORACLE.kl(wide(p), wide(q), case.pi), backend.tolerance, what)
            assert_close(backend.kl(p, p, case.pi), np.zeros(5), backend.tolerance, what)


@everywhere
def test_reach_and_fisher_diagonal_agree_with_the_oracle(case: Case) -> None:
    pi = case.pi
    for backend in asked(PUBLIC, case):
        for score_set in SCORE_SETS:
            x = scores_for(pi, score_set, 5, backend.dtype)
            what = f"{backend.name}, {score_set}"
            assert_close(backend.reach(x, pi), ORACLE.reach(wide(x), pi), backend.tolerance, what)
            expected = ORACLE.fisher_diagonal(wide(x), pi)
            assert_close(backend.fisher_diagonal(x, pi), expected, backend.tolerance, what)


@everywhere
def test_entropy_kl_and_reach_obey_their_bounds(case: Case) -> None:
    pi = case.pi
    for backend in asked(BACKENDS, case):
        slack = 10 * backend.tolerance
        p, q = (scores_for(pi, "scale 1", 9, backend.dtype, seed) for seed in (0, 1))
        assert (backend.entropy(p, pi) >= 0).all()
        assert (backend.entropy(p, pi) <= np.log(pi.num_classes) + slack).all()
        assert (backend.kl(p, q, pi) >= -slack).all()
        mass_below = np.exp(wide(backend.log_catnat(p, pi))) @ classes_below(pi).T
        np.testing.assert_allclose(backend.reach(p, pi), mass_below, atol=slack)


@everywhere
def test_scores_from_probs_is_the_inverse_map(case: Case) -> None:
    pi = case.pi
    for backend in asked(BACKENDS, case):
        p = np.random.default_rng(0).dirichlet(np.full(pi.num_classes, 2.0), size=4).astype(backend.dtype)
        scores = backend.scores_from_probs(p, pi)
        assert_close(scores, ORACLE.scores_from_probs(wide(p), pi), 10 * backend.tolerance, backend.name)
        np.testing.assert_allclose(np.exp(backend.log_catnat(scores, pi)), p, atol=10 * backend.tolerance)


@everywhere
def test_scores_from_probs_of_a_certain_class(case: Case) -> None:
    pi = case.pi
    ends = isinstance(pi.activation, Natural) and pi.activation.tail == 0  # then every score is finite
    floor = pi.activation.floor if ends else 0.0
    never_reached = classes_below(pi).T == 0
    for backend in asked(BACKENDS, case):
        certain = np.eye(pi.num_classes, dtype=backend.dtype)
        scores = backend.scores_from_probs(certain, pi)
        assert (scores[never_reached] == 0).all()
        assert np.isfinite(scores).all() == (ends or pi.num_classes == 1)
        found = np.exp(backend.log_catnat(scores, pi))
        np.testing.assert_allclose(found, certain, atol=pi.tree.depth * floor + 10 * backend.tolerance)
