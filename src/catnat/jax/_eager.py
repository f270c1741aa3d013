"""The tree walked in plain array code: the reference on every device, and what derivatives of higher order see.

*Descend* sums what is written on the branches along every path; *ascend* what is written on the classes below every
branch. The balanced heap is walked level by level; any other tree by pointer doubling: log2(depth) gathers, no loop.
Rows are cut with `lax.split`: the transpose of a slice is a row of zeros as wide as the whole, and one a level is slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from catnat.jax._compat import look_up, short
from catnat.jax._node import log_branches, logit
from catnat.jax._plan import Plan

# Trees deeper than this are not walked level by level.
MAX_STEPS = 64

# -- the two maps ------------------------------------------------------------------------------------------------


def descend(left: Array, right: Array, plan: Plan) -> tuple[Array, Array]:
    """Sum along every path what stands on the branches [..., K-1]: down to classes [..., K] and to nodes [..., K-1]."""
    if plan.num_classes == 1:
        return jnp.zeros((*left.shape[:-1], 1), left.dtype), left
    if plan.is_heap:
        return _descend_heap(left, right, plan)
    branches = jnp.stack((left, right), -1).reshape(*left.shape[:-1], 2 * plan.num_nodes)
    # [..., 2K] by place; the root and the place 0 above it add nothing
    sums = jnp.pad(branches, [(0, 0)] * (branches.ndim - 1) + [(2, 0)])
    for above in plan.tree.jumps:
        sums = sums + sums[..., short(above)]
    return sums[..., short(plan.tree.class_places)], sums[..., short(plan.tree.node_places[1:])]


def _descend_heap(left: Array, right: Array, plan: Plan) -> tuple[Array, Array]:
    batch = left.shape[:-1]
    here = jnp.zeros_like(left[..., :1])  # the places of one level
    nodes, finished = [], None
    for on_left, on_right in zip(levels(left, plan), levels(right, plan), strict=True):
        width = on_left.shape[-1]
        if here.shape[-1] > width:  # the last level: the places past its nodes are classes already
            here, finished = lax.split(here, (width, here.shape[-1] - width), axis=here.ndim - 1)
        nodes.append(here)
        here = jnp.stack((here + on_left, here + on_right), -1).reshape(*batch, 2 * width)
    classes = here if finished is None else jnp.concatenate((finished, here), -1)
    return classes, jnp.concatenate(nodes, -1)


def levels(values: Array, plan: Plan) -> Sequence[Array]:
    """[..., K-1] cut into the levels of the tree."""
    return lax.split(values, plan.level_sizes, axis=values.ndim - 1)


def ascend(classes: Array, plan: Plan) -> tuple[Array, Array]:
    """Sum what stands on the classes below every branch: [..., K] to left and right sums, [..., K-1] each."""
    if plan.num_classes == 1:
        return classes[..., :0], classes[..., :0]
    if plan.is_heap:
        return climb(classes, plan, lambda level, left, right: left + right)
    sums = jnp.pad(classes, [(0, 0)] * (classes.ndim - 1) + [(0, 1)])[..., short(plan.tree.class_at)]
    for above in reversed(plan.tree.jumps):
        sums = sums.at[..., short(above)].add(sums)
    return sums[..., 2::2], sums[..., 3::2]


def climb(classes: Array, plan: Plan, join: Callable[[int, Array, Array], Array]) -> tuple[Array, Array]:
    """What comes to every node from its left and from its right, [..., K-1] each, where ``join`` puts both together."""
    here = classes[..., :0]  # the nodes of one level
    lefts, rights = [], []
    for level in reversed(range(plan.depth)):
        below = _below(here, classes, level, plan)
        pairs = below.reshape(*below.shape[:-1], below.shape[-1] // 2, 2)
        lefts.append(pairs[..., 0])
        rights.append(pairs[..., 1])
        if level:
            here = join(level, lefts[-1], rights[-1])
    return jnp.concatenate(lefts[::-1], -1), jnp.concatenate(rights[::-1], -1)


def _below(here: Array, classes: Array, level: int, plan: Plan) -> Array:
    """The places under a level: nodes, whose values are at hand, and classes."""
    if not plan.is_heap:
        ids, order = map(short, plan.tree.rungs[level])
        return jnp.concatenate((here, classes[..., ids]), -1)[..., order]
    shallow = plan.num_classes - 2 * plan.level_sizes[-1]  # classes that hang one level higher than the deepest
    if level == plan.depth - 1:
        return classes[..., shallow:]
    return jnp.concatenate((here, classes[..., :shallow]), -1) if level == plan.depth - 2 and shallow else here


# -- along single paths ------------------------------------------------------------------------------------------


def joint_shape(index: Array, batch: tuple[int, ...], called: str) -> tuple[int, ...]:
    """The shape that class ids have together with a batch of rows, which ``called`` names."""
    try:
        return jnp.broadcast_shapes(index.shape, batch)
    except ValueError:
        raise ValueError(f"index must broadcast with {called}; got shape {index.shape}") from None


def log_path(x: Array, index: Array, plan: Plan) -> Array:
    """log p of classes [..., M] of every row of scores [..., K-1], from those on their paths alone."""
    path = paths(index, plan)  # [..., M, depth]
    nodes = path.nodes
    flat = (*nodes.shape[:-2], nodes.shape[-2] * plan.depth)
    picked = jnp.take_along_axis(x, nodes.reshape(flat), -1, mode="promise_in_bounds").reshape(nodes.shape)
    return log_turns(picked, path, plan)


class Paths(NamedTuple):
    """Zero-based nodes, turns and, where paths differ in length, which steps count: [..., depth] each."""

    nodes: Array
    turns_right: Array
    on_path: Array | None


def log_turns(scores: Array, path: Paths, plan: Plan) -> Array:
    """The sum, along paths, of the log-probabilities of their turns at nodes with these scores [..., depth]."""
    left, right = log_branches(logit(scores, plan, path.nodes))
    terms = jnp.where(path.turns_right, right, left)
    return jnp.sum(terms if path.on_path is None else jnp.where(path.on_path, terms, 0), -1)


def paths(index: Array, plan: Plan) -> Paths:
    """The paths of classes [...], from below."""
    if plan.tree.heap_order is not None:
        ids = index if plan.is_heap else look_up(plan.tree.heap_order, index)
        places = (ids.astype(jnp.int32) + plan.num_classes)[..., None]
        shifts = np.arange(1, plan.depth + 1, dtype=np.int32)
        nodes = places >> shifts
        turns_right = ((places >> (shifts - 1)) & 1) == 1
        return Paths(jnp.maximum(nodes - 1, 0), turns_right, None if plan.even else nodes > 0)
    if plan.has_paths:
        steps = look_up(plan.tree.paths, index)
        return Paths(jnp.maximum(jnp.abs(steps), 1) - 1, steps > 0, steps != 0)

    def climb_one(place: Array, _: None) -> tuple[Array, Array]:
        return look_up(plan.tree.node_places, place >> 1), place

    _, climbed = lax.scan(climb_one, look_up(plan.tree.class_places, index), None, length=plan.depth)
    places = jnp.moveaxis(climbed, 0, -1)
    return Paths(jnp.maximum(places >> 1, 1) - 1, places & 1 == 1, places > 1)


# -- sums over classes and over rows ------------------------------------------------------------------------------


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


def reduced(loss: Array, counted: Array, keep: Array | None, reduction: str) -> Array:
    """The losses of rows that are kept, 0 for others; their sum; or that divided by what they count for."""
    if keep is not None:
        loss, counted = jnp.where(keep, loss, 0), jnp.where(keep, counted, 0)
    if reduction == "none":
        return loss
    return loss.sum() / counted.sum() if reduction == "mean" else loss.sum()


# -- sampling ----------------------------------------------------------------------------------------------------


def walk_down(key: Array, shape: tuple[int, ...], plan: Plan, logit_at: Callable[[Array], Array], like: Array) -> Array:
    """Draw classes of ``shape``, a coin a node of one path: ``logit_at`` has z of zero-based nodes of that shape.

    A coin falls right where a uniform number is below a: where the logit of that number is below z. So a node whose z
    is infinite has one side only. Where a coin on the way is NaN the answer is K, which is no class.
    """
    if plan.num_classes == 1:
        return jnp.zeros(shape, jnp.int32)
    uniforms = jax.random.uniform(key, (plan.depth, *shape), plan.dtype)
    thrown = jnp.log(uniforms) - jnp.log1p(-uniforms)
    place = jnp.ones(shape, jnp.int32) + jnp.zeros_like(like[..., :1], jnp.int32)  # spread as the rows are
    lost = place < 0
    for step in range(plan.depth):
        node = node_at(place, plan)
        inside = node > 0  # or the path has ended
        z = logit_at(jnp.where(inside, node - 1, 0))
        place = jnp.where(inside, 2 * node + (thrown[step] < z).astype(jnp.int32), place)
        lost = lost | (inside & jnp.isnan(z))
    return jnp.where(lost, plan.num_classes, class_at(place, plan))


def node_at(place: Array, plan: Plan) -> Array:
    """Which node is at a place; 0 where a class is."""
    return jnp.where(place < plan.num_classes, place, 0) if plan.is_heap else look_up(plan.tree.node_at, place)


def class_at(place: Array, plan: Plan) -> Array:
    """Which class is at a place."""
    return place - plan.num_classes if plan.is_heap else look_up(plan.tree.class_at, place)
