"""catnat in NumPyro against the float64 reference: values, shapes, transformations, enumeration and inference."""

from __future__ import annotations

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import catnat
import catnat.jax as cj
from catnat_lab import reference
from tests.integrations import oracle
from tests.integrations.oracle import ALLOWED, DATA, MASKS, PARAMETERIZATIONS, SPREAD, K
from tests.thinned import thinned

numpyro = pytest.importorskip("numpyro", reason="NumPyro is not installed")

import numpyro.distributions as dist  # noqa: E402
from numpyro.distributions.batch_util import promote_batch_shape, vmap_over  # noqa: E402
from numpyro.infer import SVI, Trace_ELBO, TraceEnum_ELBO  # noqa: E402

from catnat.integrations.numpyro import CatnatCategorical, OneHotCatnat  # noqa: E402

KEY = jax.random.key(0)
SIGMOID = catnat.Parameterization(K, "sigmoid")
EACH_MASKED = pytest.mark.parametrize(
    ("pi", "mask"),
    thinned(product(PARAMETERIZATIONS.values(), MASKS.values()), quick=[(PARAMETERIZATIONS["chain"], ALLOWED)]),
    ids=list(map("-".join, product(PARAMETERIZATIONS, MASKS))),
)


@pytest.fixture(autouse=True)
def doubles():
    with jax.enable_x64(True), numpyro.validation_enabled():
        yield


@EACH_MASKED
def test_values_and_gradients_are_the_references(pi, mask):
    x = oracle.draw_scores(4)
    ours = CatnatCategorical(jnp.asarray(x), pi, mask=mask)
    log_p, classes = reference.log_catnat(x, pi, mask), np.arange(K)
    assert_allclose(ours.log_prob(classes[:, None]).T, log_p, atol=1e-12)
    assert_allclose(ours.logits, log_p, atol=1e-12)
    assert_allclose(ours.probs, np.exp(log_p), atol=1e-12)
    assert_allclose(ours.entropy(), reference.entropy(x, pi, mask), atol=1e-12)
    found = jax.grad(lambda s: CatnatCategorical(s, pi, mask=mask).entropy().sum())(jnp.asarray(x))
    assert_allclose(found, oracle.gradient(lambda s: reference.entropy(s, pi, mask), x), atol=1e-8)
    found = jax.grad(lambda s: CatnatCategorical(s, pi, mask=mask).log_prob(jnp.array([0, 2, 3, 5])).sum())(x)
    assert_allclose(found, oracle.gradient(lambda s: reference.log_prob(s, [0, 2, 3, 5], pi, mask), x), atol=1e-8)


@EACH_MASKED
def test_kl_is_registered_for_every_pair(pi, mask):
    x, y = oracle.draw_scores(4), oracle.draw_scores(4, seed=1)
    p, q = CatnatCategorical(jnp.asarray(x), pi, mask=mask), CatnatCategorical(jnp.asarray(y), K, mask=mask)
    log_p = reference.log_catnat(x, pi, mask)
    log_q = reference.log_catnat(y, PARAMETERIZATIONS["natural"], mask)
    # validated, NumPyro's own takes no infinite logits
    plain = [dist.Categorical(logits=log_q + 3, validate_args=False), dist.Categorical(probs=np.exp(log_q))]
    # at probability 0 NumPyro's own distributions from probabilities allow the smallest number
    for other in (q, plain[0], *([] if mask is not None else plain[1:])):
        assert_allclose(dist.kl_divergence(p, other), oracle.kl(log_p, log_q), atol=1e-9)
        assert_allclose(dist.kl_divergence(other, p), oracle.kl(log_q, log_p), atol=1e-9)
    slope = jax.grad(lambda s: dist.kl_divergence(CatnatCategorical(s, pi, mask=mask), q).sum())(jnp.asarray(x))
    exact = oracle.gradient(lambda s: oracle.kl(reference.log_catnat(s, pi, mask), log_q), x)
    assert_allclose(slope, exact, atol=1e-8)
    if mask is not None:
        assert jnp.isinf(dist.kl_divergence(CatnatCategorical(jnp.asarray(x), pi), q)).all()


