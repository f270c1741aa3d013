"""Discrete latent variables: samples of one-hot vectors with a gradient, and the layer that draws them.

Every estimator is a function of log-probabilities, so that it is the same for softmax and for catnat; logits do as
well. It returns an exact one-hot sample (or, where its name says so, a relaxed one) whose gradient is the estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.tree_util import register_dataclass

from catnat.core import latents as core
from catnat.core.errors import advised, check_choice, check_positive, check_share
from catnat.core.latents import Stats
from catnat.core.parameterization import Activation, Parameterization
from catnat.jax import functional
from catnat.jax._compat import is_readable
from catnat.jax._eager import p_log_ratio
from catnat.jax._inputs import at_least_single, check_floating, check_integers, check_key, check_number
from catnat.jax._noise import gumbel
from catnat.jax._noise import soften as soften_rows
from catnat.jax.sampling import known

__all__ = ["CategoricalLatent", "Latent"]

Tau = Array | float
STATIC = {"static": True}


def straight_through(key: Array, log_p: Array, tau: Tau = 1.0) -> Array:
    """The gradient of softmax(log p / tau); at tau = 1 that of the probabilities."""
    return _passed(soften(log_p, tau), _one_hot(_perturbed(key, lax.stop_gradient(log_p))))


def gumbel_softmax(key: Array, log_p: Array, tau: Tau = 1.0) -> Array:
    """The gradient of the relaxed sample softmax((log p + Gumbel noise) / tau), which the sample rounds."""
    perturbed = _perturbed(key, log_p)
    return _passed(soften(perturbed, tau), _one_hot(perturbed))


def gumbel_softmax_relaxed(key: Array, log_p: Array, tau: Tau = 1.0) -> Array:
    """The relaxed sample softmax((log p + Gumbel noise) / tau) itself, inside the simplex."""
    return soften(_perturbed(key, log_p), tau)


def gumbel_rao(key: Array, log_p: Array, tau: Tau = 1.0, *, samples: int = 10) -> Array:
    """Gumbel-softmax, its gradient averaged over noise that draws the same sample (Paulus and others, 2021)."""
    core.check_sizes(samples=samples)
    dtype, log_p = log_p.dtype, at_least_single(log_p)  # of 16 bits, noise may be 0
    first, second = jax.random.split(key)
    fixed = jax.nn.log_softmax(lax.stop_gradient(log_p))  # logits are welcome
    sample = _one_hot(_perturbed(first, fixed))
    # given the class drawn, its perturbed log p is a Gumbel variate g, and the others are cut off at g; a Gumbel
    # variate is -log of an exponential one
    variates = jnp.exp(-gumbel(second, (samples, *log_p.shape), log_p.dtype))
    top = (variates * sample).sum(-1, keepdims=True)
    perturbed = -jnp.log(top + jnp.where(sample > 0, 0, variates * jnp.exp(-fixed)))
    return _passed(soften(perturbed + _slope_of(log_p), tau).mean(0), sample).astype(dtype)


def reinmax(key: Array, log_p: Array, tau: Tau = 1.0) -> Array:
    """Second-order straight-through (Liu and others, 2023): exact for quadratic costs at tau = 1.

    A learned ``tau`` gets no gradient.
    """
    fixed = lax.stop_gradient(log_p)
    sample = _one_hot(_perturbed(key, fixed))
    middle = (sample + lax.stop_gradient(soften(fixed, tau))) / 2
    # a softmax whose value is the middle and whose slope is that of a softmax there
    there = jax.nn.softmax(jnp.log(middle) + _slope_of(log_p))
    return _passed(2 * there - jax.nn.softmax(log_p) / 2, sample)


ESTIMATORS: dict[str, Callable[..., Array]] = {
    "gumbel": gumbel_softmax,
    "gumbel-relaxed": gumbel_softmax_relaxed,
    "gumbel-rao": gumbel_rao,
    "reinmax": reinmax,
    "straight-through": straight_through,
    "score-function": lambda key, log_p, tau: _one_hot(_perturbed(key, lax.stop_gradient(log_p))),
}


def kl_divergence(log_q: Array, log_prior: Array) -> Array:
    """[...] KL(q || prior) in nats, of log-probabilities [..., K]: 0 log 0 is 0, in value and gradient."""
    return p_log_ratio(log_q, log_prior).sum(-1)


def soften(values: Array, tau: Tau) -> Array:
    """softmax(values / tau); where a probability is 0 it stays so, and the temperature's gradient finite."""
    tau = jnp.asarray(check_number("tau", tau, check_positive))
    return soften_rows(values, tau[..., 0] if tau.ndim else tau)


