"""catnat in distrax against the float64 reference: values, shapes and transformations."""

from __future__ import annotations

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import catnat
from catnat_lab import reference
from tests.integrations import oracle
from tests.integrations.oracle import ALLOWED, DATA, MASKS, PARAMETERIZATIONS, SPREAD, K
from tests.thinned import thinned

distrax = pytest.importorskip("distrax", reason="distrax is not installed")

from catnat.integrations.distrax import CatnatCategorical, OneHotCatnat  # noqa: E402

EACH_MASKED = pytest.mark.parametrize(
    ("pi", "mask"),
    thinned(product(PARAMETERIZATIONS.values(), MASKS.values()), quick=[(PARAMETERIZATIONS["chain"], ALLOWED)]),
    ids=list(map("-".join, product(PARAMETERIZATIONS, MASKS))),
)
CLASSES = np.array([0, 2, 3, 5])
SIGMOID = catnat.Parameterization(K, "sigmoid")


@pytest.fixture(autouse=True)
def doubles():
    with jax.enable_x64(True):
        yield


@EACH_MASKED
def test_values_and_gradients_are_the_references(pi, mask):
    x = oracle.draw_scores(4)
    ours = CatnatCategorical(jnp.asarray(x), pi, mask=mask)
    log_p = reference.log_catnat(x, pi, mask)
    assert_allclose(ours.log_prob(jnp.arange(K)[:, None]).T, log_p, atol=1e-12)
    assert_allclose(ours.logits, log_p, atol=1e-12)
    assert_allclose(ours.probs, np.exp(log_p), atol=1e-12)
    assert_allclose(ours.entropy(), reference.entropy(x, pi, mask), atol=1e-12)
    assert_allclose(ours.mode(), log_p.argmax(-1))
    assert_allclose(ours.cdf(2), np.exp(log_p)[:, :3].sum(-1), atol=1e-12)
    assert (ours.log_prob(jnp.array([-1, K, -2, 99])) == -jnp.inf).all()  # as in distrax
    found = jax.grad(lambda s: CatnatCategorical(s, pi, mask=mask).log_prob(CLASSES).sum())(jnp.asarray(x))
    assert_allclose(found, oracle.gradient(lambda s: reference.log_prob(s, CLASSES, pi, mask), x), atol=1e-8)
    found = jax.grad(lambda s: CatnatCategorical(s, pi, mask=mask).entropy().sum())(jnp.asarray(x))
    assert_allclose(found, oracle.gradient(lambda s: reference.entropy(s, pi, mask), x), atol=1e-8)


@EACH_MASKED
def test_kl_to_catnats_and_to_plain_ones(pi, mask):
    x, y = oracle.draw_scores(4), oracle.draw_scores(4, seed=1)
    p, q = CatnatCategorical(jnp.asarray(x), pi, mask=mask), CatnatCategorical(jnp.asarray(y), K, mask=mask)
    log_p = reference.log_catnat(x, pi, mask)
    log_q = reference.log_catnat(y, PARAMETERIZATIONS["natural"], mask)
    for other in (q, distrax.Categorical(logits=log_q)):
        assert_allclose(p.kl_divergence(other), oracle.kl(log_p, log_q), atol=1e-9)
        assert_allclose(other.kl_divergence(p), oracle.kl(log_q, log_p), atol=1e-9)
        assert_allclose(p.cross_entropy(other), reference.entropy(x, pi, mask) + oracle.kl(log_p, log_q), atol=1e-9)
    found = jax.grad(lambda s: CatnatCategorical(s, pi, mask=mask).kl_divergence(q).sum())(jnp.asarray(x))
    exact = oracle.gradient(lambda s: oracle.kl(reference.log_catnat(s, pi, mask), log_q), x)
    assert_allclose(found, exact, atol=1e-8)