@pytest.mark.parametrize(
    ("batch", "mask"),
    thinned(product([(), (3,), (2, 3)], MASKS.values()), quick=[((2, 3), ALLOWED)]),
)
def test_shapes(batch, mask):
    ours = CatnatCategorical(jnp.asarray(oracle.draw_scores(*batch)), SIGMOID, mask=mask)
    assert (ours.batch_shape, ours.event_shape) == (batch, ())
    for shape in ((), (4, 5)):
        drawn = ours.sample(KEY, shape)
        assert drawn.shape == ours.log_prob(drawn).shape == (*shape, *batch)
    wide = ours.expand((7, *batch))
    drawn = wide.sample(KEY)
    assert drawn.shape == wide.log_prob(drawn).shape == (7, *batch)
    assert_allclose(wide.log_prob(drawn), ours.log_prob(drawn))
    assert CatnatCategorical.infer_shapes((*batch, K - 1)) == (batch, ())
    assert CatnatCategorical.infer_shapes(probs=(*batch, K)) == CatnatCategorical.infer_shapes(logits=(*batch, K))
    assert ours.enumerate_support().shape == (K, *batch)
    assert ours.enumerate_support(expand=False).shape == (K, *[1] * len(batch))
    assert ours.support(ours.enumerate_support()).all() and not ours.support(K)


@pytest.mark.parametrize("mask", thinned(MASKS.values(), quick=[ALLOWED]), ids=MASKS)
def test_it_is_a_pytree(mask):
    x = jnp.asarray(oracle.draw_scores(3))
    ours = CatnatCategorical(x, SIGMOID, mask=mask)
    log_p = ours.log_prob(jnp.array([0, 2, 5]))
    leaves, structure = jax.tree.flatten(ours)
    assert len(leaves) == 1 + (mask is not None)
    assert_allclose(jax.tree.unflatten(structure, leaves).log_prob(jnp.array([0, 2, 5])), log_p)
    assert_allclose(jax.jit(lambda d, k: d.log_prob(k))(ours, jnp.array([0, 2, 5])), log_p)
    made = jax.jit(lambda s: CatnatCategorical(s, SIGMOID, mask=mask))(x)
    assert isinstance(made, CatnatCategorical)
    assert_allclose(made.entropy(), ours.entropy())


def test_vmap_over_the_scores():
    x = jnp.asarray(oracle.draw_scores(3))
    ours = CatnatCategorical(x, SIGMOID)
    single = CatnatCategorical(x[0], SIGMOID)
    made = jax.vmap(lambda s: CatnatCategorical(s, SIGMOID), out_axes=vmap_over(single, scores=0))(x)
    made = promote_batch_shape(made)
    assert made.batch_shape == (3,)
    assert_allclose(made.log_prob(jnp.array([0, 2, 5])), ours.log_prob(jnp.array([0, 2, 5])))


@pytest.mark.parametrize(("mask", "batch"), thinned(product(MASKS.values(), [(), (5,)]), every=4), ids=str)
def test_the_mixture_of_numpyro_is_the_exact_marginal(mask, batch):
    x, pi = oracle.draw_scores(*batch), PARAMETERIZATIONS["chain"]

    def log_marginal(scores):
        parts = dist.Normal(jnp.arange(float(K)), SPREAD)
        mixing = CatnatCategorical(scores, pi, mask=mask)
        if batch:
            parts = parts.expand((*batch, K))
        return dist.MixtureSameFamily(mixing, parts).log_prob(DATA)

    marginal = lambda s: oracle.mixture(reference.log_catnat(s, pi, mask))  # noqa: E731
    assert_allclose(log_marginal(jnp.asarray(x)), marginal(x), atol=1e-10)
    found = jax.grad(lambda s: log_marginal(s).sum())(jnp.asarray(x))
    assert_allclose(found, oracle.gradient(marginal, x), atol=1e-7)


@EACH_MASKED
@pytest.mark.parametrize("batch", thinned([((),), ((5,),)], quick=[((5,),)]), ids=["shared", "one each"])
def test_enumeration_is_the_exact_marginal(pi, mask, batch):
    pytest.importorskip("funsor", reason="NumPyro enumerates with funsor, which is not installed")
    x = oracle.draw_scores(*batch)

    def model(scores):
        with numpyro.plate("data", len(DATA)):
            k = numpyro.sample("k", CatnatCategorical(scores, pi, mask=mask), infer={"enumerate": "parallel"})
            numpyro.sample("x", dist.Normal(k.astype(float), SPREAD), obs=DATA)

    def log_marginal(scores):
        return -TraceEnum_ELBO(max_plate_nesting=1).loss(KEY, {}, model, lambda scores: None, scores)

    marginal = lambda s: oracle.mixture(reference.log_catnat(s, pi, mask))  # noqa: E731
    assert_allclose(log_marginal(jnp.asarray(x)), marginal(x).sum(), atol=1e-10)
    assert_allclose(jax.grad(log_marginal)(jnp.asarray(x)), oracle.gradient(marginal, x), atol=1e-7)


@pytest.mark.parametrize("first", oracle.draw_scores(1)[:, :2])
def test_draws_fit_the_probabilities(first):
    # a goodness-of-fit test as NumPyro's own: chi-squared over the classes
    x = np.concatenate([first, np.zeros(K - 3)])
    ours = CatnatCategorical(jnp.asarray(x), K, mask=ALLOWED)
    drawn = np.asarray(ours.sample(KEY, (100_000,)))
    counts = np.bincount(drawn, minlength=K)
    assert counts[~ALLOWED].sum() == 0
    assert stats.chisquare(counts[ALLOWED], 1e5 * np.asarray(ours.probs)[ALLOWED]).pvalue > 1e-6


