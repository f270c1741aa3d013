"""The one door to the walks: which of them runs is asked here and nowhere else.

Two ways lead from scores to log p of every class: plain array code, compiled by XLA, and Pallas's kernels on an NVIDIA
GPU. The public functions are built on top, each compiled once for a plan and a shape: outside of `jax.jit` a function
of many small operations would be sent to the device one operation at a time. Everything here takes prepared scores
[..., K-1] and a plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from catnat.jax import _compat, _eager, _path
from catnat.jax._masks import logits_of_masses, prune, renormalize, renormalize_classes
from catnat.jax._node import coin, log_coin, logit, slope
from catnat.jax._plan import Plan

Function = TypeVar("Function", bound=Callable[..., Array])

# -- log p of every class ----------------------------------------------------------------------------------------

# Three maps belong together: the *walk* from scores to log-probabilities, its derivative *push* (linear in a tangent)
# and the transpose of that, *pull* (linear in a cotangent). Each is a primitive of JAX's, because its decorators offer
# either a rule for both modes without a say in the transpose, or one for reverse mode alone. Here all of them have
# rules, and the walk and the pull have kernels too. A second derivative is the plain derivative of push or pull.


def log_classes(x: Array, plan: Plan) -> Array:
    """log p of every class: [..., K-1] to [..., K]."""
    return _walk.bind(x, plan=plan)


def plain_walk(x: Array, *, plan: Plan) -> Array:
    """log p of every class."""
    return _eager.descend(*log_coin(logit(x, plan)), plan)[0]


def plain_push(x: Array, dx: Array, *, plan: Plan) -> Array:
    """The derivative of `log_classes` at ``x`` along ``dx``."""
    left, right, deviation = coin(logit(x, plan))
    dz = slope(x, deviation, plan) * dx
    return _eager.descend(-right * dz, left * dz, plan)[0]


def plain_pull(x: Array, gradient: Array, *, plan: Plan) -> Array:
    """The gradient in the scores ``x`` of what has this gradient in the log-probabilities."""
    left, right, deviation = coin(logit(x, plan))
    below_left, below_right = _eager.ascend(gradient, plan)
    return slope(x, deviation, plan) * (left * below_right - right * below_left)


_walk = _compat.rowwise("catnat_walk", plain_walk, lambda x, *, plan: plan.num_classes)
_push = _compat.rowwise("catnat_push", plain_push, lambda x, dx, *, plan: plan.num_classes)
_pull = _compat.rowwise("catnat_pull", plain_pull, lambda x, gradient, *, plan: plan.num_nodes)


def _derivative_of_linear(primitive: Any, plain: Any) -> _compat.Rule:
    """The derivative of a map (x, v) that is linear in v: itself along v, the plain derivative along x."""

    def rule(primals: tuple[Array, Array], tangents: tuple[Array | None, ...], *, plan: Plan) -> tuple[Array, Array]:
        x, v = primals
        dx, dv = tangents
        parts = []
        if dv is not None:
            parts.append(primitive.bind(x, dv, plan=plan))
        if dx is not None:
            parts.append(jax.jvp(lambda y: plain(y, v, plan=plan), (x,), (dx,))[1])
        return primitive.bind(x, v, plan=plan), sum(parts[1:], parts[0])

    return rule


_compat.differentiate(_walk, lambda x, dx, *, plan: (_walk.bind(*x, plan=plan), _push.bind(*x, *dx, plan=plan)))
_compat.differentiate(_push, _derivative_of_linear(_push, plain_push))
_compat.differentiate(_pull, _derivative_of_linear(_pull, plain_pull))
_compat.transpose_last(_push, lambda cotangent, x, *, plan: _pull.bind(x, cotangent, plan=plan))
_compat.transpose_last(_pull, lambda cotangent, x, *, plan: _push.bind(x, cotangent, plan=plan))


def _kernel_or(plain: _compat.Rule, name: str) -> _compat.Rule:
    def compute(*operands: Array, plan: Plan) -> Array:
        try:
            from catnat.jax._gpu import walk  # here: who has no GPU need not wait for Pallas
        except ImportError:  # a release of JAX without Pallas's Triton dialect
            return plain(*operands, plan=plan)
        return (getattr(walk, name) if walk.applies(operands[0], plan) else plain)(*operands, plan=plan)

    return compute


_compat.on_cuda(_walk, _kernel_or(plain_walk, "walk"), plain_walk)
_compat.on_cuda(_pull, _kernel_or(plain_pull, "pull"), plain_pull)


# -- what the public functions share -----------------------------------------------------------------------------


def compiled(function: Function) -> Function:
    """The function under `jax.jit`, with all that comes by keyword as constants."""
    return jax.jit(function, static_argnames=_compat.keywords_of(function))  # type: ignore[return-value]


def _by_classes(mask: Array | None, plan: Plan, mask_mode: str) -> bool:
    """Whether a mask is applied to the classes' log p, not to the nodes' logits."""
    return mask is not None and mask_mode == "renormalize" and plan.depth > _eager.MAX_STEPS


def logits(x: Array, mask: Array | None, plan: Plan, mask_mode: str) -> Array:
    """The logits of the tree that a mask leaves."""
    z = logit(x, plan)
    if mask is None or plan.num_classes == 1:
        return z
    if _by_classes(mask, plan, mask_mode):
        return logits_of_masses(jnp.exp(log_p(x, mask, plan=plan, mask_mode=mask_mode)), mask, plan)
    mask = jnp.broadcast_to(mask, (*jnp.broadcast_shapes(x.shape[:-1], mask.shape[:-1]), plan.num_classes))
    return (prune if mask_mode == "prune" else renormalize)(z, mask, plan)


@compiled
def log_p(x: Array, mask: Array | None, *, plan: Plan, mask_mode: str) -> Array:
    """log p of every class: [..., K]."""
    if mask is None:
        return log_classes(x, plan)
    if _by_classes(mask, plan, mask_mode):
        return renormalize_classes(log_classes(x, plan), mask)
    classes, _ = _eager.descend(*log_coin(logits(x, mask, plan, mask_mode)), plan)
    return jnp.where(mask, classes, -jnp.inf)


@compiled
def log_prob(x: Array, index: Array, mask: Array | None, *, plan: Plan, mask_mode: str) -> Array:
    """log p of ``index``, whose shape broadcasts with the batch of ``x``; NaN where it is out of range."""
    if mask is not None:
        x = jnp.broadcast_to(x, (*jnp.broadcast_shapes(x.shape[:-1], mask.shape[:-1]), x.shape[-1]))
    batch = x.shape[:-1]
    try:
        shape = jnp.broadcast_shapes(index.shape, batch)
    except ValueError:
        raise ValueError(f"index must broadcast with the scores' batch {batch}; got shape {index.shape}") from None
    in_range = (index >= 0) & (index < plan.num_classes)
    ids = jnp.where(in_range, index, 0)
    extra = len(shape) - len(batch)
    if shape[extra:] == batch:  # samples go last, so that a row's gradient is one row however many samples it has
        samples = math.prod(shape[:extra])
        columns = jnp.moveaxis(jnp.broadcast_to(ids, shape).reshape(samples, *batch), 0, -1)
    else:
        x, columns = jnp.broadcast_to(x, (*shape, x.shape[-1])), jnp.broadcast_to(ids, shape)[..., None]
        extra = 0
    # a mask needs the whole row; so does a tree too large for a table of its paths
    if mask is not None or not plan.has_paths:
        found = jnp.take_along_axis(log_p(x, mask, plan=plan, mask_mode=mask_mode), columns, -1)
    else:
        found = _eager.log_path(x, columns, plan)
    found = jnp.moveaxis(found, -1, 0).reshape(shape) if extra or found.shape[:-1] == shape else found
    return jnp.where(in_range, found, jnp.nan)


def branches(x: Array, mask: Array | None, plan: Plan, mask_mode: str = "prune") -> tuple[Array, Array, Array]:
    """log(1-a), log(a) and the log-probability of being reached, for every node of the tree that a mask leaves."""
    left, right = log_coin(logits(x, mask, plan, mask_mode))
    return left, right, _eager.descend(left, right, plan)[1]


@compiled
def reach(x: Array, mask: Array | None, *, plan: Plan) -> Array:
    """The probability of passing through every node of the pruned tree."""
    return jnp.exp(branches(x, mask, plan)[2])


@compiled
def entropy(x: Array, mask: Array | None, *, plan: Plan, mask_mode: str) -> Array:
    """Entropy in nats, node by node."""
    if _by_classes(mask, plan, mask_mode):
        return minus_p_log_p(log_p(x, mask, plan=plan, mask_mode=mask_mode)).sum(-1)
    left, right, reached = branches(x, mask, plan, mask_mode)
    return (jnp.exp(reached) * (minus_p_log_p(left) + minus_p_log_p(right))).sum(-1)


@compiled
def kl_divergence(p: Array, q: Array, mask: Array | None, *, plan: Plan, mask_mode: str) -> Array:
    """KL(p || q) in nats, node by node."""
    if _by_classes(mask, plan, mask_mode):
        return p_log_ratio(*(log_p(x, mask, plan=plan, mask_mode=mask_mode) for x in (p, q))).sum(-1)
    p_left, p_right, reached = branches(p, mask, plan, mask_mode)
    q_left, q_right, _ = branches(q, mask, plan, mask_mode)
    # a coin that is never tossed counts for nothing, be it infinitely off
    never = reached == -jnp.inf
    p_left, p_right, q_left, q_right = (jnp.where(never, 0, b) for b in (p_left, p_right, q_left, q_right))
    coins = p_log_ratio(p_left, q_left) + p_log_ratio(p_right, q_right)
    # a coin that is infinitely off makes the sum so, however rarely it is tossed
    return jnp.where(coins == jnp.inf, coins, jnp.exp(reached) * coins).sum(-1)


@compiled
def draw(key: Array, x: Array, mask: Array | None, *, count: int, plan: Plan, mask_mode: str) -> Array:
    """``count`` classes a row: [..., count]."""
    if mask is None:
        return _eager.draw(key, x, count, plan)
    return _eager.draw(key, logits(x, mask, plan, mask_mode), count, plan, are_logits=True)


@compiled
def linear_log_prob(weight: Array, bias: Array | None, x: Array, index: Array, *, plan: Plan) -> Array:
    """log p of one class a row under scores x @ weight.T + bias, from those on its path alone."""
    return _path.log_prob(weight, bias, x, index, plan)


@compiled
def linear_draw(key: Array, weight: Array, bias: Array | None, x: Array, *, count: int, plan: Plan) -> Array:
    """``count`` classes a row under scores x @ weight.T + bias, from those on one path each."""
    return _path.draw(key, weight, bias, x, count, plan)


def minus_p_log_p(log_p: Array) -> Array:
    """- p log p with value and gradient 0 at p = 0."""
    return -times_log(jnp.exp(log_p), log_p)


def times_log(weight: Array, log_p: Array) -> Array:
    """weight * log p, 0 where the weight is 0 whatever log p is."""
    return weight * jnp.where(weight == 0, 0, log_p)


def p_log_ratio(log_p: Array, log_q: Array) -> Array:
    """p log(p / q) with value and gradient 0 at p = 0."""
    dead = log_p == -jnp.inf
    alive = jnp.where(dead, 0, log_p)
    return jnp.exp(alive) * jnp.where(dead, 0, alive - log_q)