@pytest.mark.parametrize(
    ("batch", "mask"),
    thinned(product([(), (3,), (2, 3)], MASKS.values()), quick=[((2, 3), ALLOWED)]),
)
def test_shapes_and_indexing(batch, mask):
    ours = CatnatCategorical(jnp.asarray(oracle.draw_scores(*batch)), SIGMOID, mask=mask)
    assert (ours.batch_shape, ours.event_shape, ours.num_categories) == (batch, (), K)
    for shape in ((), (4, 5)):
        drawn, log_p = ours.sample_and_log_prob(seed=1, sample_shape=shape)
        assert drawn.shape == log_p.shape == (*shape, *batch)
        assert_allclose(log_p, ours.log_prob(drawn))
    for index in (-1, (Ellipsis, None, 0)) if batch else ((), ...):
        part = ours[index]
        assert type(part) is CatnatCategorical and part.catnat.parameterization == SIGMOID
        assert_allclose(part.log_prob(2), ours.log_prob(2)[index])
        assert_allclose(part.entropy(), ours.entropy()[index])
    with pytest.raises(IndexError):
        ours[(0,) * (len(batch) + 1)]


@pytest.mark.parametrize("mask", thinned(MASKS.values(), quick=[ALLOWED]), ids=MASKS)
def test_it_goes_through_jit_and_vmap(mask):
    x = jnp.asarray(oracle.draw_scores(4))
    ours = CatnatCategorical(x, SIGMOID, mask=mask)
    expected = ours.log_prob(CLASSES)
    make = lambda s: CatnatCategorical(s, SIGMOID, mask=mask)  # noqa: E731
    assert_allclose(jax.jit(lambda d, k: d.log_prob(k))(ours, CLASSES), expected)
    assert_allclose(jax.vmap(lambda d, k: d.log_prob(k))(ours, CLASSES), expected)
    assert_allclose(jax.jit(make)(x).entropy(), ours.entropy())
    made = jax.vmap(make)(x)
    assert isinstance(made, CatnatCategorical)
    assert_allclose(made.log_prob(CLASSES), expected)


@pytest.mark.parametrize("pi", thinned(PARAMETERIZATIONS.values(), 2), ids=PARAMETERIZATIONS)
def test_the_scores_are_the_leaf_that_gradients_and_maps_act_on(pi):
    x = oracle.draw_scores(4)
    ours = CatnatCategorical(jnp.asarray(x), pi)
    (leaf,) = jax.tree.leaves(ours)
    assert leaf is ours.scores
    exact = oracle.gradient(lambda s: reference.log_prob(s, CLASSES, pi), x)
    of = lambda d: d.log_prob(CLASSES).sum()  # noqa: E731
    for found in (jax.grad(of)(ours), jax.jit(jax.grad(of))(ours)):
        assert_allclose(found.scores, exact, atol=1e-8)
    found = jax.vmap(jax.grad(lambda d, k: d.log_prob(k)))(ours, CLASSES)
    assert_allclose(found.scores, exact, atol=1e-8)
    stepped = jax.tree.map(lambda s, g: s - 0.1 * g, ours, found)  # what an optimiser does
    assert_allclose(stepped.logits, reference.log_catnat(x - 0.1 * exact, pi), atol=1e-8)
    assert_allclose(jax.jit(lambda d: d)(stepped).log_prob(CLASSES), stepped.log_prob(CLASSES), atol=1e-12)


def test_the_gradient_goes_past_a_mask():
    x = oracle.draw_scores(4)
    ours = CatnatCategorical(jnp.asarray(x), K, mask=ALLOWED)
    found = jax.grad(lambda d: d.entropy().sum(), allow_int=True)(ours)
    pi = PARAMETERIZATIONS["natural"]
    assert_allclose(found.scores, oracle.gradient(lambda s: reference.entropy(s, pi, ALLOWED), x), atol=1e-8)


def test_kinds_of_class_ids_and_what_is_none():
    ours = CatnatCategorical(jnp.asarray(oracle.draw_scores(4)), K, dtype=float)
    drawn = ours.sample(seed=0, sample_shape=7)
    assert (drawn.dtype, ours.mode().dtype) == (ours.dtype, ours.dtype) == (jnp.float64, jnp.float64)
    assert_allclose(ours.log_prob(drawn), ours.log_prob(drawn.astype(int)), rtol=0)
    assert (ours.log_prob(jnp.array([0.5, jnp.nan, jnp.inf, -1e-9])) == -jnp.inf).all()
    with pytest.raises(ValueError, match="dtype must be one of integers"):
        CatnatCategorical(jnp.zeros(2), 3, dtype=bool)


