"""A linear head that reads single paths: of K-1 rows of weights, the log2 K that a class's nodes have.

The weights of a path are gathered a block of rows at a time, and gathered again for the gradient: nothing of the size
rows x depth x width is ever kept. The gradient of the weights is added up in one array of their own size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.tree_util import register_dataclass

from catnat.jax import _eager
from catnat.jax._compat import compiled
from catnat.jax._node import log_branches, logit
from catnat.jax._plan import Plan
from catnat.jax._walk import Walk

AT_ONCE = 2**22  # gathered numbers in one block of rows


class TopK(NamedTuple):
    """Classes, the likeliest first, and their log-probabilities: [..., k] each."""

    log_probs: Array
    classes: Array


@register_dataclass
@dataclass(frozen=True, eq=False)
class LinearWalk:
    """One path of a head with these weights per row of features [..., D]; numbers are of the plan's dtype."""

    weight: Array
    bias: Array | None
    plan: Plan = field(metadata={"static": True})

    @compiled
    def log_prob(self, x: Array, index: Array) -> Array:
        """log p of classes whose shape broadcasts with the rows' batch; NaN where they are out of range."""
        shape = _eager.joint_shape(index, x.shape[:-1], f"the batch {x.shape[:-1]} of x")
        x, index = jnp.broadcast_to(x, (*shape, x.shape[-1])), jnp.broadcast_to(index, shape)
        in_range = (index >= 0) & (index < self.plan.num_classes)
        if self.plan.num_classes == 1:
            return jnp.where(in_range, jnp.zeros(index.shape, self.plan.dtype), jnp.nan)
        path = _eager.paths(jnp.where(in_range, index, 0).ravel(), self.plan)
        scores = path_scores(self.weight, self.bias, x.reshape(-1, x.shape[-1]), path.nodes)
        return jnp.where(in_range, _eager.log_turns(scores, path, self.plan).reshape(index.shape), jnp.nan)

    @compiled
    def loss(self, x: Array, labels: Array, keep: Array, weight: Array | None, *, reduction: str) -> Array:
        """- log p of class ids, 0 in rows that are not to ``keep``."""
        own = jnp.ones(labels.shape, self.plan.dtype) if weight is None else weight[labels]
        return _eager.reduced(-_eager.times_log(own, self.log_prob(x, labels)), own, keep, reduction)

    @compiled
    def sample(self, key: Array, x: Array, *, count: int) -> Array:
        """``count`` classes [..., count] of every row."""
        if self.plan.depth > _eager.MAX_STEPS:  # a path is no shortcut then
            scores = self._scores_at(x, jnp.arange(self.plan.num_nodes))
            return Walk(self.plan).sample(key, scores, None, count=count)

        def logit_at(nodes: Array) -> Array:
            return logit(lax.stop_gradient(self._scores_at(x, nodes)), self.plan, nodes)

        return _eager.walk_down(key, (*x.shape[:-1], count), self.plan, logit_at, x)

    @compiled
    def topk(self, x: Array, *, k: int, beam: int) -> TopK:
        """The k likeliest of the classes that a search finds which keeps ``beam`` subtrees per level."""
        place = jnp.ones((*x.shape[:-1], 1), jnp.int32)
        log_p = jnp.zeros(place.shape, self.plan.dtype)
        for _ in range(self.plan.depth):
            node = _eager.node_at(place, self.plan)
            splits, at = node > 0, jnp.maximum(node, 1) - 1
            left, right = log_branches(logit(self._scores_at(x, at), self.plan, at))
            sides = jnp.where(splits, log_p + left, log_p), jnp.where(splits, log_p + right, -jnp.inf)
            place = jnp.concatenate((jnp.where(splits, 2 * node, place), jnp.where(splits, 2 * node + 1, 0)), -1)
            log_p, best = lax.top_k(jnp.concatenate(sides, -1), min(beam, place.shape[-1]))
            place = jnp.take_along_axis(place, best, -1)
        return TopK(log_p[..., :k], _eager.class_at(place[..., :k], self.plan))

    def _scores_at(self, x: Array, nodes: Array) -> Array:
        """[..., M] the scores of zero-based nodes of every row."""
        scores = _dot("...md,...d->...m", self.weight[nodes], x)
        return scores if self.bias is None else scores + self.bias[nodes]


def _path_scores(weight: Array, bias: Array | None, x: Array, nodes: Array) -> Array:
    """[rows, depth] the scores of zero-based nodes [rows, depth], in float32 or more."""
    scores = _by_rows(lambda x, at: _dot("td,d->t", weight[at], x), weight.shape[1], x, nodes)
    return scores if bias is None else scores + bias[nodes]


def _backward(saved: tuple, gradient: Array) -> tuple:
    weight, bias, x, nodes = saved
    dx = _by_rows(lambda g, at: _dot("t,td->d", g, weight[at]), weight.shape[1], gradient, nodes)
    dweight = jnp.zeros(weight.shape, gradient.dtype)
    step = _rows_at_once(nodes, weight.shape[1])
    whole = len(x) // step * step

    def add(total: Array, rows: tuple[Array, Array, Array]) -> tuple[Array, None]:
        g, x, at = rows
        return total.at[at].add(g[..., None] * x[:, None]), None

    blocks = jax.tree.map(lambda a: a[:whole].reshape(-1, step, *a.shape[1:]), (gradient, x, nodes))
    dweight, _ = lax.scan(add, dweight, blocks)
    dweight, _ = add(dweight, (gradient[whole:], x[whole:], nodes[whole:]))
    dbias = None if bias is None else jnp.zeros(bias.shape, gradient.dtype).at[nodes].add(gradient).astype(bias.dtype)
    return dweight.astype(weight.dtype), dbias, dx.astype(x.dtype), None


path_scores = jax.custom_vjp(_path_scores)
path_scores.defvjp(lambda *given: (_path_scores(*given), given), _backward)


def _by_rows(function: Callable[..., Array], width: int, *rows: Array) -> Array:
    """A function of single rows, whose last is its nodes, mapped over all, a block at a time."""
    return lax.map(lambda row: function(*row), rows, batch_size=_rows_at_once(rows[-1], width))


def _rows_at_once(nodes: Array, width: int) -> int:
    return max(1, min(len(nodes), AT_ONCE // max(1, nodes.shape[1] * width)))


def _dot(formula: str, one: Array, other: Array) -> Array:
    dtype = jnp.promote_types(jnp.promote_types(one.dtype, other.dtype), jnp.float32)
    return jnp.einsum(formula, one, other, preferred_element_type=dtype)
