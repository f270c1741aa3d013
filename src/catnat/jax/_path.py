"""A linear layer read along single paths: the scores of one path a row, without the others.

The weights of a path are gathered a block of rows at a time, and gathered again for the gradient: nothing of the size
rows x depth x width is ever kept. The gradient of the weights is added up in one array of their own size.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from catnat.jax import _eager
from catnat.jax._node import logit
from catnat.jax._plan import Plan

AT_ONCE = 2**22  # gathered numbers in one block of rows


def log_prob(weight: Array, bias: Array | None, x: Array, index: Array, plan: Plan) -> Array:
    """log p of a class [...] of every row [..., D] under scores x @ weight.T + bias; NaN where it is out of range."""
    in_range = (index >= 0) & (index < plan.num_classes)
    if plan.num_classes == 1:
        return jnp.where(in_range, jnp.zeros(index.shape, plan.dtype), jnp.nan)
    path = _eager.paths(jnp.where(in_range, index, 0).ravel(), plan)
    scores = path_scores(weight, bias, x.reshape(-1, x.shape[-1]), path.nodes)
    return jnp.where(in_range, _eager.log_turns(scores, path, plan).reshape(index.shape), jnp.nan)


def _path_scores(weight: Array, bias: Array | None, x: Array, nodes: Array) -> Array:
    """[rows, depth] the scores of zero-based nodes [rows, depth], in float32 or more."""
    scores = _by_rows(lambda x, at: _dot("td,d->t", weight[at], x), weight.shape[1], x, nodes)
    return scores if bias is None else scores + bias[nodes]


def _forward(weight: Array, bias: Array | None, x: Array, nodes: Array) -> tuple[Array, tuple]:
    return _path_scores(weight, bias, x, nodes), (weight, bias, x, nodes)


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
path_scores.defvjp(_forward, _backward)


def _by_rows(function: Callable[..., Array], width: int, *rows: Array) -> Array:
    """A function of single rows, whose last is its nodes, mapped over all, a block at a time."""
    return lax.map(lambda row: function(*row), rows, batch_size=_rows_at_once(rows[-1], width))


def _rows_at_once(nodes: Array, width: int) -> int:
    return max(1, min(len(nodes), AT_ONCE // max(1, nodes.shape[1] * width)))


def _dot(formula: str, one: Array, other: Array) -> Array:
    dtype = jnp.promote_types(jnp.promote_types(one.dtype, other.dtype), jnp.float32)
    return jnp.einsum(formula, one, other, preferred_element_type=dtype)


def draw(key: Array, weight: Array, bias: Array | None, x: Array, count: int, plan: Plan) -> Array:
    """``count`` classes [..., count] of every row [..., D]."""
    if plan.num_classes == 1:
        return jnp.zeros((*x.shape[:-1], count), jnp.int32)
    if plan.depth > _eager.MAX_STEPS:  # a path is no shortcut then
        scores = _dot("...d,nd->...n", x, weight)
        return _eager.draw(key, scores if bias is None else scores + bias, count, plan)

    def logit_at(nodes: Array) -> Array:
        scores = _dot("...cd,...d->...c", weight[nodes], x)
        return logit(scores if bias is None else scores + bias[nodes], plan, nodes)

    return _eager.walk_down(key, (*x.shape[:-1], count), plan, logit_at, x)
