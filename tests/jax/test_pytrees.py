"""The distributions are pytrees: they go into and come out of every transformation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import catnat
import catnat.jax as cj
from tests.jax.beside_torch import draw
from tests.jax.test_distributions import ALLOWED, KEY, MASKED, PARAMETERIZATIONS, POINTS, SIGMOID, K
from tests.thinned import thinned


def make_all(scores, mask=None):
    return [
        cj.CatnatCategorical(scores, SIGMOID, mask=mask),
        cj.OneHotCatnat(scores, K, mask=mask),
        cj.OneHotCatnatStraightThrough(scores, PARAMETERIZATIONS["natural"], mask=mask),
        cj.RelaxedOneHotCatnat(0.7, scores, SIGMOID),
        cj.MultiCatnat(scores, [3, catnat.Parameterization(4, "sigmoid")]),
    ]


ONE_HOT = np.eye(K)[[0, 2, 3, 5]]
VALUES = [np.array([0, 2, 3, 5]), ONE_HOT, ONE_HOT, POINTS, np.array([[0, 3], [1, 2], [2, 0], [0, 1]])]  # one a kind
KINDS = pytest.mark.parametrize(
    "kind", thinned(range(5), every=2), ids=["categorical", "one-hot", "straight", "relaxed", "multi"]
)


@KINDS
def test_they_go_through_jit_vmap_and_scan_as_arguments_and_results(kind):
    scores = jnp.asarray(draw(4, K - 1), jnp.float32)
    whole = make_all(scores, ALLOWED)[kind]
    drawn = VALUES[kind]
    log_prob = whole.log_prob(drawn)
    assert jnp.isfinite(log_prob).all()

    # an argument and a result of jit
    through = jax.jit(lambda d: d)(whole)
    assert type(through) is type(whole) and jax.tree.structure(through) == jax.tree.structure(whole)
    assert_allclose(jax.jit(lambda d, v: d.log_prob(v))(whole, drawn), log_prob, rtol=1e-5)
    # made inside
    made = jax.jit(lambda s: make_all(s, ALLOWED)[kind])(scores)
    assert_allclose(made.log_prob(drawn), log_prob, rtol=1e-5)
    # mapped over its batch, and made by a map
    assert_allclose(jax.vmap(lambda d, v: d.log_prob(v))(whole, drawn), log_prob, rtol=1e-5)
    rows = jax.vmap(lambda s: make_all(s, ALLOWED)[kind])(scores)
    assert rows.batch_shape == (4,)
    assert_allclose(rows.log_prob(drawn), log_prob, rtol=1e-5)

    # what scan carries, and what it walks along
    def step(carried, row):
        d, v = row
        return carried.expand(carried.batch_shape), (d, carried.log_prob(drawn).sum(), d.log_prob(v))

    last, (stacked, totals, each) = jax.lax.scan(step, whole, (whole, drawn))
    assert_allclose(totals, jnp.full(4, log_prob.sum()), rtol=1e-5)
    assert_allclose(each, log_prob, rtol=1e-5)
    assert_allclose(stacked.log_prob(drawn), last.log_prob(drawn), rtol=1e-5)


@MASKED[1]
def test_sampling_maps_over_keys_and_rows(masking):
    whole, keys = cj.CatnatCategorical(jnp.asarray(draw(4, K - 1), jnp.float32), K, **masking), jax.random.split(KEY, 4)
    mapped = jax.jit(jax.vmap(lambda d, key: d.sample(key, (3,))))(whole, keys)
    assert_array_equal(mapped, [row.sample(key, (3,)) for row, key in zip(whole, keys, strict=True)])


@KINDS
def test_the_gradient_with_respect_to_a_distribution_is_one(kind):
    scores = jnp.asarray(draw(4, K - 1), jnp.float32)
    whole, drawn = make_all(scores)[kind], VALUES[kind]
    gradient = jax.grad(lambda d: d.log_prob(drawn).sum())(whole)
    assert type(gradient) is type(whole)
    expected = jax.grad(lambda s: make_all(s)[kind].log_prob(drawn).sum())(scores)
    assert_allclose(gradient.scores, expected, rtol=1e-5, atol=1e-6)
    masked = make_all(scores, ALLOWED)[kind]
    assert jax.grad(lambda d: d.log_prob(drawn).sum(), allow_int=True)(masked).scores.shape == scores.shape


@KINDS
def test_leaves_may_be_anything(kind):
    whole = make_all(jnp.zeros((2, K - 1)), ALLOWED)[kind]
    leaves, structure = jax.tree.flatten(whole)
    for stand_in in (None, object(), "text", 3):
        strange = jax.tree.unflatten(structure, [stand_in] * len(leaves))
        assert repr(strange).startswith(type(whole).__name__)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(whole)]
    assert ".scores" in names and len(names) == len(leaves)
    assert hash(structure) == hash(jax.tree.structure(make_all(jnp.ones((2, K - 1)), ALLOWED)[kind]))


def test_settings_are_static():
    structures = {
        jax.tree.structure(d)
        for d in (
            cj.CatnatCategorical(jnp.zeros(3), 4),
            cj.CatnatCategorical(jnp.zeros(3), catnat.Parameterization(4, "sigmoid")),
            cj.CatnatCategorical(jnp.zeros(3), 4, mask=np.ones(4, bool)),
            cj.MultiCatnat(jnp.zeros(3), [4]),
            cj.MultiCatnat(jnp.zeros(3), [3, 2]),
        )
    }
    assert len(structures) == 5


def test_a_repr_tells_shapes_and_settings():
    assert repr(cj.CatnatCategorical(jnp.zeros((2, 3)), 4)) == (
        "CatnatCategorical(scores=[2, 3], num_classes=4, activation=Natural(tail=0.1), tree=balanced)"
    )
    assert "nvec=(3, 2)" in repr(cj.MultiCatnat(jnp.zeros(3), [3, 2]))
