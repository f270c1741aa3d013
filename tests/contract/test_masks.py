"""Masks against the oracle: one class left, all but one left, and anything between."""

from __future__ import annotations

import numpy as np
import pytest

from catnat import Parameterization, Tree
from tests.contract.backends import BACKENDS, ORACLE, PUBLIC, Backend, asked
from tests.contract.cases import Case, grid, inside_scores, masks_for, scores_for
from tests.contract.judge import assert_close
from tests.contract.test_laws import assert_fits, wide

ROWS = 9
SINGLE = [backend for backend in PUBLIC if backend.dtype is np.float32]  # where digits are short; shapes have none
everywhere = pytest.mark.parametrize("case", grid(1, 2, 6, 33, 100), ids=str)


@everywhere
def test_values_and_gradients_agree_with_the_oracle(case: Case) -> None:
    pi, mask = case.pi, masks_for(case.pi, ROWS)
    for backend in asked(BACKENDS, case):
        scores = inside_scores(pi, ROWS, backend.dtype)
        found = backend.log_catnat(scores, pi, mask)
        assert (np.isneginf(found) == ~mask).all()
        assert_close(found, ORACLE.log_catnat(wide(scores), pi, mask), 2 * backend.tolerance, backend.name)
        upstream = np.where(mask, np.random.default_rng(0).normal(size=mask.shape), 0.0).astype(backend.dtype)
        expected = ORACLE.gradient(wide(scores), wide(upstream), pi, mask)
        scale = np.broadcast_to(
            10 * np.abs(upstream).sum(-1, keepdims=True), expected.shape
        )  # slopes are below 10 here
        assert_close(backend.gradient(scores, upstream, pi, mask), expected, backend.tolerance, backend.name, scale)


@everywhere
def test_summaries_agree_with_the_oracle(case: Case) -> None:
    pi, mask = case.pi, masks_for(case.pi, ROWS)
    index = mask.argmax(-1)
    for backend in asked(PUBLIC, case):
        p, q = (inside_scores(pi, ROWS, backend.dtype, seed) for seed in (0, 1))
        masked, slack = (pi, mask), 5 * backend.tolerance
        assert_close(backend.log_prob(p, index, *masked), ORACLE.log_prob(wide(p), index, *masked), slack, backend.name)
        assert_close(backend.entropy(p, *masked), ORACLE.entropy(wide(p), *masked), slack, backend.name)
        assert_close(backend.kl(p, q, *masked), ORACLE.kl(wide(p), wide(q), *masked), slack, backend.name)
        assert (backend.mode(p, *masked) == ORACLE.mode(wide(p), *masked)).all()


@everywhere
def test_a_mask_that_allows_everything_changes_nothing(case: Case) -> None:
    everything = np.ones((4, case.pi.num_classes), dtype=bool)
    for backend in asked(BACKENDS, case):
        scores = inside_scores(case.pi, 4, backend.dtype)
        found, free = backend.log_catnat(scores, case.pi, everything), backend.log_catnat(scores, case.pi)
        assert_close(found, free, 2 * backend.tolerance, backend.name)


@pytest.mark.parametrize("case", [c for c in grid(6, 33, 100) if "floor0" in c.name], ids=str)
def test_a_mask_on_scores_beyond_both_ends_leaves_a_distribution(case: Case) -> None:
    # with no floor, the allowed classes may have had no mass at all
    for backend in asked(BACKENDS, case):
        scores, mask = scores_for(case.pi, "scale 1e4", ROWS, backend.dtype), masks_for(case.pi, ROWS)
        total = np.exp(wide(backend.log_catnat(scores, case.pi, mask))).sum(-1)
        np.testing.assert_allclose(total, 1, atol=5 * backend.tolerance)


@pytest.mark.parametrize("case", grid(2, 6, 33), ids=str)
def test_samples_follow_the_probabilities(case: Case) -> None:
    mask = masks_for(case.pi, ROWS)[5]
    for backend in asked(PUBLIC, case):
        scores = inside_scores(case.pi, 1, backend.dtype)[0]
        p = np.exp(ORACLE.log_catnat(wide(scores), case.pi, mask))
        assert_fits(backend.counts(scores, case.pi, 20_000, mask), p)


@pytest.mark.parametrize("backend", SINGLE, ids=lambda b: b.name)
def test_one_mask_broadcasts_over_the_batch_and_one_row_over_masks(backend: Backend) -> None:
    pi = grid(6)[0].pi
    scores, masks = inside_scores(pi, ROWS, backend.dtype), masks_for(pi, ROWS)
    same_mask = backend.log_catnat(scores, pi, masks[5])
    same_scores = backend.log_catnat(scores[:1], pi, masks)
    for row in range(ROWS):
        one, other = (backend.log_catnat(s, pi, m) for s, m in ((scores[row], masks[5]), (scores[0], masks[row])))
        assert_close(same_mask[row], one, backend.tolerance, backend.name)
        assert_close(same_scores[row], other, backend.tolerance, backend.name)


@pytest.mark.parametrize("backend", SINGLE, ids=lambda b: b.name)
def test_digits_survive_where_all_allowed_classes_are_improbable(backend: Backend) -> None:
    # every log p is below -100 here; the difference of two of them has few digits left in float32
    pi = Parameterization(16, "sigmoid", Tree.chain(16))
    scores = np.random.default_rng(0).normal(size=(50, 15)).astype(backend.dtype) * 300
    mask = np.zeros((50, 16), dtype=bool)
    mask[:, [10, 12, 13]] = True
    expected = ORACLE.log_catnat(wide(scores), pi, mask)
    close = np.where(mask & (expected > -50), expected, 0.0)
    found = np.where(mask & (expected > -50), backend.log_catnat(scores, pi, mask), 0.0)
    assert_close(found, close, 100 * backend.tolerance, backend.name)


@pytest.mark.parametrize("backend", SINGLE, ids=lambda b: b.name)
def test_no_score_leads_a_draw_to_a_forbidden_class(backend: Backend) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        pi = Parameterization(6, "natural")
        scores = rng.choice([np.inf, -np.inf, 0.0, 300.0], 5).astype(backend.dtype)
        mask = masks_for(pi, 6, int(rng.integers(100)))[rng.integers(6)]
        assert (backend.counts(scores, pi, 200, mask)[~mask] == 0).all(), (scores, mask)
