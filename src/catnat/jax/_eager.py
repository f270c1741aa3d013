"""The tree walked in plain array code: the reference on every device, and what derivatives of higher order see.

Two linear maps are all there is. *Descend* sums what is written on the branches along every path; *ascend* sums what is
written on the classes below every branch. The balanced heap is walked level by level, since its levels are contiguous.
Any other tree is walked by pointer doubling: log2(depth) gathers, so that a chain of thousands of nodes is no loop.

Rows are cut with `lax.split`, whose transpose is one concatenation; the transpose of a slice is a row of zeros as wide
as the whole, and one a level would make the backward pass as slow as the tree is deep.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from catnat.jax._node import log_branch, log_branches, probability
from catnat.jax._compat import look_up
from catnat.jax._plan import Plan

# Trees deeper than this are sampled by tossing all coins at once instead of walking.
MAX_STEPS = 64

# -- the two maps ------------------------------------------------------------------------------------------------


def descend(left: Array, right: Array, plan: Plan) -> tuple[Array, Array]:
    """Sum along every path what stands on the branches.

    Args:
        left: [..., K-1] what stands on every node's left branch.
        right: [..., K-1] likewise on the right.
        plan: the tree.

    Returns:
        The sums down to every class [..., K] and down to every node [..., K-1].
    """
    if plan.num_classes == 1:
        return jnp.zeros((*left.shape[:-1], 1), left.dtype), left
    if plan.is_heap:
        return _descend_heap(left, right, plan)
    branches = jnp.stack((left, right), -1).reshape(*left.shape[:-1], 2 * plan.num_nodes)
    # [..., 2K] by place; the root and the place 0 above it add nothing
    sums = _pad(branches, 2, 0)
    for above in plan.jumps:
        sums = sums + sums[..., above]
    return sums[..., plan.class_places], sums[..., plan.node_places]


def _descend_heap(left: Array, right: Array, plan: Plan) -> tuple[Array, Array]:
    batch = left.shape[:-1]
    here = jnp.zeros_like(left[..., :1])  # the places of one level
    nodes, finished = [], None
    for on_left, on_right in zip(_levels(left, plan), _levels(right, plan), strict=True):
        width = on_left.shape[-1]
        if here.shape[-1] > width:  # the last level: the places past its nodes are classes already
            here, finished = lax.split(here, (width, here.shape[-1] - width), axis=here.ndim - 1)
        nodes.append(here)
        here = jnp.stack((here + on_left, here + on_right), -1).reshape(*batch, 2 * width)
    classes = here if finished is None else jnp.concatenate((finished, here), -1)
    return classes, jnp.concatenate(nodes, -1)


def _pad(values: Array, before: int, after: int) -> Array:
    """Values with zeros at the ends of the last axis."""
    return lax.pad(values, jnp.zeros((), values.dtype), [(0, 0, 0)] * (values.ndim - 1) + [(before, after, 0)])


def _levels(values: Array, plan: Plan) -> Sequence[Array]:
    return lax.split(values, plan.level_sizes, axis=values.ndim - 1)


def ascend(classes: Array, plan: Plan) -> tuple[Array, Array]:
    """Sum what stands on the classes below every branch: [..., K] to left and right sums, [..., K-1] each."""
    if plan.num_classes == 1:
        return classes[..., :0], classes[..., :0]
    if plan.is_heap:
        return _ascend_heap(classes, plan)
    sums = _pad(classes, 0, 1)[..., plan.class_or_none]
    for above in reversed(plan.jumps):
        sums = sums.at[..., above].add(sums)
    return sums[..., 2::2], sums[..., 3::2]


def _ascend_heap(classes: Array, plan: Plan) -> tuple[Array, Array]:
    *above, deepest = plan.level_sizes
    shallow = plan.num_classes - 2 * deepest  # classes that hang one level higher than the deepest
    finished, here = lax.split(classes, (shallow, 2 * deepest), axis=classes.ndim - 1)
    lefts, rights = [], []
    for height, width in enumerate((deepest, *reversed(above))):
        pairs = here.reshape(*here.shape[:-1], width, 2)
        left, right = pairs[..., 0], pairs[..., 1]
        lefts.append(left)
        rights.append(right)
        here = left + right
        if height == 0 and shallow:
            here = jnp.concatenate((here, finished), -1)
    return jnp.concatenate(lefts[::-1], -1), jnp.concatenate(rights[::-1], -1)


# -- what the public functions are made of -----------------------------------------------------------------------


def log_classes(x: Array, plan: Plan) -> Array:
    """log p of every class: [..., K-1] to [..., K]."""
    return descend(*log_branches(x, plan), plan)[0]


def log_path(x: Array, index: Array, plan: Plan) -> Array:
    """log p of classes from the scores on their paths alone.

    Args:
        x: [..., K-1] scores.
        index: [..., M] classes of every row.
        plan: the tree and the activation.

    Returns:
        As ``index``.
    """
    if plan.num_classes == 1:
        return jnp.zeros(index.shape, x.dtype)
    nodes, turns_right, on_path = _paths(index, plan)  # [..., M, depth]
    flat = (*nodes.shape[:-2], nodes.shape[-2] * plan.depth)
    picked = jnp.take_along_axis(x, nodes.reshape(flat), -1, mode="promise_in_bounds").reshape(nodes.shape)
    terms = log_branch(picked, turns_right, plan, nodes)
    return jnp.sum(terms if on_path is None else jnp.where(on_path, terms, 0), -1)


def _paths(index: Array, plan: Plan) -> tuple[Array, Array, Array | None]:
    """Zero-based nodes, turns and, where paths differ in length, which steps count: [..., depth] each."""
    if plan.is_heap:
        places = (index.astype(jnp.int32) + plan.num_classes)[..., None]
        shifts = np.arange(1, plan.depth + 1, dtype=np.int32)
        nodes = places >> shifts
        turns_right = ((places >> (shifts - 1)) & 1) == 1
        return jnp.maximum(nodes - 1, 0), turns_right, None if plan.even else nodes > 0
    steps = look_up(plan.tree.paths, index)
    return jnp.maximum(jnp.abs(steps), 1) - 1, steps > 0, steps != 0


# -- sampling ----------------------------------------------------------------------------------------------------


class Coins:
    """How every node's coin falls: right where the right branch's probability exceeds a uniform number."""

    def __init__(self, right: Array) -> None:
        self.right = right  # [..., K-1]

    def mint(self, uniforms: Array) -> Array:
        """Uniforms in [0, 1) as what `toss` compares with; done once for all."""
        return uniforms

    def toss(self, minted: Array, nodes: Array | None) -> Array:
        """Which coins fall right: at zero-based nodes [..., M] of every row or, for None, at all [..., 1, K-1]."""
        return minted < row_values(self.right, nodes)


class ScoreCoins(Coins):
    """Coins by the scores themselves: a is monotone, so u < a(s) is asked as s - C > a^-1(u), with no a on the way."""

    def __init__(self, x: Array, plan: Plan) -> None:
        super().__init__(x)
        self.plan = plan

    def mint(self, uniforms: Array) -> Array:
        """a^-1 of the uniforms."""
        natural = self.plan.natural
        if natural is None:
            return jnp.log(uniforms) - jnp.log1p(-uniforms)
        turns = (jnp.arctan2(jnp.sqrt(uniforms), jnp.sqrt(1 - uniforms)) - np.pi / 4) / self.plan.angle
        turns = jnp.where(uniforms < natural.floor, -jnp.inf, turns)  # a is never less than its floor
        return jnp.where(uniforms >= 1 - natural.floor, jnp.inf, turns)

    def toss(self, minted: Array, nodes: Array | None) -> Array:
        """Which scores lie above."""
        x = row_values(self.right, nodes)
        if self.plan.natural is not None:
            limits = np.finfo(self.plan.dtype)
            x = jnp.clip(x, limits.min, limits.max)  # an infinite score is on its floor too
        return (x - self.plan.ends_at(nodes).center if self.plan.centered else x) > minted


def coins_of(x: Array, plan: Plan) -> Coins:
    """The coins of a row of scores, looked at only where the walk comes by."""
    return Coins(probability(x, plan)) if plan.reflects else ScoreCoins(x, plan)  # a reflected a is not monotone


def row_values(values: Array, nodes: Array | None) -> Array:
    """Values [..., K-1] at zero-based nodes [..., M] of every row, or at all of them: [..., 1, K-1]."""
    if nodes is None:
        return values[..., None, :]
    return jnp.take_along_axis(values, nodes, -1, mode="promise_in_bounds")


def draw(key: Array, coins: Coins, shape: Sequence[int], plan: Plan) -> Array:
    """Draw classes of the given shape [..., M]: toss a coin at every node of one path, from the root down."""
    shape = tuple(shape)
    if plan.num_classes == 1:
        return jnp.zeros(shape, jnp.int32)
    if plan.depth > MAX_STEPS:
        return _draw_deep(key, coins, shape, plan)
    minted = coins.mint(jax.random.uniform(key, (plan.depth, *shape), plan.dtype))
    place = jnp.ones(shape, jnp.int32) + jnp.zeros_like(coins.right[..., :1], jnp.int32)  # spread as the rows are
    for step in range(plan.depth):
        node = place if plan.is_heap else look_up(plan.node_at, place)
        # some paths end early; in the heap only before the last step
        inside = None
        if not plan.even and (step == plan.depth - 1 or not plan.is_heap):
            inside = (node < plan.num_classes) & (node > 0)
            node = jnp.where(inside, node, 1)
        below = 2 * node + coins.toss(minted[step], node - 1).astype(jnp.int32)
        place = below if inside is None else jnp.where(inside, below, place)
    return place - plan.num_classes if plan.is_heap else look_up(plan.class_at, place)


def _draw_deep(key: Array, coins: Coins, shape: tuple[int, ...], plan: Plan) -> Array:
    """Toss every node's coin at once, then follow the arrows by pointer doubling: no loop over a long chain."""
    uniforms = jax.random.uniform(key, (*shape, plan.num_nodes), plan.dtype)
    right = coins.toss(coins.mint(uniforms), None)  # [..., M, K-1]
    below = 2 * jnp.arange(1, plan.num_classes, dtype=jnp.int32) + right.astype(jnp.int32)
    arrow = jnp.broadcast_to(jnp.arange(2 * plan.num_classes, dtype=jnp.int32), (*shape, 2 * plan.num_classes))
    arrow = arrow.at[..., plan.node_places].set(below)  # a class points at itself
    for _ in range(plan.depth.bit_length()):
        arrow = jnp.take_along_axis(arrow, arrow, -1, mode="promise_in_bounds")
    return look_up(plan.class_at, arrow[..., 1])
