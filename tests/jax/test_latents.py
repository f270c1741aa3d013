"""Latent variables: the same formulas as PyTorch's under the same noise, and a layer that trains."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catnat
import catnat.jax as cj
from catnat.jax import latents

torch = pytest.importorskip("torch")
theirs = pytest.importorskip("catnat.torch.latents")

KEY = jax.random.key(0)
PULL = np.random.default_rng(0).normal(size=(3 * 5, 7)).astype("f4")


@pytest.mark.parametrize("name", ["gumbel", "gumbel-relaxed", "reinmax", "straight-through", "relaxed-descent"])
def test_formulas_are_those_of_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(6, 3, 5)).astype("f4")
    noise, turns = rng.gumbel(size=scores.shape).astype("f4"), rng.logistic(size=(6, 3, 4)).astype("f4")
    monkeypatch.setattr(latents, "_perturbed", lambda key, log_p: log_p + noise)
    monkeypatch.setattr(jax.random, "logistic", lambda key, shape, dtype: jnp.asarray(turns))
    monkeypatch.setattr(theirs, "with_gumbel_noise", lambda log_p, generator: log_p + torch.tensor(noise))
    monkeypatch.setattr(theirs, "_logistic", lambda log_p, generator: torch.tensor(turns))

    def cost(s: jax.Array) -> tuple[jax.Array, jax.Array]:
        z = latents.ESTIMATORS[name](KEY, jax.nn.log_softmax(s), 0.7)
        return jnp.square(jnp.tanh(z.reshape(6, -1) @ PULL)).sum(), z

    (_, z), got = jax.value_and_grad(cost, has_aux=True)(jnp.asarray(scores))
    s = torch.tensor(scores, requires_grad=True)
    want = theirs.ESTIMATORS[name](s.log_softmax(-1), 0.7, generator=None)
    torch.tanh(want.flatten(-2) @ torch.tensor(PULL)).square().sum().backward()
    np.testing.assert_allclose(z, want.detach(), atol=1e-5)
    np.testing.assert_allclose(got, s.grad, atol=2e-5)


def test_estimators_that_average_over_noise() -> None:
    log_p = jax.nn.log_softmax(jnp.array([[0.3, -0.5, 1.0, 0.1]]))
    pull = jnp.array([1.0, -2.0, 0.5, 3.0])
    many = jnp.broadcast_to(log_p, (20_000, 4))

    def moments(estimator: object) -> tuple[np.ndarray, np.ndarray]:
        got = jax.grad(lambda lp: (estimator(KEY, lp, 0.8) * pull).sum())(many)  # type: ignore[operator]
        drawn = np.asarray(estimator(KEY, many, 0.8).argmax(-1) == 1)  # type: ignore[operator]
        rows = np.asarray(got, np.float64)[drawn]
        return rows.mean(0), rows.std(0) / np.sqrt(len(rows))

    (a, e), (b, f) = moments(latents.gumbel_softmax), moments(lambda *x: latents.gumbel_rao(*x, samples=2))
    assert (np.abs((a - b) / np.hypot(e, f)) < 4.5).all()

    def expected(s: jax.Array) -> jax.Array:
        p = jax.nn.softmax(s)
        return (p[:, None] * p[None] * jnp.square(pull[:, None] + pull[None])).sum()

    def estimate(s: jax.Array) -> jax.Array:
        pair = latents.antithetic_pair(KEY, jax.nn.log_softmax(jnp.broadcast_to(s, (20_000, 2, 4))))
        return latents.antithetic_cost(jnp.square((pair.z * pull).sum((-1, -2))), pair)

    scores = jnp.array([0.3, -0.5, 1.0, 0.1])
    want, values = jax.grad(expected)(scores), np.asarray(estimate(scores), np.float64)
    assert abs(values.mean() - expected(scores)) < 4.5 * values.std() / np.sqrt(len(values))
    got = jax.jacrev(lambda s: estimate(s).reshape(40, 500).mean(1))(scores)
    assert (np.abs((got.mean(0) - want) / got.std(0)) * np.sqrt(len(got)) < 4.5).all()


@pytest.mark.parametrize("head", ["softmax", "natural", "sigmoid"])
def test_the_layer_is_what_it_is_made_of(head: str) -> None:
    prior = np.array([0.4, 0.3, 0.1, 0.1, 0.1])
    layer = cj.CategoricalLatent.init(KEY, 8, 3, 5, head=head, prior=prior, unimix=0.05, embed=4)
    h = jax.random.normal(KEY, (64, 8))
    q = jax.jit(lambda layer, key, h: layer(key, h))(layer, KEY, h)
    assert q.z.shape == (64, 3, 4) and q.indices.shape == q.kl.shape == (64, 3)
    np.testing.assert_allclose(layer.decode(q.indices), q.z, atol=1e-4)
    p = np.exp(np.asarray(q.log_q, np.float64))
    np.testing.assert_allclose(p.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(q.kl, (p * (np.log(p) - np.log(prior))).sum(-1), atol=1e-5)
    rows = np.take_along_axis(np.log(p), np.asarray(q.indices)[..., None], -1)
    np.testing.assert_allclose(q.log_prob, rows.sum((-1, -2)), atol=1e-4)
    usage = np.stack([np.bincount(column, minlength=5) for column in np.asarray(q.indices).T]) / 64
    np.testing.assert_allclose(q.stats().usage, usage, atol=1e-6)
    np.testing.assert_allclose(q.stats().dead, (usage == 0).mean(-1))
    both = jax.grad(lambda layer: layer(KEY, h).loss(balance=0.8).sum())(layer)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(both))
    free = float(q.kl.sum(-1).max()) + 1
    assert (q.loss(free_nats=free) == free).all()


def test_no_noise_makes_nan() -> None:
    log_p = jnp.log(jnp.array([[0.5, 0.5, 0.0, 0.0]], jnp.bfloat16).repeat(20_000, 0))
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
    with pytest.raises(TypeError, match="key"):
        layer(jnp.zeros((3, 4)), KEY)
