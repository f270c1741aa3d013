"""Arrays as they come: any axis, any floating dtype, NumPy's, none at all; and what is drawn from them."""

from __future__ import annotations

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import catnat.jax as cj
from catnat import Natural, Parameterization, Tree
from tests.jax.cases import close, draw_scores
from tests.thinned import thinned

PI = {
    "balanced": Parameterization(6),
    "chain": Parameterization(6, "sigmoid", Tree.chain(6)),
    "paper": Parameterization(9, Natural(tail=0.0)),
}
FUNCTIONS = {
    "catnat": cj.catnat,
    "log_catnat": cj.log_catnat,
    "masked": lambda x, pi: cj.log_catnat(x, pi, mask=np.arange(pi.num_classes) % 3 != 1),
    "log_prob": lambda x, pi: cj.log_prob(x, np.zeros(x.shape[:-1], int), pi),
    "entropy": cj.entropy,
    "kl_divergence": lambda x, pi: cj.kl_divergence(x, 0 * x, pi),
    "cross_entropy": lambda x, pi: cj.cross_entropy(x, np.ones(x.shape[:-1], int), pi, reduction="none"),
    "reach": cj.reach,
}
every_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())


def scores(pi, *batch, dtype=np.float32):
    return jnp.asarray(draw_scores(pi, *batch, dtype=np.float32), dtype)


# -- dtypes, axes, batches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "dtype", "pi"), thinned(product(FUNCTIONS, [jnp.float16, jnp.bfloat16], PI), every=8)
)
def test_half_precision_is_computed_in_float32_and_rounded_once(function, dtype, pi):
    function, pi = FUNCTIONS[function], PI[pi]
    x = scores(pi, 20, dtype=dtype)
    found = function(x, pi)
    assert found.dtype == dtype
    assert jnp.array_equal(found, function(x.astype(jnp.float32), pi).astype(dtype))


@pytest.mark.parametrize(("dtype", "pi"), thinned(product([jnp.float16, jnp.bfloat16], PI.values()), every=4))
def test_half_precision_gradients_are_rounded_once(dtype, pi):
    x = scores(pi, 20, dtype=dtype)
    upstream = jnp.asarray(np.random.default_rng(1).normal(size=(20, pi.num_classes)), dtype)
    found, wide = (
        jax.vjp(lambda s: cj.log_catnat(s, pi), s)[1](upstream.astype(s.dtype))[0] for s in (x, x.astype(jnp.float32))
    )
    assert found.dtype == dtype and jnp.array_equal(found, wide.astype(dtype))


@pytest.mark.parametrize("pi", thinned(PI.values()), ids=PI.keys())
@every_function
def test_numpy_arrays_are_taken_and_batch_axes_do_not_matter(function, pi):
    x = draw_scores(pi, 4, 2, dtype=np.float32)
    expected = function(jnp.asarray(x), pi)
    assert isinstance(function(x, pi), jax.Array)
    close(function(x, pi), expected, 0)
    close(function(x.reshape(8, -1), pi), expected.reshape(8, *expected.shape[2:]), 1e-5)
    close(function(x[2, 1], pi), expected[2, 1], 1e-5)


@pytest.mark.parametrize(("axis", "name"), thinned(product([0, -2, 2], PI), every=9))
def test_any_axis_may_hold_the_scores(axis, name):
    pi = PI[name]
    x = scores(pi, 4, 2)
    moved = jnp.moveaxis(x, -1, axis)
    for function in (cj.catnat, cj.log_catnat, cj.reach):
        close(jnp.moveaxis(function(moved, pi, axis=axis), axis, -1), function(x, pi), 1e-6)
    mask = np.random.default_rng(1).random((4, 2, pi.num_classes)) < 0.7
    mask[..., 0] = True
    for m in (mask, mask[0, 0]):
        found = cj.catnat(moved, pi, mask=m if m.ndim == 1 else np.moveaxis(m, -1, axis), axis=axis)
        close(jnp.moveaxis(found, axis, -1), cj.catnat(x, pi, mask=m), 1e-6)
    labels = np.random.default_rng(2).integers(pi.num_classes, size=(4, 2))
    expected = cj.cross_entropy(x, labels, pi, reduction="none")
    close(cj.cross_entropy(moved, labels, pi, axis=axis, reduction="none"), expected, 1e-6)
    one_hot = jnp.moveaxis(jax.nn.one_hot(labels, pi.num_classes), -1, axis)
    close(cj.cross_entropy(moved, one_hot, pi, axis=axis, reduction="none"), expected, 1e-6)
    probs = cj.catnat(moved, pi, axis=axis)
    close(cj.catnat(cj.scores_from_probs(probs, pi, axis=axis), pi, axis=axis), probs, 1e-5)


