"""What the public functions share: each compiled once for a plan and a shape, with masks applied.

Everything here takes prepared scores [..., K-1] and a plan. Outside of `jax.jit` a function of many small operations
would be sent to the device one operation at a time, so the functions here are jitted themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from catnat.jax import _eager, _fused
from catnat.jax._node import log_branches
from catnat.jax._compat import keywords_of
from catnat.jax._masks import PrunedCoins, coins_of_masses, prune, renormalize
from catnat.jax._plan import Plan

Function = TypeVar("Function", bound=Callable[..., Array])


def compiled(function: Function) -> Function:
    """The function under `jax.jit`, with all that comes by keyword as constants."""
    return jax.jit(function, static_argnames=keywords_of(function))  # type: ignore[return-value]


@compiled
def log_p(x: Array, mask: Array | None, *, plan: Plan, mask_mode: str) -> Array:
    """log p of every class: [..., K]."""
    if mask is None:
        return fused.log_classes(x, plan)
    if mask_mode == "renormalize":
        return renormalize(fused.log_classes(x, plan), mask)
    classes, _ = eager.descend(*prune(*log_branches(x, plan), mask, plan), plan)
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
        found = eager.log_path(x, columns, plan)
    found = jnp.moveaxis(found, -1, 0).reshape(shape) if extra or found.shape[:-1] == shape else found
    return jnp.where(in_range, found, jnp.nan)


def branches(x: Array, mask: Array | None, plan: Plan) -> tuple[Array, Array, Array]:
    """log(1-a), log(a) and the log-probability of being reached, for every node, in the pruned tree."""
    left, right = log_branches(x, plan)
    if mask is not None:
        left, right = prune(left, right, mask, plan)
    return left, right, eager.descend(left, right, plan)[1]


@compiled
def reach(x: Array, mask: Array | None, *, plan: Plan) -> Array:
    """The probability of passing through every node of the pruned tree."""
    return jnp.exp(branches(x, mask, plan)[2])


@compiled
def entropy(x: Array, mask: Array | None, *, plan: Plan, mask_mode: str) -> Array:
    """Entropy in nats, node by node where the nodes have coins of their own."""
    if mask is not None and mask_mode == "renormalize":
        return minus_p_log_p(log_p(x, mask, plan=plan, mask_mode=mask_mode)).sum(-1)
    left, right, reached = branches(x, mask, plan)
    return (jnp.exp(reached) * (minus_p_log_p(left) + minus_p_log_p(right))).sum(-1)


@compiled
def kl_divergence(p: Array, q: Array, mask: Array | None, *, plan: Plan, mask_mode: str) -> Array:
    """KL(p || q) in nats, node by node where the nodes have coins of their own."""
    if mask is not None and mask_mode == "renormalize":
        both = [log_p(x, mask, plan=plan, mask_mode=mask_mode) for x in (p, q)]
        return p_log_ratio(*both).sum(-1)
    p_left, p_right, reached = branches(p, mask, plan)
    q_left, q_right, _ = branches(q, mask, plan)
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
        return eager.draw(key, eager.coins_of(x, plan), (*x.shape[:-1], count), plan)
    batch = jnp.broadcast_shapes(x.shape[:-1], mask.shape[:-1])
    x, mask = jnp.broadcast_to(x, (*batch, x.shape[-1])), jnp.broadcast_to(mask, (*batch, mask.shape[-1]))
    if mask_mode == "prune":
        coins: eager.Coins = PrunedCoins(x, mask, plan)
    else:
        coins = coins_of_masses(jnp.exp(log_p(x, mask, plan=plan, mask_mode=mask_mode)), plan)
    return eager.draw(key, coins, (*batch, count), plan)


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
