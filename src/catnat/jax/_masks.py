"""Classes that are not allowed, as other logits of the same tree.

A node with allowed classes on one side only sends everything there. Where both sides have some, *pruning* leaves the
node's coin as it is: the Fisher matrix stays diagonal. *Renormalising* shifts it to the coin given that an allowed
class comes up, which is the catnat divided by the mass of the allowed classes. That is done along the tree, so that no
two large logarithms are subtracted where all allowed classes are improbable.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from catnat.jax import _eager
from catnat.jax._node import log_add, log_coin
from catnat.jax._plan import Plan


def prune(z: Array, mask: Array, plan: Plan) -> Array:
    """Logits that send the whole mass of every half-dead node to its live side."""
    return _toward_life(z, *counts(mask, plan, z.dtype))


def renormalize(z: Array, mask: Array, plan: Plan) -> Array:
    """Logits of the coins given that an allowed class comes up; never NaN unless a score is.

    With M the log-mass of the allowed classes below a place, relative to that place, a node's logit is
    z + M_right - M_left.
    """
    on_left, on_right = counts(mask, plan, z.dtype)
    coins = log_coin(z)
    # a dead branch has no mass, whatever stands on it
    log_left, log_right = (jnp.where(n > 0, c, -jnp.inf) for n, c in zip((on_left, on_right), coins, strict=True))
    levels = [_eager.levels(branch, plan) for branch in (log_left, log_right)]

    def join(level: int, left: Array, right: Array) -> Array:
        return log_add(levels[0][level] + left, levels[1][level] + right)

    left, right = _eager.climb(jnp.where(mask, jnp.zeros((), z.dtype), -jnp.inf), plan, join)
    # allowed classes without any mass share it evenly: no floor, or infinite scores
    massless = (log_left + left == -jnp.inf) & (log_right + right == -jnp.inf)
    return _toward_life(jnp.where(massless, _log_ratio(on_left, on_right), z + (right - left)), on_left, on_right)


def renormalize_classes(log_p: Array, mask: Array) -> Array:
    """The same in log p of every class, for trees so deep that they are not walked level by level."""
    # A row with nothing allowed is all -inf in the end; until then it is treated as if all were.
    usable = mask | ~mask.any(-1, keepdims=True)
    allowed = jnp.where(usable, log_p, -jnp.inf)
    massless = (allowed == -jnp.inf).all(-1, keepdims=True)
    allowed = jnp.where(massless, jnp.where(usable, 0, -jnp.inf), allowed)
    return jnp.where(mask, allowed - jax.nn.logsumexp(allowed, -1, keepdims=True), -jnp.inf)


def logits_of_masses(probabilities: Array, mask: Array, plan: Plan) -> Array:
    """Logits that give the classes these probabilities; even ones where none is left of both sides."""
    left, right = _eager.ascend(probabilities, plan)
    on_left, on_right = counts(mask, plan, probabilities.dtype)
    z = jnp.log(right) - jnp.log(left)
    empty = (left == 0) & (right == 0)
    return _toward_life(jnp.where(empty, _log_ratio(on_left, on_right), z), on_left, on_right)


def counts(mask: Array, plan: Plan, dtype: DTypeLike) -> tuple[Array, Array]:
    """How on_right allowed classes are on the left and on the right of every node: [..., K-1] each."""
    return _eager.ascend(mask.astype(dtype), plan)


def _toward_life(z: Array, on_left: Array, on_right: Array) -> Array:
    """Infinite logits where only one side has allowed classes, as on_right as ``on_left`` and ``on_right`` say."""
    return jnp.where((on_left > 0) & (on_right == 0), -jnp.inf, jnp.where((on_right > 0) & (on_left == 0), jnp.inf, z))


def _log_ratio(on_left: Array, on_right: Array) -> Array:
    return jnp.log(jnp.maximum(on_right, 1)) - jnp.log(jnp.maximum(on_left, 1))