@every_function
def test_an_empty_batch_is_an_empty_answer(function):
    for shape in ((0,), (3, 0)):
        found = function(jnp.zeros((*shape, 5)), PI["balanced"])
        assert found.shape[: len(shape)] == shape and found.size == 0
    assert cj.sample(jax.random.key(0), jnp.zeros((0, 5)), 6, sample_shape=(3,)).shape == (3, 0)
    assert cj.sample(jax.random.key(0), jnp.zeros((2, 5)), 6, sample_shape=(0,)).shape == (0, 2)


# -- draws -------------------------------------------------------------------------------------------------------


def fit(drawn, p):
    """p-value of the chi-square test of draws against probabilities, rare classes taken together."""
    counts, expected = np.bincount(np.asarray(drawn).ravel(), minlength=len(p)), np.asarray(p, float) * drawn.size
    rare = expected < 5
    assert not counts[expected == 0].any()
    cells, wanted = (np.append(a[~rare], a[rare].sum()) for a in (counts, expected))
    cells, wanted = cells[wanted > 1], wanted[wanted > 1]
    return stats.chisquare(cells, wanted * (cells.sum() / wanted.sum())).pvalue


@pytest.mark.parametrize(("name", "masked"), thinned(product([*PI, "too deep to walk"], [False, True]), every=8))
def test_draws_fit_the_probabilities(name, masked):
    pi = PI.get(name, Parameterization(80, tree=Tree.chain(80)))
    x = scores(pi)
    masking = {"mask": np.arange(pi.num_classes) % 3 != 1} if masked else {}
    drawn = cj.sample(jax.random.key(0), x, pi, sample_shape=(100, 200), **masking)
    assert drawn.shape == (100, 200) and drawn.dtype == jnp.int32
    assert fit(drawn, cj.catnat(x, pi, **masking)) > 1e-6


@pytest.mark.parametrize("name", thinned(PI))
def test_a_forbidden_class_is_never_drawn(name):
    pi, allowed = PI[name], np.arange(PI[name].num_classes) % 3 != 1
    almost = np.full(pi.num_classes, 1e-9, np.float32)
    almost[1] = 1.0  # a forbidden class has all but the last bit of the mass
    for x in (scores(pi), cj.scores_from_probs(almost, pi)):
        drawn = cj.sample(jax.random.key(1), x, pi, sample_shape=(200_000,), mask=allowed)
        assert allowed[np.asarray(drawn)].all()


def test_the_key_alone_decides_the_draws():
    x, keys = scores(PI["balanced"], 40), jax.random.split(jax.random.key(0), 3)
    draws = [cj.sample(key, x, 6, sample_shape=(5,)) for key in keys]
    assert jnp.array_equal(draws[0], cj.sample(keys[0], x, 6, sample_shape=(5,)))
    assert not jnp.array_equal(draws[0], draws[1])
    mapped = jax.vmap(lambda key: cj.sample(key, x, 6, sample_shape=(5,)))(keys)
    assert jnp.array_equal(mapped, jnp.stack(draws))
    assert cj.mode(x, 6).dtype == jnp.int32
    old = cj.sample(jax.random.PRNGKey(0), x, 6)  # keys of the older kind too
    assert old.shape == (40,)