@pytest.mark.parametrize("kind", [CatnatCategorical, OneHotCatnat])
def test_rows_without_a_distribution_draw_minus_one(kind):
    good = [1.0, 2.0, 3.0]
    for given in (
        {"scores": jnp.array([[jnp.nan, 0.0], [0.0, 0.0]]), "parameterization": 3},
        {"probs": [[0.0, 0.0, 0.0], good]},
        {"probs": [[1.0, -1.0, 1.0], good]},
        {"logits": [[-np.inf] * 3, good]},
        {"logits": [[np.inf, 0.0, 0.0], good]},
    ):
        ours = kind(**given)
        for drawn in (ours.sample(seed=0), jax.jit(lambda d: d.sample(seed=0))(ours), ours.mode()):
            assert (drawn[0] == -1).all() and (drawn[1] >= 0).all()
        assert jnp.isnan(ours.entropy()[0]) and jnp.isfinite(ours.entropy()[1])


@pytest.mark.parametrize("kind", [CatnatCategorical, OneHotCatnat])
def test_probabilities_and_logits_come_in_place_of_scores(kind):
    p = np.random.default_rng(0).dirichlet(np.ones(K), 4)
    for ours in (kind(probs=3 * p), kind(logits=np.log(p) - 2), kind(probs=p.tolist(), parameterization=SIGMOID)):
        assert_allclose(ours.probs, p, atol=1e-12)
        assert_allclose(ours[1:].logits, np.log(p)[1:], atol=1e-11)
        assert jax.tree.leaves(ours)[0].shape == (4, K - 1)
    with pytest.raises(ValueError, match="exactly one of scores, probs and logits"):
        kind(probs=p, logits=p)


@EACH_MASKED
def test_one_hot_is_the_same_distribution(pi, mask):
    x = oracle.draw_scores(4)
    ours, ids = (kind(jnp.asarray(x), pi, mask=mask) for kind in (OneHotCatnat, CatnatCategorical))
    drawn, log_p = ours.sample_and_log_prob(seed=0, sample_shape=3)
    assert_allclose(drawn, np.eye(K)[ids.sample(seed=0, sample_shape=3)])
    assert_allclose(log_p, ids.log_prob(drawn.argmax(-1)), atol=1e-12)
    assert_allclose(ours.prob(drawn), np.exp(log_p), atol=1e-12)
    assert_allclose(ours.mode(), np.eye(K)[ids.mode()])
    assert (ours.event_shape, ours.batch_shape, type(ours[0])) == ((K,), (4,), OneHotCatnat)
    assert_allclose(
        ours.kl_divergence(distrax.OneHotCategorical(logits=ids[::-1].logits)), ids.kl_divergence(ids[::-1])
    )
    one_hots = np.eye(K)[CLASSES]
    found = jax.grad(lambda s: OneHotCatnat(s, pi, mask=mask).log_prob(one_hots).sum())(jnp.asarray(x))
    assert_allclose(found, oracle.gradient(lambda s: reference.log_prob(s, CLASSES, pi, mask), x), atol=1e-8)


def test_inside_distraxs_own():
    x = oracle.draw_scores(5)
    parts = distrax.Normal(jnp.broadcast_to(jnp.arange(float(K)), (5, K)), SPREAD)
    mixture = distrax.MixtureSameFamily(CatnatCategorical(jnp.asarray(x), K), parts)
    exact = oracle.mixture(reference.log_catnat(x, PARAMETERIZATIONS["natural"]))
    assert_allclose(mixture.log_prob(DATA), exact, atol=1e-10)
    ours = CatnatCategorical(jnp.asarray(x), K)
    together = distrax.Independent(ours, 1)
    assert_allclose(together.entropy(), ours.entropy().sum())


def test_draws_fit_the_probabilities_and_avoid_what_is_forbidden():
    ours = CatnatCategorical(jnp.asarray(oracle.draw_scores()), K, mask=ALLOWED)
    counts = np.bincount(ours.sample(seed=0, sample_shape=100_000), minlength=K)
    assert counts[~ALLOWED].sum() == 0
    assert stats.chisquare(counts[ALLOWED], 1e5 * np.asarray(ours.probs)[ALLOWED]).pvalue > 1e-6