def test_svi_finds_the_frequencies():
    data = np.random.default_rng(0).choice(K, size=500, p=[0.05, 0.1, 0.15, 0.2, 0.2, 0.3])

    def model():
        scores = numpyro.param("scores", jnp.zeros(K - 1))
        with numpyro.plate("data", 500):
            numpyro.sample("k", CatnatCategorical(scores, K), obs=data)

    svi = SVI(model, lambda: None, numpyro.optim.Adam(0.05), Trace_ELBO())
    fitted = svi.run(KEY, 300, progress_bar=False).params["scores"]
    assert_allclose(cj.catnat(fitted, K), np.bincount(data, minlength=K) / 500, atol=1e-3)


def test_nan_scores_are_refused_and_a_wide_mask_too():
    with pytest.raises(ValueError, match="invalid scores parameter"):
        CatnatCategorical(jnp.array([0.0, jnp.nan]), 3)
    with pytest.raises(ValueError, match="mask"):
        CatnatCategorical(jnp.zeros(K - 1), K, mask=jnp.ones(K - 1, bool))


@pytest.mark.parametrize("kind", [CatnatCategorical, OneHotCatnat])
def test_probabilities_and_logits_come_in_place_of_scores(kind):
    p = np.random.default_rng(0).dirichlet(np.ones(K), 4)
    for ours in (kind(probs=p), kind(logits=np.log(p) - 2), kind(probs=p, parameterization=SIGMOID)):
        assert_allclose(ours.probs, p, atol=1e-12)
    sure = kind(probs=np.array([0.25, 0.0, 0.75]))  # infinite scores, which pass the validation
    assert_allclose(sure.probs, [0.25, 0, 0.75], atol=1e-12)
    assert jnp.isfinite(sure.entropy())
    for given in ({"probs": jnp.zeros((2, 3))}, {"logits": jnp.full(3, -jnp.inf)}, {"probs": jnp.array([1, jnp.nan])}):
        with pytest.raises(ValueError, match=next(iter(given))):
            kind(**given)


@EACH_MASKED
def test_one_hot_is_the_same_distribution(pi, mask):
    x = oracle.draw_scores(4)
    ours, ids = (kind(jnp.asarray(x), pi, mask=mask) for kind in (OneHotCatnat, CatnatCategorical))
    assert (ours.batch_shape, ours.event_shape) == ((4,), (K,))
    drawn = ours.sample(KEY, (3,))
    assert_allclose(drawn, np.eye(K)[ids.sample(KEY, (3,))])
    assert_allclose(ours.log_prob(drawn), ids.log_prob(drawn.argmax(-1)), atol=1e-12)
    assert_allclose(ours.mean, np.exp(reference.log_catnat(x, pi, mask)), atol=1e-12)
    every = ours.enumerate_support()
    assert every.shape == (K, 4, K) and ours.enumerate_support(expand=False).shape == (K, 1, K)
    assert_allclose(np.exp(ours.log_prob(every)).sum(0), 1, atol=1e-12)
    assert_allclose(ours.variance, (ours.probs.T[..., None] * (every - ours.mean) ** 2).sum(0), atol=1e-12)
    assert ours.support(every).all() and not ours.support(np.full(K, 1 / K)) and not ours.support(np.eye(K)[0] * 2)
    assert (ours.log_prob(jnp.full((4, K), 1 / K)) == -jnp.inf).all()  # as NumPyro answers outside the support
    found = jax.grad(lambda s: OneHotCatnat(s, pi, mask=mask).log_prob(np.eye(K)[[0, 2, 3, 5]]).sum())(jnp.asarray(x))
    assert_allclose(found, oracle.gradient(lambda s: reference.log_prob(s, [0, 2, 3, 5], pi, mask), x), atol=1e-8)
    assert_allclose(dist.kl_divergence(ours, OneHotCatnat(-x, pi)), dist.kl_divergence(ids, CatnatCategorical(-x, pi)))
    wide = ours.expand((7, 4))
    assert wide.sample(KEY).shape == (7, 4, K)
    leaves, structure = jax.tree.flatten(ours)
    assert_allclose(jax.tree.unflatten(structure, leaves).log_prob(drawn), ours.log_prob(drawn))


def test_kl_refuses_other_numbers_of_classes():
    with pytest.raises(ValueError, match="equally many classes; got 3 and 1"):
        dist.kl_divergence(CatnatCategorical(jnp.zeros(2), 3), CatnatCategorical(jnp.zeros(0), 1))