def _perturbed(key: Array, log_p: Array) -> Array:
    return log_p + gumbel(check_key(key), log_p.shape, log_p.dtype)


def _one_hot(values: Array) -> Array:
    return jax.nn.one_hot(values.argmax(-1), values.shape[-1], dtype=values.dtype)


def _slope_of(log_p: Array) -> Array:
    """0, with the gradient of log p; none where a probability is 0."""
    own = jnp.where(log_p == -jnp.inf, 0, log_p)
    return own - lax.stop_gradient(own)


def _passed(soft: Array, sample: Array) -> Array:
    return sample + (soft - lax.stop_gradient(soft))


def _known(values: Array) -> Array:
    """The class of the largest value, or what `known` makes of NaN."""
    classes = values.shape[-1]
    return known(jnp.where(jnp.isnan(values).any(-1), classes, values.argmax(-1)), classes)


class Latent(NamedTuple):
    """What a `CategoricalLatent` makes of features [..., in_features]."""

    z: Array  # [..., variables, classes] one-hot, or [..., variables, embed]; with a gradient
    code: Array  # [..., variables, classes] the sample of which z is made: one-hot, but for "gumbel-relaxed"
    log_q: Array  # [..., variables, classes]
    log_prior: Array  # what log_q is held against
    kl: Array  # [..., variables] KL(q || prior) in nats

    def __repr__(self) -> str:
        return core.in_shapes(self)

    @property
    def indices(self) -> Array:
        """[..., variables] int32: the classes drawn."""
        lost = jnp.isnan(self.log_q).any(-1)
        return known(jnp.where(lost, self.code.shape[-1], self.code.argmax(-1)), self.code.shape[-1])

    @property
    def log_prob(self) -> Array:
        """[...] log q of the indices, the variables' sum: what `score_function` wants."""
        return jnp.take_along_axis(self.log_q, self.code.argmax(-1)[..., None], -1)[..., 0].sum(-1)

    def loss(self, beta: Array | float = 1.0, *, free_nats: float = 0.0, balance: float | None = None) -> Array:
        """[...] beta times the sum of the KL over the variables; arguments as in `catnat.torch`."""
        total = self.kl.sum(-1)
        if balance is not None:
            check_share("balance", balance)
            moved = p_log_ratio(lax.stop_gradient(self.log_q), self.log_prior).sum((-1, -2))
            drawn = p_log_ratio(self.log_q, lax.stop_gradient(self.log_prior)).sum((-1, -2))
            total = balance * moved + (1 - balance) * drawn
        return beta * jnp.maximum(total, free_nats)

    def stats(self, axis_name: str | None = None) -> Stats:
        """Usage of the classes in this batch; with ``axis_name`` over the devices of that axis."""
        *_, variables, classes = self.log_q.shape
        rows = self.code.argmax(-1).reshape(-1, variables)
        usage = jax.vmap(lambda ids: jnp.bincount(ids, length=classes), 1)(rows) / len(rows)
        entropy = -p_log_ratio(self.log_q, jnp.zeros_like(self.log_q)).sum(-1).reshape(-1, variables).mean(0)
        usage, entropy = lax.stop_gradient((usage, entropy))
        if axis_name is not None:
            usage, entropy = lax.pmean((usage, entropy), axis_name)
        perplexity = jnp.exp(jax.scipy.special.entr(usage).sum(-1))
        return Stats(usage, perplexity, entropy, (usage == 0).mean(-1))


