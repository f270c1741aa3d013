"""Latent variables: the same formulas as PyTorch's under the same noise, and a layer that trains."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catnat
import catnat.jax as cj
from catnat.jax import latents

torch = pytest.importorskip("torch")
from tests import latents as judge  # noqa: E402
from tests.latents import CLASSES, ESTIMATORS, HEADS, TAU, cost, is_level  # noqa: E402
from tests.thinned import thinned  # noqa: E402

KEY = jax.random.key(0)


def made(head: str = "natural", estimator: str = "gumbel", **settings: Any) -> cj.CategoricalLatent:
    return cj.CategoricalLatent.init(KEY, 6, 3, CLASSES, head=HEADS[head], estimator=estimator, tau=TAU, **settings)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_samples_and_gradients_are_the_formulas(estimator: str, head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = judge.noise_of(estimator, (41, 3, CLASSES), torch.Generator().manual_seed(1))
    first, inner = (values.numpy() for values in noise)
    monkeypatch.setattr(jax.random, "logistic", lambda *a: jnp.asarray(np.log(first[0] / first[1])))
    monkeypatch.setattr(latents, "gumbel", lambda key, shape, *a: jnp.asarray(-np.log(inner if shape[3:] else first)))
    with jax.enable_x64(True):
        layer, h = made(head, estimator), 0.4 * np.random.default_rng(2).normal(size=(41, 6))

        def total(weight: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array]:
            q = dataclasses.replace(layer, weight=weight, bias=bias)(KEY, h)
            return (q.log_prob if estimator == "score-function" else cost(q.z, jnp)).sum(), q.z

        grad = jax.grad(total, (0, 1), has_aux=True)
        got, z = grad(layer.weight, layer.bias)
    leaves = [torch.tensor(np.asarray(leaf), requires_grad=True) for leaf in (layer.weight, layer.bias)]
    scores = (torch.tensor(h) @ leaves[0].T + leaves[1]).unflatten(-1, (3, -1))
    log_p = judge.log_probs(scores, head)
    sample, soft = judge.sample_and_soft(estimator, log_p, noise)
    np.testing.assert_allclose(z, sample.detach(), atol=1e-12)
    at = sample.detach().requires_grad_()
    (pull,) = torch.autograd.grad(cost(at, torch).sum(), at)
    expected = (log_p * sample).sum() if estimator == "score-function" else (soft * pull).sum()
    for found, leaf in zip(got, torch.autograd.grad(expected, leaves), strict=True):
        np.testing.assert_allclose(found, leaf, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("estimator", ["reinmax", "gumbel-rao"])
def test_logits_do_as_well_as_log_probabilities(estimator: str) -> None:
    logits = 2 + jax.random.normal(KEY, (6, 4))

    def total(log_p: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
        return lambda s: (latents.ESTIMATORS[estimator](KEY, log_p(s), TAU) * jnp.arange(4.0)).sum()

    got, want = jax.grad(total(lambda s: s))(logits), jax.grad(total(jax.nn.log_softmax))(logits)
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_draws_follow_q(estimator: str) -> None:
    p = jnp.array([0.5, 0.3, 0.15, 0.04, 0.01])
    z = latents.ESTIMATORS[estimator](KEY, jnp.log(p) + jnp.zeros((20_000, 1)), TAU)
    assert is_level(jax.nn.one_hot(z.argmax(-1), 5), p)


@pytest.mark.parametrize("head", thinned(HEADS, quick=["softmax", "uneven"]))
def test_unbiased_estimators_are_unbiased(head: str) -> None:
    pi = made(head).parameterization
    scores = 0.5 * np.random.default_rng(2).normal(size=(2, CLASSES - (pi is not None)))
    at = torch.tensor(scores, requires_grad=True)
    mean = judge.expected_cost(judge.log_probs(at, head))
    (want,) = torch.autograd.grad(mean, at)

    def log_p(s: jax.Array) -> jax.Array:
        return jax.nn.log_softmax(s) if pi is None else cj.log_catnat(s, pi)

    def scored(s: jax.Array) -> tuple[jax.Array, jax.Array]:
        z = latents.ESTIMATORS["score-function"](KEY, log_q := log_p(s), 1.0)
        estimate = cj.score_function(cost(z, jnp), (log_q * z).sum((-1, -2)), 1.0)
        return estimate.sum(), estimate

    many = jnp.broadcast_to(jnp.asarray(scores, jnp.float32), (100_000, *scores.shape))
    slope, values = jax.grad(scored, has_aux=True)(many)
    assert is_level(values, mean.detach()) and is_level(slope, want)


def test_compiled_is_eager() -> None:
    h = jax.random.normal(KEY, (7, 6))

    def run(layer: cj.CategoricalLatent) -> Any:
        q = layer(KEY, h)
        return cost(q.code, jnp).sum() + jnp.square(q.z).sum() + q.loss().sum(), q

    with_gradient = jax.grad(run, has_aux=True)
    settings: Any = {"prior": "learned", "embed": 4, "unimix": 0.01}
    for layer in (*(made(estimator=name, **settings) for name in ESTIMATORS), *map(made, HEADS)):
        jax.eval_shape(with_gradient, layer)  # nothing looks at a value; what is compiled is the same code for all
    layer = made(estimator="gumbel-rao", **settings)
    eager, compiled = (jax.tree.leaves(f(layer)) for f in (with_gradient, jax.jit(with_gradient)))
    for a, b in zip(eager, compiled, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head", thinned(HEADS, quick=["softmax", "uneven"]))
def test_the_layer_is_what_it_is_made_of(head: str) -> None:
    prior = np.array([0.4, 0.3, 0.1, 0.1, 0.1])
    layer, h = made(head, prior=prior, unimix=0.05, embed=4), jax.random.normal(KEY, (64, 6))
    q = layer(KEY, h)
    assert q.z.shape == (64, 3, 4) and q.indices.shape == q.kl.shape == (64, 3)
    np.testing.assert_allclose(layer.decode(q.indices), q.z, atol=1e-4)
    log_q = torch.tensor(np.asarray(q.log_q))
    ours = torch.distributions.OneHotCategorical(logits=log_q, validate_args=False)
    theirs = torch.distributions.OneHotCategorical(torch.tensor(prior.astype("f4")).expand(64, 3, 5))
    np.testing.assert_allclose(log_q.exp().sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(q.kl, torch.distributions.kl_divergence(ours, theirs), atol=1e-5)
    np.testing.assert_allclose(q.log_prob, ours.log_prob(torch.tensor(np.asarray(q.code)).round()).sum(-1), atol=1e-4)
    usage = np.stack([np.bincount(column, minlength=5) for column in np.asarray(q.indices).T]) / 64
    logs = np.log(usage, where=usage > 0, out=np.zeros_like(usage))
    for found, expected in zip(
        q.stats(), (usage, np.exp(-(usage * logs).sum(-1)), ours.entropy().mean(0), (usage == 0).mean(-1)), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)
    np.testing.assert_array_equal(layer.argmax(h), q.log_q.argmax(-1))
    free = float(q.kl.sum(-1).max()) + 1
    assert (q.loss(free_nats=free) == free).all()


def test_kl_is_balanced() -> None:
    post, prior, h = made(), made("softmax"), jax.random.normal(KEY, (6, 6))

    def loss(layers: Any, balance: float | None) -> jax.Array:
        return layers[0](KEY, h, layers[1].log_probs(h)).loss(2.0, balance=balance).sum()

    both, mixed = (jax.grad(loss)((post, prior), balance) for balance in (None, 0.8))
    for share, a, b in zip((0.2, 0.8), both, mixed, strict=True):
        np.testing.assert_allclose(b.weight, share * a.weight, atol=1e-5)


def test_classes_follow_q_and_the_prior() -> None:
    prior = jnp.array([0.5, 0.2, 0.1, 0.1, 0.1])
    layer, h = made(prior=prior), jnp.broadcast_to(jax.random.normal(KEY, (1, 6)), (20_000, 6))
    assert is_level(jax.nn.one_hot(layer.sample(KEY, h), 5), jnp.exp(layer.log_probs(h[:1])[0]))
    assert is_level(jax.nn.one_hot(layer.sample_prior(KEY, (20_000,)), 5), jnp.broadcast_to(prior, (3, 5)))


@pytest.mark.parametrize("head", thinned(["softmax", "natural"], quick=["natural"]))
def test_no_class_is_drawn_from_nan(head: str) -> None:
    h = jnp.zeros((2, 6)).at[1, 3].set(jnp.nan)
    layer = dataclasses.replace(made(head, prior="learned"), prior=jnp.full((3, 5), jnp.nan))
    drawn = (lambda: layer.sample(KEY, h), lambda: layer.sample_prior(KEY), lambda: layer(KEY, h).indices)
    for call in (*drawn, lambda: layer.argmax(h)):
        with pytest.raises(ValueError, match=r"scores must not be NaN .*; draw \((1, )?0,?\) met one"):
            call()
    assert jax.jit(layer.argmax)(h)[1].tolist() == [5, 5, 5]


def test_no_noise_makes_nan() -> None:
    log_p = jnp.log(jnp.array([[0.5, 0.5, 0.0, 0.0]], jnp.bfloat16).repeat(2_000, 0))
    assert jnp.isfinite(latents.gumbel_rao(KEY, log_p, 1.0)).all()
    slope = jax.grad(lambda tau: latents.gumbel_softmax(KEY, log_p[:4].astype(float), tau)[:, 0].sum())(0.7)
    assert jnp.isfinite(slope)
    assert cj.CategoricalLatent.init(KEY, 4, 2, 3)(KEY, jnp.zeros((0, 4))).z.shape == (0, 2, 3)


def test_feature_maps() -> None:
    layer = cj.CategoricalLatent.init(KEY, 6, 2, 16, channel_first=True)
    q = layer(KEY, jnp.ones((3, 6, 7, 4)))
    assert q.z.shape == (3, 32, 7, 4) and q.indices.shape == (3, 7, 4, 2) and q.loss().shape == (3, 7, 4)
    np.testing.assert_allclose(layer.decode(q.indices), q.z, atol=1e-5)


def test_it_trains_inside_flax_and_equinox() -> None:
    nnx, equinox, optax = (pytest.importorskip(name) for name in ("flax.nnx", "equinox", "optax"))

    class InFlax(nnx.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            self.latent = nnx.data(jax.tree.map(nnx.Param, cj.CategoricalLatent.init(KEY, 4, 2, 3)))

    class InEquinox(equinox.Module):  # type: ignore[name-defined]
        latent: cj.CategoricalLatent

    def loss(latent: cj.CategoricalLatent) -> jax.Array:
        q = latent(KEY, jnp.ones((5, 4)))
        return (q.z[..., 0] * jnp.arange(2)).sum() + q.loss().sum()

    want = jax.grad(loss)(cj.CategoricalLatent.init(KEY, 4, 2, 3)).weight
    model = InFlax()
    before = np.asarray(model.latent.weight[...])
    optimizer = nnx.Optimizer(model, optax.sgd(1.0), wrt=nnx.Param)
    optimizer.update(model, nnx.grad(lambda model: loss(model.latent))(model))
    np.testing.assert_allclose(before - model.latent.weight[...], want, atol=1e-5)
    own = equinox.filter_grad(lambda m: loss(m.latent))(InEquinox(cj.CategoricalLatent.init(KEY, 4, 2, 3)))
    np.testing.assert_allclose(own.latent.weight, want)


def test_bad_settings_are_named() -> None:
    for wrong, message in (
        ({"classes": 1}, "classes must be at least 2"),
        ({"head": catnat.Parameterization(4)}, "as many classes as the latent, 5"),
        ({"estimator": "gumble"}, "estimator must be"),
        ({"tau": 0.0}, "tau must be a finite number above 0"),
        ({"prior": [0.5, 0.5]}, "prior must be"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            cj.CategoricalLatent.init(KEY, **{"in_features": 4, "variables": 2, "classes": 5} | wrong)
    layer = cj.CategoricalLatent.init(KEY, 4, 2, 5)
    with pytest.raises(ValueError, match=r"h must be 4 wide along axis -1; got shape \(3, 5\)"):
        layer(KEY, jnp.zeros((3, 5)))
    with pytest.raises(ValueError, match=r"got shape \(2, 4, 7, 7\); for feature maps \[N, 4, ...\] say channel_first"):
        layer(KEY, jnp.zeros((2, 4, 7, 7)))
    with pytest.raises(TypeError, match="key"):
        layer(jnp.zeros((3, 4)), KEY)
    with pytest.raises(ValueError, match="prior must be log-probabilities, whose exp sums to 1; got log-sums up to"):
        layer(KEY, jnp.zeros((3, 4)), jnp.zeros((2, 5)))  # the logits of a prior
    with pytest.raises(ValueError, match=r"prior must be \[\.\.\., 2, 5\]; got \(2, 6\)"):
        layer(KEY, jnp.zeros((3, 4)), jnp.zeros((2, 6)))
    with pytest.raises(ValueError, match="prior must be None where the latent learns one"):
        made(prior="learned")(KEY, jnp.zeros((3, 6)), jnp.zeros((3, 5)))
    with pytest.raises(ValueError, match="tau must be None with the estimator 'score-function'"):
        made(estimator="score-function")(KEY, jnp.zeros((3, 6)), tau=0.5)
    with pytest.raises(TypeError, match=r"'num_classes'. It takes key, in_features, variables, classes, head"):
        cj.CategoricalLatent.init(KEY, 4, variables=2, num_classes=5)  # type: ignore[call-arg]


def test_a_latent_is_shown_by_its_shapes() -> None:
    q = made()(KEY, jnp.zeros((2, 6)))
    assert repr(q).startswith("Latent(z=float32[2, 3, 5], code=float32[2, 3, 5], log_q=") and len(repr(q)) < 150
    assert repr(jax.tree.map(lambda leaf: 0, q)) == "Latent(z=0, code=0, log_q=0, log_prior=0, kl=0)"
