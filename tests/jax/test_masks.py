"""Masks along the tree: digits that survive, NaN that forbids nothing, rows without any mass."""

from __future__ import annotations

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catnat.jax as cj
from catnat import Natural, Parameterization, Tree
from catnat_lab import reference
from tests.core.trees import KINDS, make_tree
from tests.thinned import thinned

KEY = jax.random.key(0)
CHAIN = Parameterization(16, "sigmoid", Tree.chain(16))


def improbable(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of a few hundred that make all allowed classes improbable, and two or three such classes."""
    rng = np.random.default_rng(seed)
    scores = rng.uniform(200, 700, 15).astype(np.float32)
    scores[-2:] = rng.normal(size=2)  # the last coins are even, and hardly ever tossed
    return scores, np.isin(np.arange(16), [13, 14, 15][seed % 2 :])


@pytest.mark.slow  # the contract has one such case
@pytest.mark.parametrize("seed", range(6))
def test_digits_survive_where_all_allowed_classes_are_improbable(seed: int) -> None:
    scores, mask = improbable(seed)
    wide = scores.astype(np.float64)
    expected = reference.log_catnat(wide, CHAIN, mask)
    assert reference.log_catnat(wide, CHAIN)[mask].max() < -1000
    np.testing.assert_allclose(cj.log_catnat(scores, CHAIN, mask=mask), expected, rtol=2e-6)
    index = np.flatnonzero(mask)
    np.testing.assert_allclose(cj.log_prob(scores, index, CHAIN, mask=mask), expected[index], rtol=2e-6)
    np.testing.assert_allclose(
        cj.entropy(scores, CHAIN, mask=mask), reference.entropy(wide, CHAIN, mask), rtol=2e-6, atol=1e-6
    )
    drawn = np.asarray(cj.sample(KEY, scores, CHAIN, mask=mask, sample_shape=(4000,)))
    shares = np.bincount(drawn, minlength=16) / 4000
    np.testing.assert_allclose(shares, np.exp(expected), atol=0.04)
    gradient = jax.grad(lambda s: cj.log_prob(s, index[0], CHAIN, mask=mask))(jnp.asarray(scores))
    both = np.eye(16)[index[0]] - np.exp(expected)
    np.testing.assert_allclose(gradient, reference.log_catnat_gradient(wide, both, CHAIN), atol=1e-5)


@pytest.mark.parametrize(("kind", "deep"), thinned(product(KINDS, [False, True]), every=7))
def test_a_nan_score_never_leads_to_a_forbidden_class(kind: str, deep: bool) -> None:
    size = 70 if deep else 4  # a chain of 70 is not walked level by level
    pi = Parameterization(size, "natural", make_tree(kind, size))
    rng = np.random.default_rng(0)
    sample = jax.jit(partial(cj.sample, parameterization=pi, sample_shape=(30,)))
    for node in {0, 1, size // 2, size - 2}:
        scores = np.zeros((20, size - 1), np.float32)
        scores[:, node] = np.nan
        mask = rng.random((20, size)) < 0.5
        mask[:, 0], mask[:, 1] = False, True
        drawn = sample(KEY, scores, mask=mask)
        allowed = np.append(mask, np.ones((20, 1), bool), -1)  # or no class, where a coin was NaN
        assert np.take_along_axis(allowed, np.asarray(drawn).T, -1).all()


def test_nan_scores_are_an_error_or_no_class() -> None:
    scores, mask = jnp.array([jnp.nan, 0.0, 0.0]), jnp.array([False, True, True, True])
    log_prob = jax.jit(lambda k: cj.log_prob(jnp.zeros(3), k, 4))
    for masking in ({}, {"mask": mask}):
        for draw in (
            lambda key, m=masking: cj.sample(key, scores, 4, sample_shape=(9,), **m),
            lambda key, m=masking: cj.draw(key, scores, 4, **m).sample,
            lambda key, m=masking: cj.mode(scores, 4, **m),
        ):
            with pytest.raises(ValueError, match="scores must not be NaN where a class is drawn from them"):
                draw(KEY)
            drawn = jax.jit(draw)(KEY)
            assert (drawn == 4).all() and np.isnan(log_prob(drawn)).all()
    # only the draws that meet it are lost
    rows = jnp.zeros((2, 3)).at[1, 2].set(jnp.nan)
    drawn = np.asarray(jax.jit(lambda key: cj.sample(key, rows, 4, sample_shape=(400,)))(KEY))
    assert set(drawn[:, 0]) == {0, 1, 2, 3} and set(drawn[:, 1]) == {0, 1, 4}


@pytest.mark.parametrize("kind", thinned(KINDS, every=5))
def test_allowed_classes_without_mass_share_it_evenly(kind: str) -> None:
    # every coin is certain, so all but one class have no mass
    pi = Parameterization(8, Natural(tail=0.0, floor=0.0), make_tree(kind, 8))
    scores = jnp.full(7, 9.0)
    alone = int(cj.mode(scores, pi))
    mask = np.arange(8) != alone
    p = cj.catnat(scores, pi, mask=mask)
    np.testing.assert_allclose(p.sum(), 1, rtol=1e-6)
    assert np.isfinite(jax.grad(lambda s: cj.entropy(s, pi, mask=mask))(scores)).all()
    assert np.isfinite(jax.jacrev(lambda s: cj.catnat(s, pi, mask=mask))(scores)).all()
    drawn = np.asarray(cj.sample(KEY, scores, pi, mask=mask, sample_shape=(3000,)))
    np.testing.assert_allclose(np.bincount(drawn, minlength=8) / 3000, p, atol=0.05)


def test_two_massless_sides_are_weighed_by_their_classes() -> None:
    # the root is certain of its left side and the node there of its own, so neither side of the root has any mass
    pi = Parameterization(4, "sigmoid")
    scores = jnp.array([-jnp.inf, -jnp.inf, 0.0])
    p = cj.catnat(scores, pi, mask=jnp.array([False, True, True, True]))
    np.testing.assert_allclose(p, [0, 1 / 3, 1 / 3, 1 / 3], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("size", thinned([300, 60]))
def test_a_long_chain_is_renormalised_like_a_short_one(size: int) -> None:
    pi = Parameterization(size, "natural", Tree.chain(size))
    rng = np.random.default_rng(0)
    scores, others = rng.normal(size=(2, 3, size - 1))
    mask = rng.random((3, size)) < 0.5
    with jax.enable_x64(True):
        expected = reference.log_catnat(scores, pi, mask)
        np.testing.assert_allclose(cj.log_catnat(scores, pi, mask=mask), expected, rtol=1e-10)
        np.testing.assert_allclose(cj.entropy(scores, pi, mask=mask), reference.entropy(scores, pi, mask), rtol=1e-10)
        log_q = reference.log_catnat(others, pi, mask)
        kl = np.where(mask, np.exp(expected) * (np.where(mask, expected, 0) - np.where(mask, log_q, 0)), 0).sum(-1)
        np.testing.assert_allclose(cj.kl_divergence(scores, others, pi, mask=mask), kl, rtol=1e-9)
    drawn = np.asarray(cj.sample(KEY, scores[0].astype(np.float32), pi, mask=mask[0], sample_shape=(4000,)))
    assert mask[0][drawn].all()
    shares = np.bincount(drawn, minlength=size) / 4000
    np.testing.assert_allclose(shares, np.exp(expected[0]), atol=0.04)