@register_dataclass
@dataclass(frozen=True, eq=False)
class CategoricalLatent:
    """Categorical latent variables: from features to samples with a gradient, with their KL from a prior.

    A pytree, made with `init`: a field of an Equinox module, an entry of a dict of parameters or, in Flax's nnx,
    ``nnx.data(jax.tree.map(nnx.Param, latent))``.

    Example:
        >>> import jax, jax.numpy as jnp, catnat.jax as cj
        >>> latent = cj.CategoricalLatent.init(jax.random.key(0), 256, variables=20, classes=16)
        >>> q = latent(jax.random.key(1), jnp.zeros((8, 256)))
        >>> q.z.shape, q.indices.shape, q.loss().shape
        ((8, 20, 16), (8, 20), (8,))
    """

    weight: Array
    bias: Array
    codes: Array | None
    prior: Array | None
    variables: int = field(metadata=STATIC)
    classes: int = field(metadata=STATIC)
    parameterization: Parameterization | None = field(metadata=STATIC)  # None is softmax
    estimator: str = field(metadata=STATIC)
    tau: float = field(metadata=STATIC)
    fixed_prior: tuple[tuple[float, ...], ...] | None = field(metadata=STATIC)
    unimix: float = field(metadata=STATIC)
    channel_first: bool = field(metadata=STATIC)

    @classmethod
    @advised
    def init(
        cls,
        key: Array,
        in_features: int,
        variables: int,
        classes: int,
        *,
        head: str | Activation | Parameterization = "natural",
        estimator: str = "gumbel",
        tau: float | None = None,
        prior: Any = "uniform",
        unimix: float = 0.0,
        embed: int | None = None,
        channel_first: bool = False,
    ) -> CategoricalLatent:
        """A new one; arguments as of `catnat.torch.CategoricalLatent`."""
        core.check_sizes(in_features=in_features, variables=variables, embed=embed)
        check_choice("estimator", estimator, tuple(ESTIMATORS), core.KNOWN_AS)
        pi, fixed = core.parameterization_of(head, classes), core.log_prior_of(prior, variables, classes)
        first, second, third = jax.random.split(check_key(key), 3)
        bound, outputs = in_features**-0.5, variables * (classes if pi is None else classes - 1)
        return cls(
            jax.random.uniform(first, (outputs, in_features), minval=-bound, maxval=bound),
            jax.random.uniform(second, (outputs,), minval=-bound, maxval=bound),
            None if embed is None else jax.random.normal(third, (variables, classes, embed)),
            jnp.zeros((variables, classes)) if fixed is None else None,
            *(variables, classes, pi, estimator, check_positive("tau", core.tau_of(estimator, tau))),
            None if fixed is None else tuple(map(tuple, fixed.tolist())),
            *(core.check_unimix(unimix), channel_first),
        )

    def __call__(self, key: Array, h: Array, prior: Array | None = None, *, tau: Tau | None = None) -> Latent:
        """Draw; ``prior`` [..., variables, classes] log-probabilities, such as another latent's ``log_q``."""
        core.check_tau(self.estimator, tau)
        log_q = self.log_probs(h)
        z = ESTIMATORS[self.estimator](key, log_q, self.tau if tau is None else tau)
        log_prior = self.log_prior if prior is None else check_floating(prior, "prior")
        if prior is not None:
            sums = np.logaddexp.reduce(np.asarray(log_prior, np.float64), -1) if is_readable(log_prior) else np.zeros(1)
            core.check_prior(log_prior.shape, log_q.shape, np.abs(sums).max(initial=0), learns=self.prior is not None)
        kl = kl_divergence(log_q, log_prior)
        return Latent(self._outward(z.astype(h.dtype)), z, log_q, log_prior, kl)

    def log_probs(self, h: Array) -> Array:
        """[..., variables, classes] log q, in float32 at least; of feature maps [N, ..., variables, classes]."""
        h, axis = check_floating(h, "h"), 1 if self.channel_first else -1
        core.check_features(h.shape, self.weight.shape[1], f"axis {axis}", self.channel_first)
        scores = at_least_single(jnp.moveaxis(h, axis, -1) @ self.weight.T + self.bias)
        scores = scores.reshape(*scores.shape[:-1], self.variables, scores.shape[-1] // self.variables)
        pi = self.parameterization
        log_q = jax.nn.log_softmax(scores) if pi is None else functional.log_catnat(scores, pi)
        if self.unimix:
            log_q = jnp.logaddexp(log_q + math.log1p(-self.unimix), math.log(self.unimix / self.classes))
        return log_q

    @property
    def log_prior(self) -> Array:
        """[variables, classes] log-probabilities of its own prior."""
        return jnp.asarray(self.fixed_prior) if self.prior is None else jax.nn.log_softmax(self.prior)

    def argmax(self, h: Array) -> Array:
        """[..., variables] the likeliest class of every variable."""
        return _known(self.log_probs(h))

    def sample(self, key: Array, h: Array) -> Array:
        """[..., variables] classes drawn from q."""
        return _known(_perturbed(key, self.log_probs(h)))

    def sample_prior(self, key: Array, sample_shape: Sequence[int] = ()) -> Array:
        """[..., variables] classes drawn from its own prior, the axes of ``sample_shape`` in front."""
        return _known(_perturbed(key, jnp.broadcast_to(self.log_prior, (*sample_shape, *self.log_prior.shape))))

    def decode(self, indices: Array) -> Array:
        """Classes [..., variables] to what ``z`` is for them."""
        indices = check_integers(indices, "indices")
        core.check_variables(indices.shape, self.variables)
        return self._outward(jax.nn.one_hot(indices, self.classes, dtype=self.weight.dtype))

    def _outward(self, z: Array) -> Array:
        z = z if self.codes is None else jnp.einsum("...vk,vke->...ve", z, self.codes.astype(z.dtype))
        return jnp.moveaxis(z.reshape(*z.shape[:-2], z.shape[-2] * z.shape[-1]), -1, 1) if self.channel_first else z
