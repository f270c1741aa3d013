"""Classes that are not allowed: renormalise what is left, or prune the tree.

Renormalising divides by the mass of the allowed classes. Pruning sends a node's mass to its live side: each node then
still has its own coin, so paths stay short and the Fisher matrix stays diagonal; the two differ in where the forbidden
mass goes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from catnat.jax import _eager
from catnat.jax._plan import Plan


def renormalize(log_p: Array, mask: Array) -> Array:
    """log p of the allowed classes given that one of them comes up; -inf elsewhere, never NaN."""
    # A row with nothing allowed is all -inf in the end; until then it is treated as if all were.
    usable = mask | ~mask.any(-1, keepdims=True)
    allowed = jnp.where(usable, log_p, -jnp.inf)
    # Allowed classes without any mass (floor=0) share it evenly.
    massless = (allowed == -jnp.inf).all(-1, keepdims=True)
    allowed = jnp.where(massless, jnp.where(usable, 0, -jnp.inf), allowed)
    return jnp.where(mask, allowed - jax.nn.logsumexp(allowed, -1, keepdims=True), -jnp.inf)


def even_shares(mask: Array, dtype: DTypeLike) -> Array:
    """The same share for every allowed class, 1 in all."""
    allowed = mask.astype(dtype)
    return allowed / allowed.sum(-1, keepdims=True)


def live_branches(mask: Array, plan: Plan, dtype: DTypeLike) -> tuple[Array, Array]:
    """Whether the left and the right branch of every node leads to an allowed class: [..., K-1] each."""
    left, right = eager.ascend(mask.astype(dtype), plan)
    return left > 0, right > 0


def prune(log_left: Array, log_right: Array, mask: Array, plan: Plan) -> tuple[Array, Array]:
    """Branch log-probabilities with the whole mass of every half-dead node on its live side."""
    left_lives, right_lives = live_branches(mask, plan, log_left.dtype)
    only_left, only_right = left_lives & ~right_lives, right_lives & ~left_lives
    return (
        jnp.where(only_left, 0, jnp.where(only_right, -jnp.inf, log_left)),
        jnp.where(only_right, 0, jnp.where(only_left, -jnp.inf, log_right)),
    )


class PrunedCoins(eager.Coins):
    """Coins of the pruned tree: a dead branch is never taken, a lone one always."""

    def __init__(self, x: Array, mask: Array, plan: Plan) -> None:
        super().__init__(x)
        self.free = eager.coins_of(x, plan)
        self.left_lives, self.right_lives = live_branches(mask, plan, x.dtype)

    def mint(self, uniforms: Array) -> Array:
        """As for free coins."""
        return self.free.mint(uniforms)

    def toss(self, minted: Array, nodes: Array | None) -> Array:
        """Right where only that lives, or where both do and the free coin says so."""
        left, right = eager.row_values(self.left_lives, nodes), eager.row_values(self.right_lives, nodes)
        return right & (~left | self.free.toss(minted, nodes))


def coins_of_masses(probabilities: Array, plan: Plan) -> eager.Coins:
    """Coins that give the classes these probabilities: the mass on the right of a node by all its mass."""
    left, right = eager.ascend(probabilities, plan)
    # a side without mass is never taken, not even by rounding
    return eager.Coins(
        jnp.where(left > 0, right / jnp.where(left > 0, left + right, 1), (right > 0).astype(right.dtype))
    )