@pytest.mark.slow
def test_a_raw_key_may_be_numpys():
    raw = jax.random.PRNGKey(3)
    x = jnp.zeros((4, 5))
    for draw in (
        lambda key, s: cj.sample(key, s, 6),
        lambda key, s: cj.draw(key, s, 6).sample,
        lambda key, s: cj.straight_through(key, s, 6),
        lambda key, s: cj.gumbel_softmax(key, s, 6),
        lambda key, s: cj.gumbel_softmax(key, s, 6, hard=True),
        lambda key, s: cj.sample_without_replacement(key, s, 3, 6),
        lambda key, s: cj.CatnatCategorical(s, 6).sample(key, (2,)),
        lambda key, s: cj.RelaxedOneHotCatnat(0.5, s, 6).rsample(key),
        lambda key, s: cj.MultiCatnat(s, [3, 4]).sample(key),
        lambda key, s: cj.CatnatLinear.init(key, 5, 6).weight,
    ):
        np.testing.assert_array_equal(draw(np.asarray(raw), x), draw(raw, x))


# -- beside optax ------------------------------------------------------------------------------------------------


def test_two_classes_are_optax_s_binary_cross_entropy():
    x, labels = jnp.linspace(-20, 20, 41), jnp.arange(41) % 2
    loss = partial(cj.cross_entropy, parameterization=Parameterization(2, "sigmoid"), reduction="none")
    found = loss(x[:, None], labels)
    close(found, optax.sigmoid_binary_cross_entropy(x, labels), 2e-6)
    soft = jnp.stack((1 - labels * 0.3, labels * 0.3), -1)
    close(loss(x[:, None], soft), optax.sigmoid_binary_cross_entropy(x, labels * 0.3), 2e-6)


def test_where_is_optax_s_for_rows_and_for_classes():
    # the same distribution for both: optax gets the logarithms
    x, labels = scores(PI["balanced"], 8), np.arange(8) % 6
    logits, rows = cj.log_catnat(x, 6), np.arange(8) % 3 != 0
    ids = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    loss = partial(cj.cross_entropy, parameterization=6, reduction="none")
    close(loss(x, labels), ids, 1e-5)
    found = loss(x, labels, where=rows)
    close(found, np.where(rows, ids, 0), 1e-5)
    close(cj.cross_entropy(x, labels, 6, where=rows, reduction="mean"), ids[rows].mean(), 1e-5)
    classes = np.random.default_rng(0).random((8, 6)) < 0.6
    classes[np.arange(8), labels] = True
    soft = jax.nn.one_hot(labels, 6) * 0.8 + classes * 0.2 / classes.sum(-1, keepdims=True)
    expected = optax.softmax_cross_entropy(logits, soft, where=classes)
    close(loss(x, soft, where=classes), expected, 1e-5)
    close(loss(x, labels, where=classes, label_smoothing=0.2), expected, 1e-5)


@pytest.mark.parametrize("dtype", thinned([np.uint8, np.int8, np.int16]))
def test_narrow_class_ids_mean_what_they_say(dtype) -> None:
    # the number of classes, or -100, need not fit into their dtype
    for classes in (np.iinfo(dtype).max + 1, 300):
        scores = jnp.asarray(np.random.default_rng(0).normal(size=(5, classes - 1)), jnp.float32)
        ids = np.minimum([0, 3, 44, 100, 156], min(np.iinfo(dtype).max, classes - 1)).astype(dtype)
        wide = jnp.asarray(ids.astype(np.int32))
        for function in (cj.log_prob, cj.cross_entropy):
            function = partial(function, parameterization=classes)
            np.testing.assert_array_equal(function(scores, jnp.asarray(ids)), function(scores, wide))
            np.testing.assert_array_equal(jax.jit(function)(scores, jnp.asarray(ids)), jax.jit(function)(scores, wide))


def test_a_class_that_weighs_nothing_costs_nothing() -> None:
    allowed, weight = jnp.array([[False, True, True, True]]), jnp.array([0.0, 1.0, 1.0, 1.0])
    loss = cj.cross_entropy(jnp.zeros((1, 3)), jnp.array([0]), 4, where=allowed, weight=weight, reduction="sum")
    assert loss == 0
