"""Gradients through samples: the score function with its baselines, straight-through, relaxed and distinct samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero
from jax.tree_util import register_dataclass, register_static

from catnat.core.errors import advised, check_num_samples, too_few_allowed
from catnat.core.parameterization import ParameterizationLike
from catnat.jax import functional
from catnat.jax._compat import is_readable
from catnat.jax._inputs import as_array, at_least_single, check_floating, check_key
from catnat.jax._noise import check_temperature, gumbel
from catnat.jax.distributions import OneHotCatnatStraightThrough, perturb
from catnat.jax.sampling import known

__all__ = [
    "LeaveOneOut",
    "MovingAverage",
    "gumbel_softmax",
    "sample_without_replacement",
    "score_function",
    "straight_through",
]


@register_dataclass
@dataclass(frozen=True, eq=False)
class MovingAverage:
    """A baseline that follows the mean of the costs it has seen: b <- decay * b + (1 - decay) * mean(cost).

    The first batch sets it. Costs that are not finite are left out, and counted as ``skipped``. It is a value: `update`
    returns the next one, for the training state to carry.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> average = cj.MovingAverage(decay=0.5).update(jnp.array([4.0, 6.0])).update(jnp.array([1.0, jnp.inf]))
        >>> average(jnp.zeros(2)), average.skipped
        (Array(3., dtype=float32), Array(1, dtype=int32))
    """

    decay: float = field(default=0.99, metadata={"static": True})
    value: Array = field(default_factory=lambda: jnp.zeros(()))
    seen: Array = field(default_factory=lambda: jnp.zeros((), bool))
    skipped: Array = field(default_factory=lambda: jnp.zeros((), jnp.int32))

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay must lie in [0, 1); got {self.decay!r}")

    def __call__(self, cost: Array) -> Array:
        """The baseline from costs seen before this one: 0 at first."""
        return self.value.astype(cost.dtype) if jnp.issubdtype(cost.dtype, jnp.floating) else self.value

    def update(self, cost: Array) -> MovingAverage:
        """The average with this batch taken in."""
        cost = lax.stop_gradient(jnp.asarray(cost)).astype(self.value.dtype)
        finite = jnp.isfinite(cost)
        count = finite.sum(dtype=jnp.int32)
        mean = jnp.where(finite, cost, 0).sum() / jnp.maximum(count, 1)
        moved = jnp.where(self.seen, self.decay * self.value + (1 - self.decay) * mean, mean)
        value = jnp.where(count > 0, moved, self.value)
        return MovingAverage(self.decay, value, self.seen | (count > 0), self.skipped + cost.size - count)


@register_static
@dataclass(frozen=True)
class LeaveOneOut:
    """A baseline for several samples a row, two at least along ``axis``: for each, the mean cost of the others.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> cj.LeaveOneOut()(jnp.array([1.0, 2.0, 6.0]))
        Array([4. , 3.5, 1.5], dtype=float32)
    """

    axis: int = 0

    def __call__(self, cost: Array) -> Array:
        """The baseline of every sample."""
        count = cost.shape[self.axis] if cost.ndim else 0
        if count < 2:
            wanted = f"at least 2 samples along axis {self.axis}"
            raise ValueError(f"a leave-one-out baseline needs {wanted}; got {count} (cost has shape {cost.shape})")
        return (cost.sum(self.axis, keepdims=True) - cost) / (count - 1)


Baseline = float | Array | MovingAverage | LeaveOneOut | None


def score_function(cost: Array, log_prob: Array, baseline: Baseline = None) -> Array:
    """A surrogate for the expected cost: its value is ``cost``, its gradient the score-function estimate.

    The gradient is d cost + (cost - baseline) d log p, elementwise; take the mean over samples and minimise. It is
    unbiased for every baseline here.

    Args:
        cost: the cost of every sample; its own gradient, where it has one, is kept.
        log_prob: log p of every sample, of the same shape. Where the cost has a gradient and this has none, it is an
            error: they may have changed places, or the distribution would never be trained.
        baseline: None, a constant, an array that broadcasts to the costs (such as a value network's output: its
            gradient is not taken), a `MovingAverage` (which the caller updates), or `LeaveOneOut` along the axis of the
            samples.

    Example:
        >>> import jax, jax.numpy as jnp, catnat.jax as cj
        >>> def loss(scores, key):
        ...     policy = cj.CatnatCategorical(scores, 4)
        ...     x, log_prob = policy.sample_and_log_prob(key, (64,))
        ...     return cj.score_function((x - 1.0) ** 2, log_prob, cj.LeaveOneOut()).mean()
        >>> jax.grad(loss)(jnp.zeros(3), jax.random.key(0)).shape
        (3,)
    """
    cost, log_prob = as_array(cost, "cost"), check_floating(as_array(log_prob, "log_prob")[None], "log_prob")[0]
    if cost.shape != log_prob.shape:
        raise ValueError(f"cost and log_prob must have one shape; got {cost.shape} and {log_prob.shape}")
    signal = lax.stop_gradient(cost)
    if isinstance(baseline, (MovingAverage, LeaveOneOut)):
        signal = signal - lax.stop_gradient(baseline(signal))
    elif isinstance(baseline, (int, float, jax.Array, np.ndarray, np.number)) and not isinstance(baseline, bool):
        shape = np.shape(baseline)  # which must not make a batch that nobody asked for
        if len(shape) > cost.ndim or any(n not in (1, m) for n, m in zip(shape[::-1], cost.shape[::-1], strict=False)):
            raise ValueError(f"baseline must broadcast to the costs' shape {cost.shape}; got {shape}")
        signal = signal - lax.stop_gradient(baseline)
    elif baseline is not None:
        raise TypeError(f"baseline must be None, a number, an array, MovingAverage or LeaveOneOut; got {baseline!r}")
    return _surrogate(cost.astype(jnp.promote_types(cost.dtype, log_prob.dtype)), log_prob, signal)


@jax.custom_jvp
def _surrogate(cost: Array, log_prob: Array, signal: Array) -> Array:
    return cost


@partial(_surrogate.defjvp, symbolic_zeros=True)
def _surrogate_jvp(primals: tuple[Array, ...], tangents: tuple[Array | SymbolicZero, ...]) -> tuple[Array, Array]:
    cost, log_prob, signal = primals
    d_cost, d_log_prob, _ = tangents
    if isinstance(d_log_prob, SymbolicZero):
        raise ValueError(
            "log_prob must have a gradient where cost has one; got one of cost alone. Are the two in the wrong order? "
            "Where the distribution is not to be trained, the cost is all that is needed"
        )
    # an impossible sample must not make it NaN
    moved = jnp.where(log_prob == -jnp.inf, 0, signal * d_log_prob).astype(cost.dtype)
    return _surrogate(cost, log_prob, signal), moved if isinstance(d_cost, SymbolicZero) else d_cost + moved


@advised
def straight_through(
    key: Array, scores: Array, parameterization: ParameterizationLike, *, mask: Array | None = None
) -> Array:
    """One-hot samples [..., K] with the gradient of the probabilities: biased, low variance.

    Example:
        >>> import jax, jax.numpy as jnp, catnat.jax as cj
        >>> cj.straight_through(jax.random.key(0), jnp.zeros((2, 3)), 4).sum(-1)
        Array([1., 1.], dtype=float32)
    """
    return OneHotCatnatStraightThrough(scores, parameterization, mask=mask).rsample(key)


@advised
def gumbel_softmax(
    key: Array,
    scores: Array,
    parameterization: ParameterizationLike,
    tau: Array | float = 1.0,
    hard: bool = False,
    *,
    axis: int = -1,
    mask: Array | None = None,
) -> Array:
    """Samples softmax((log p + Gumbel noise) / tau), or with ``hard`` one-hot ones that have their gradient.

    A hard sample is an exact draw at every ``tau``, a number or one a row, which may change inside a jitted step.

    Example:
        >>> import jax, jax.numpy as jnp, catnat.jax as cj
        >>> cj.gumbel_softmax(jax.random.key(0), jnp.zeros((2, 3)), 4, tau=0.5, hard=True).sum(-1)
        Array([1., 1.], dtype=float32)
    """
    scores = check_floating(scores, "scores")
    log_p = functional.log_catnat(at_least_single(scores), parameterization, mask=mask, axis=axis)
    log_p = jnp.moveaxis(log_p, axis, -1)
    perturbed, soft = perturb(key, log_p, check_temperature(tau, log_p.shape[:-1], "tau"))
    # the largest before the softmax, which may round neighbours together
    z = _round(perturbed, soft) if hard else soft
    return jnp.moveaxis(z, -1, axis).astype(scores.dtype)


@advised
def sample_without_replacement(
    key: Array, scores: Array, num_samples: int, parameterization: ParameterizationLike, *, mask: Array | None = None
) -> Array:
    """Draw different classes one after the other, each among those that are left: the largest of log p + Gumbel noise.

    Classes without any mass come last, in any order. ``num_samples`` is at most K or as many as the mask allows. (Where
    a mask cannot be looked at, as under `jax.jit`, forbidden classes fill the places that are left.) Other arguments as
    in `catnat.jax.sample`, and NaN scores too are an error, or give K. The class ids are [..., num_samples].

    Example:
        >>> import jax, jax.numpy as jnp, catnat.jax as cj
        >>> cj.sample_without_replacement(jax.random.key(0), jnp.zeros(3), 4, 4).sort()
        Array([0, 1, 2, 3], dtype=int32)
    """
    key = check_key(key)
    scores = lax.stop_gradient(at_least_single(check_floating(scores, "scores")))
    log_p = functional.log_catnat(scores, parameterization, mask=mask)
    num_samples = check_num_samples(num_samples, log_p.shape[-1])
    if mask is not None and is_readable(mask):
        fewest = int(np.asarray(mask).sum(-1).min(initial=log_p.shape[-1]))
        if fewest < num_samples:
            raise too_few_allowed(num_samples, fewest)
    return known(_first(key, log_p, mask, count=num_samples), log_p.shape[-1])


@partial(jax.jit, static_argnames="count")
def _first(key: Array, log_p: Array, mask: Array | None, *, count: int) -> Array:
    """The first classes in the order that noise gives them."""
    dead = log_p == -jnp.inf
    # so far below the others that no noise lifts a class without mass above them; forbidden ones stay at the bottom
    last = jnp.where(dead, jnp.inf, log_p).min(-1, keepdims=True) - 100
    log_p = jnp.where(dead if mask is None else dead & mask, last, log_p)
    drawn = lax.top_k(log_p + gumbel(key, log_p.shape, log_p.dtype), count)[1]
    return jnp.where(jnp.isnan(log_p).any(-1, keepdims=True), log_p.shape[-1], drawn)


def _round(perturbed: Array, soft: Array) -> Array:
    """One-hot rows at the largest entries, with the gradient of the soft ones."""
    return jax.nn.one_hot(perturbed.argmax(-1), soft.shape[-1], dtype=soft.dtype) + (soft - lax.stop_gradient(soft))
