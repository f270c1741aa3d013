"""The callables are the functions with their settings kept, and pytrees that every framework can hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import catnat
import catnat.jax as cj
from tests.jax.beside_torch import draw

K = 5
SCORES = draw(4, K - 1).astype(np.float32)
LABELS = np.array([0, 3, 4, 2])
MASK = np.array([True, True, False, True, True])
PI = catnat.Parameterization(K, "sigmoid", catnat.Tree.chain(K))


@pytest.mark.parametrize("mask_mode", ["renormalize", "prune"])
@pytest.mark.parametrize("module, function", [(cj.Catnat, cj.catnat), (cj.LogCatnat, cj.log_catnat)])
def test_a_module_is_its_function(module, function, mask_mode):
    assert_array_equal(module(PI)(SCORES), function(SCORES, PI))
    assert_array_equal(module()(SCORES), function(SCORES))
    masked = module(PI, mask_mode=mask_mode)(SCORES, MASK)
    assert_array_equal(masked, function(SCORES, PI, mask=MASK, mask_mode=mask_mode))
    assert_array_equal(module(axis=0)(SCORES.T), function(SCORES.T, axis=0))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"reduction": "mean", "ignore_index": 3},
        {"label_smoothing": 0.2, "reduction": "sum"},
        {"weight": np.linspace(0, 1, K)},
    ],
    ids=str,
)
def test_the_loss_is_its_function(settings):
    loss, where = cj.CatnatCrossEntropyLoss(PI, **settings), np.array([True, False, True, True])
    assert_array_equal(loss(SCORES, LABELS), cj.cross_entropy(SCORES, LABELS, PI, **settings))
    assert_array_equal(loss(SCORES, LABELS, where), cj.cross_entropy(SCORES, LABELS, PI, where=where, **settings))
    across = cj.CatnatCrossEntropyLoss(PI, axis=0, **settings)
    assert_array_equal(across(SCORES.T, LABELS), cj.cross_entropy(SCORES.T, LABELS, PI, axis=0, **settings))


def test_settings_are_static_and_a_weight_is_a_leaf():
    for module in (cj.Catnat(PI), cj.LogCatnat("sigmoid", axis=0), cj.CatnatCrossEntropyLoss(PI)):
        assert jax.tree.leaves(module) == []
        assert jax.tree.structure(module) == jax.tree.structure(jax.tree.map(lambda leaf: leaf, module))
    assert jax.tree.structure(cj.Catnat()) != jax.tree.structure(cj.Catnat("sigmoid"))
    assert jax.tree.structure(cj.Catnat()) != jax.tree.structure(cj.LogCatnat())
    assert cj.Catnat() == cj.Catnat() and hash(cj.Catnat(PI)) == hash(cj.Catnat(PI))
    weighted = cj.CatnatCrossEntropyLoss(PI, weight=jnp.ones(K))
    assert [leaf.shape for leaf in jax.tree.leaves(weighted)] == [(K,)]


def test_they_go_through_jit_and_grad_inside_a_model():
    model = {"head": jnp.zeros((3, K - 1)), "loss": cj.CatnatCrossEntropyLoss(reduction="mean"), "act": cj.LogCatnat()}
    inputs = jnp.asarray(draw(4, 3), jnp.float32)

    @jax.jit
    def cost(model):
        scores = inputs @ model["head"]
        return model["loss"](scores, LABELS) - jnp.take_along_axis(model["act"](scores), LABELS[:, None], 1).mean()

    gradient = jax.grad(cost)(model)
    expected = jax.grad(lambda head: 2 * cj.cross_entropy(inputs @ head, LABELS).mean())(model["head"])
    np.testing.assert_allclose(gradient["head"], expected, rtol=1e-5, atol=1e-6)
    assert isinstance(gradient["loss"], cj.CatnatCrossEntropyLoss)


def test_the_gradient_of_a_weight_is_that_of_the_function():
    weight = jnp.linspace(0.5, 1, K)
    loss = cj.CatnatCrossEntropyLoss(weight=weight, reduction="sum")
    gradient = jax.jit(jax.grad(lambda loss: loss(SCORES, LABELS)))(loss)
    expected = jax.grad(lambda w: cj.cross_entropy(SCORES, LABELS, weight=w, reduction="sum"))(weight)
    np.testing.assert_allclose(gradient.weight, expected, rtol=1e-6)


@pytest.mark.parametrize("module", [cj.Catnat, cj.LogCatnat, cj.CatnatCrossEntropyLoss])
def test_a_wrong_parameterization_is_refused_at_once(module):
    with pytest.raises(ValueError, match="parameterization"):
        module("softmax")
    with pytest.raises(TypeError, match="parameterization"):
        module(None)


def test_wrong_settings_are_refused_at_once():
    for settings, word in [({"reduction": "avg"}, "reduction"), ({"label_smoothing": 2.0}, "label_smoothing")]:
        with pytest.raises(ValueError, match=word):
            cj.CatnatCrossEntropyLoss(**settings)
    with pytest.raises(ValueError, match="mask_mode"):
        cj.Catnat(mask_mode="cut")
    with pytest.raises(TypeError):
        cj.Catnat("natural", -1, "prune")  # by name only
    with pytest.raises(AttributeError):
        cj.Catnat().axis = 1  # frozen
