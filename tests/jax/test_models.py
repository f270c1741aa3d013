"""The one-line swap in the frameworks that people use: a head gets one output fewer, and has the right gradient."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import Array

import catnat
import catnat.jax as cj
from tests.thinned import thinned

CLASSES = 6
HEADS = [catnat.Parameterization(CLASSES, name) for name in ("natural", "sigmoid")]
SIGMOID = HEADS[1]


def toy(rows: int = 192) -> tuple[Array, Array]:
    """Points around the corners of a hexagon, and whose corner each is."""
    labels = jnp.arange(rows) % CLASSES
    angle = labels * jnp.pi / 3
    corners = jnp.stack((jnp.cos(angle), jnp.sin(angle)), -1)
    return corners + 0.1 * jax.random.normal(jax.random.key(0), (rows, 2)), labels


def plain_loss(hidden, head, x: Array, labels: Array, pi: catnat.Parameterization) -> Array:
    """The same network in a few lines, with the log-probabilities of all classes: (weight [in, out], bias) a layer."""
    scores = jax.nn.relu(x @ hidden[0] + hidden[1]) @ head[0] + head[1]
    return -jnp.take_along_axis(cj.log_catnat(scores, pi), labels[:, None], -1).mean()


def assert_close(ours, theirs) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), ours, theirs)


# -- Flax --------------------------------------------------------------------------------------------------------


class Classifier(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(2, 32, rngs=rngs)
        self.head = nnx.Linear(32, CLASSES - 1, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        return self.head(nnx.relu(self.hidden(x)))


@pytest.mark.slow
@pytest.mark.parametrize("pi", thinned(HEADS, 1))
def test_a_flax_model_has_the_loss_and_the_gradient_of_the_plain_function(pi: catnat.Parameterization) -> None:
    x, labels = toy()
    model = Classifier(nnx.Rngs(1))

    @nnx.jit
    def loss_and_gradient(model):
        return nnx.value_and_grad(lambda m: cj.cross_entropy(m(x), labels, pi).mean())(model)

    def layers(model):
        return [(layer["kernel"][...], layer["bias"][...]) for layer in (model["hidden"], model["head"])]

    loss, gradient = loss_and_gradient(model)
    theirs = jax.value_and_grad(lambda ls: plain_loss(*ls, x, labels, pi))(layers(nnx.state(model)))
    assert_close((loss, layers(gradient)), theirs)


@pytest.mark.slow
def test_catnat_is_a_layer_of_a_flax_sequence() -> None:
    x, _ = toy()
    linear = nnx.Linear(2, CLASSES - 1, rngs=nnx.Rngs(0))
    model = nnx.Sequential(linear, cj.Catnat(SIGMOID))
    assert_close(nnx.jit(lambda m, x: m(x))(model, x), cj.catnat(linear(x), SIGMOID))
    assert len(jax.tree.leaves(nnx.state(model))) == 2  # the linear layer's: catnat adds none
    gradient = nnx.grad(lambda m: (m(x)[:, 0] - 1).sum())(model)
    assert all(jnp.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient))


def test_a_distribution_is_data_of_a_flax_module() -> None:
    class Latent(nnx.Module):
        def __init__(self) -> None:
            self.prior = nnx.data(cj.CatnatCategorical(jnp.arange(5.0), SIGMOID))

    model, key = Latent(), jax.random.key(3)
    assert nnx.jit(lambda model, key: model.prior.sample(key))(model, key) == model.prior.sample(key)
    assert_close(nnx.jit(lambda model: model.prior)(model).probs, cj.catnat(jnp.arange(5.0), SIGMOID))


# -- Equinox -----------------------------------------------------------------------------------------------------


def mlp(seed: int) -> eqx.nn.MLP:
    return eqx.nn.MLP(2, CLASSES - 1, width_size=32, depth=1, key=jax.random.key(seed))


@pytest.mark.parametrize("pi", thinned(HEADS))
def test_an_equinox_model_has_the_loss_and_the_gradient_of_the_plain_function(pi: catnat.Parameterization) -> None:
    x, labels = toy()
    model = mlp(1)

    @eqx.filter_jit
    def loss_and_gradient(model):
        # row by row: the labels are mapped with the model
        def loss_of(model):
            return jax.vmap(lambda row, label: cj.cross_entropy(model(row), label, pi))(x, labels).mean()

        return eqx.filter_value_and_grad(loss_of)(model)

    def layers(model):
        return [(layer.weight.T, layer.bias) for layer in model.layers]

    loss, gradient = loss_and_gradient(model)
    theirs = jax.value_and_grad(lambda ls: plain_loss(*ls, x, labels, pi))(layers(model))
    assert_close((loss, layers(gradient)), theirs)


@pytest.mark.slow
def test_catnat_is_a_layer_of_an_equinox_sequence() -> None:
    x, _ = toy()
    linear = eqx.nn.Linear(2, CLASSES - 1, key=jax.random.key(0))
    model = eqx.nn.Sequential([linear, eqx.nn.Lambda(cj.Catnat(SIGMOID))])
    run = eqx.filter_jit(lambda model, x: jax.vmap(model)(x))
    assert_close(run(model, x), cj.catnat(jax.vmap(linear)(x), SIGMOID))
    gradient = eqx.filter_grad(lambda model: (jax.vmap(model)(x)[:, 0] - 1).sum())(model)
    leaves = jax.tree.leaves(gradient)
    assert len(leaves) == 2 and all(jnp.abs(leaf).max() > 0 for leaf in leaves)


class Latent(eqx.Module):
    """A model whose field is a distribution."""

    prior: cj.CatnatCategorical
    values: Array

    def __call__(self, key: Array) -> Array:
        return self.values[self.prior.sample(key)]


@pytest.mark.parametrize("masked", thinned([True, False]))
def test_a_distribution_is_a_field_of_an_equinox_module(masked: bool) -> None:
    mask = jnp.arange(CLASSES) % 2 == 0 if masked else None
    pi = catnat.Parameterization(CLASSES, "sigmoid", tree=catnat.Tree.chain(CLASSES))
    prior = cj.CatnatCategorical(0.1 * jnp.arange(CLASSES - 1.0), pi, mask=mask)
    model = Latent(prior, jnp.arange(10.0, 10 + CLASSES))

    inside, outside = eqx.filter_jit(lambda m, key: (m, m(key)))(model, jax.random.key(3))
    assert isinstance(inside.prior, cj.CatnatCategorical) and inside.prior.parameterization == pi
    assert_close(inside.prior.probs, prior.probs)
    assert outside == 10 + prior.sample(jax.random.key(3))

    gradient = eqx.filter_jit(eqx.filter_grad(lambda m: m.prior.entropy()))(model)
    assert_close(gradient.prior.scores, jax.jit(jax.grad(lambda s: cj.entropy(s, pi, mask=mask)))(prior.scores))
    stepped = eqx.apply_updates(model, jax.tree.map(lambda g: 0.1 * g, gradient))
    assert stepped.prior.entropy() > prior.entropy()
    if masked:
        assert (stepped.prior.allowed == mask).all()
