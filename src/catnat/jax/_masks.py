"""Classes that are not allowed, as other logits of the same tree; and the masses that this takes.

A node with allowed classes on one side only sends everything there. Where both sides have some it is shifted to what it
is given that an allowed class comes up. That is done along the tree, so that no two large logarithms are subtracted
where all allowed classes are improbable.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from catnat.jax import _eager
from catnat.jax._node import log_add, log_branches, logit
from catnat.jax._plan import Plan


def logits(x: Array, mask: Array | None, plan: Plan) -> Array:
    """The logits given that an allowed class comes up; never NaN unless a score is."""
    z = logit(x, plan)
    if mask is None or plan.num_classes == 1:
        return z
    mask = mask & jnp.ones_like(z[..., :1], bool)  # of the rows' batch, and spread as they are
    on_left, on_right = _eager.ascend(mask.astype(z.dtype), plan)  # how many allowed classes
    left, right = log_branches(z)
    # a dead branch has no mass, whatever stands on it
    left, right = jnp.where(on_left > 0, left, -jnp.inf), jnp.where(on_right > 0, right, -jnp.inf)
    if plan.depth > _eager.MAX_STEPS:
        allowed = jnp.where(mask, _eager.descend(left, right, plan)[0], -jnp.inf)
        left, right = log_masses(allowed, plan)
        shifted = right - left
    else:  # relative to the place: with M the log-mass below it, a node's logit is z + M_right - M_left
        none = jnp.where(mask, jnp.zeros((), z.dtype), -jnp.inf)
        below_left, below_right = log_masses(none, plan, (left, right))
        shifted = z + (below_right - below_left)
        left, right = left + below_left, right + below_right
    # allowed classes without any mass share it evenly: no floor, or infinite scores
    massless = (left == -jnp.inf) & (right == -jnp.inf)
    even = jnp.log(jnp.maximum(on_right, 1)) - jnp.log(jnp.maximum(on_left, 1))
    z = jnp.where(massless, even, shifted)
    return jnp.where((on_left > 0) & (on_right == 0), -jnp.inf, jnp.where((on_right > 0) & (on_left == 0), jnp.inf, z))


def log_masses(classes: Array, plan: Plan, branches: tuple[Array, Array] | None = None) -> tuple[Array, Array]:
    """log of the mass below every node's left and right place, from that of every class: [..., K-1] each.

    With the branches' log-probabilities masses are relative to the place above which they are; the tree is not deep.
    """
    if plan.num_classes == 1:
        return classes[..., :0], classes[..., :0]
    if plan.depth <= _eager.MAX_STEPS:
        steps = [_eager.levels(branch, plan) for branch in branches or ()]

        def join(level: int, left: Array, right: Array) -> Array:
            return log_add(steps[0][level] + left, steps[1][level] + right) if steps else log_add(left, right)

        return _eager.climb(classes, plan, join)
    # What is below a place stands side by side among the classes from left to right: it is put together from runs of
    # 1, 2, 4 ... classes, so that a deep tree takes no more steps than a shallow one.
    in_order, parts, shifts = plan.runs

    def step(found: tuple[Array, ...], at: Any) -> tuple[tuple[Array, Array], None]:
        row, *sums = found  # of each run, and below each place so far
        row = jnp.concatenate((row, jnp.full_like(row[..., :1], -jnp.inf)), -1)
        part = row[..., at[0]]
        return (log_add(row[..., :-1], row[..., at[1]]), log_add(sums[0], part) if sums else part), None

    first, _ = step((classes[..., in_order],), (parts[0], shifts[0]))
    (_, sums), _ = lax.scan(step, first, (parts[1:], shifts[1:]))
    return sums[..., 0::2], sums[..., 1::2]
