"""The callables are the functions with their settings kept, and pytrees that every framework can hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import catnat
import catnat.jax as cj
from tests.jax.beside_torch import draw
from tests.thinned import thinned

K = 5
SCORES = draw(4, K - 1).astype(np.float32)
LABELS = np.array([0, 3, 4, 2])
MASK = np.array([True, True, False, True, True])
PI = catnat.Parameterization(K, "sigmoid", catnat.Tree.chain(K))


@pytest.mark.parametrize("module, function", [(cj.Catnat, cj.catnat), (cj.LogCatnat, cj.log_catnat)])
def test_a_module_is_its_function(module, function):
    assert_array_equal(module(PI)(SCORES), function(SCORES, PI))
    assert_array_equal(module(K)(SCORES), function(SCORES, K))
    masked = module(PI)(SCORES, MASK)
    assert_array_equal(masked, function(SCORES, PI, mask=MASK))
    assert_array_equal(module(K, axis=0)(SCORES.T), function(SCORES.T, K, axis=0))


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
    for module in (cj.Catnat(PI), cj.LogCatnat(K, axis=0), cj.CatnatCrossEntropyLoss(PI)):
        assert jax.tree.leaves(module) == []
        assert jax.tree.structure(module) == jax.tree.structure(jax.tree.map(lambda leaf: leaf, module))
    assert jax.tree.structure(cj.Catnat(K)) != jax.tree.structure(cj.Catnat(PI))
    assert jax.tree.structure(cj.Catnat(K)) != jax.tree.structure(cj.LogCatnat(K))
    assert cj.Catnat(K) == cj.Catnat(K) and hash(cj.Catnat(PI)) == hash(cj.Catnat(PI))
    weighted = cj.CatnatCrossEntropyLoss(PI, weight=jnp.ones(K))
    assert [leaf.shape for leaf in jax.tree.leaves(weighted)] == [(K,)]


def test_they_go_through_jit_and_grad_inside_a_model():
    model = {"head": jnp.zeros((3, K - 1)), "loss": cj.CatnatCrossEntropyLoss(K), "act": cj.LogCatnat(K)}
    inputs = jnp.asarray(draw(4, 3), jnp.float32)

    @jax.jit
    def cost(model):
        scores = inputs @ model["head"]
        return model["loss"](scores, LABELS) - jnp.take_along_axis(model["act"](scores), LABELS[:, None], 1).mean()

    gradient = jax.grad(cost)(model)
    expected = jax.grad(lambda head: 2 * cj.cross_entropy(inputs @ head, LABELS, K))(model["head"])
    np.testing.assert_allclose(gradient["head"], expected, rtol=1e-5, atol=1e-6)
    assert isinstance(gradient["loss"], cj.CatnatCrossEntropyLoss)


def test_the_gradient_of_a_weight_is_that_of_the_function():
    weight = jnp.linspace(0.5, 1, K)
    loss = cj.CatnatCrossEntropyLoss(K, weight=weight, reduction="sum")
    gradient = jax.jit(jax.grad(lambda loss: loss(SCORES, LABELS)))(loss)
    expected = jax.grad(lambda w: cj.cross_entropy(SCORES, LABELS, K, weight=w, reduction="sum"))(weight)
    np.testing.assert_allclose(gradient.weight, expected, rtol=1e-6)


# -- the linear layer --------------------------------------------------------------------------------------------

INPUTS = draw(7, 3).astype(np.float32)


@pytest.mark.parametrize("pi", thinned([PI, K, catnat.Parameterization(K, "paper")]), ids=["chain", "natural", "paper"])
def test_a_linear_layer_is_its_functions(pi):
    key = jax.random.key(1)
    head = cj.CatnatLinear.init(key, 3, pi)
    scores = INPUTS @ head.weight.T + head.bias
    assert head.weight.shape == (K - 1, 3) and head.bias.shape == (K - 1,)
    assert 0.2 < jnp.abs(head.weight).max() <= 3**-0.5
    labels = np.arange(7) % K
    assert_array_equal(head.scores(INPUTS), scores)
    assert_array_equal(head.log_probs(INPUTS), cj.log_catnat(scores, pi))
    assert_array_equal(head(INPUTS, mask=MASK), cj.log_catnat(scores, pi, mask=MASK))
    assert_array_equal(
        head.loss(INPUTS, labels, label_smoothing=0.1, reduction="mean"),
        cj.cross_entropy(scores, labels, pi, label_smoothing=0.1, reduction="mean"),
    )
    assert_array_equal(
        head.sample(key, INPUTS, sample_shape=(2,), mask=MASK),
        cj.sample(key, scores, pi, sample_shape=(2,), mask=MASK),
    )
    assert_array_equal(head.mode(INPUTS), cj.mode(scores, pi))
    assert_array_equal(head.distribution(INPUTS, mask=MASK).logits, cj.log_catnat(scores, pi, mask=MASK))


def test_a_linear_layer_starts_uniform_or_at_given_frequencies():
    key, nothing = jax.random.key(0), np.zeros((2, 3), np.float32)
    np.testing.assert_allclose(cj.CatnatLinear.init(key, 3, 18)(nothing), -np.log(18), rtol=1e-6)
    np.testing.assert_allclose(cj.CatnatLinear.init(key, 3, 18, bias=False)(nothing), -np.log(18), rtol=1e-6)
    frequencies = np.array([5.0, 1, 2, 1, 1], np.float32)
    head = cj.CatnatLinear.init(key, 3, PI, class_frequencies=frequencies)
    np.testing.assert_allclose(jnp.exp(head(nothing))[0], frequencies / 10, rtol=1e-5)
    for wrong, word in [
        ({"class_frequencies": frequencies, "bias": False}, "bias"),
        ({"class_frequencies": frequencies - 1}, "above 0"),
    ]:
        with pytest.raises(ValueError, match=word):
            cj.CatnatLinear.init(key, 3, K, **wrong)


def test_a_linear_layer_is_a_pytree_that_learns():
    head = cj.CatnatLinear.init(jax.random.key(0), 3, K)
    assert len(jax.tree.leaves(head)) == 2 and len(jax.tree.leaves(cj.CatnatLinear(head.weight, None, K))) == 1
    corners = jnp.asarray(3 * np.random.default_rng(0).normal(size=(K, 3)), jnp.float32)
    labels = jnp.arange(40) % K

    @jax.jit
    def step(head):
        loss, gradient = jax.value_and_grad(lambda head: head.loss(corners[labels], labels, reduction="mean"))(head)
        return jax.tree.map(lambda p, g: p - 0.3 * g, head, gradient), loss

    losses = []
    for _ in range(60):
        head, loss = step(head)
        losses.append(float(loss))
    assert losses[-1] < 0.3 * losses[0] and (head.mode(corners) == jnp.arange(K)).all()
    batched = jax.vmap(lambda key: cj.CatnatLinear.init(key, 3, K))(jax.random.split(jax.random.key(0), 4))
    assert batched.weight.shape == (4, K - 1, 3)


@pytest.mark.parametrize("module", [cj.Catnat, cj.LogCatnat, cj.CatnatCrossEntropyLoss])
def test_a_wrong_parameterization_is_refused_at_once(module):
    with pytest.raises(TypeError, match=r"write catnat.Parameterization\(num_classes, 'sigmoid'\)"):
        module("sigmoid")
    with pytest.raises(TypeError, match="parameterization"):
        module(None)


def test_wrong_settings_are_refused_at_once():
    for settings, word in [({"reduction": "avg"}, "reduction"), ({"label_smoothing": 2.0}, "label_smoothing")]:
        with pytest.raises(ValueError, match=word):
            cj.CatnatCrossEntropyLoss(K, **settings)
    with pytest.raises(TypeError, match="mask_mode"):
        cj.Catnat(K, mask_mode="prune")
    with pytest.raises(AttributeError):
        cj.Catnat(K).axis = 1  # frozen
