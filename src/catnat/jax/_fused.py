"""log p of every class, with derivatives written by hand for every order and both directions.

Three maps belong together: the *walk* from scores to log-probabilities, its derivative *push* (linear in a tangent) and
the transpose of that, *pull* (linear in a cotangent). Each is a primitive of JAX's, because its decorators offer either
a rule for both modes without a say in the transpose, or one for reverse mode alone. Here all of them have rules, and
the walk and the pull have kernels too. A second derivative is the plain derivative of push or pull.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import Array

from catnat.jax import _compat, _eager
from catnat.jax._node import slopes
from catnat.jax._plan import Plan


def log_classes(x: Array, plan: Plan) -> Array:
    """log p of every class: [..., K-1] to [..., K]."""
    return _walk.bind(x, plan=plan)


def plain_walk(x: Array, *, plan: Plan) -> Array:
    """log p of every class."""
    return eager.log_classes(x, plan)


def plain_push(x: Array, dx: Array, *, plan: Plan) -> Array:
    """The derivative of `log_classes` at ``x`` along ``dx``."""
    left, right = slopes(x, plan)
    return eager.descend(left * dx, right * dx, plan)[0]


def plain_pull(x: Array, gradient: Array, *, plan: Plan) -> Array:
    """The gradient in the scores ``x`` of what has this gradient in the log-probabilities."""
    left, right = slopes(x, plan)
    below_left, below_right = eager.ascend(gradient, plan)
    return left * below_left + right * below_right


_walk = compat.rowwise("catnat_walk", plain_walk, lambda x, *, plan: plan.num_classes)
_push = compat.rowwise("catnat_push", plain_push, lambda x, dx, *, plan: plan.num_classes)
_pull = compat.rowwise("catnat_pull", plain_pull, lambda x, gradient, *, plan: plan.num_nodes)


def _derivative_of_linear(primitive: Any, plain: Any) -> compat.Rule:
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


compat.differentiate(_walk, lambda x, dx, *, plan: (_walk.bind(*x, plan=plan), _push.bind(*x, *dx, plan=plan)))
compat.differentiate(_push, _derivative_of_linear(_push, plain_push))
compat.differentiate(_pull, _derivative_of_linear(_pull, plain_pull))
compat.transpose_last(_push, lambda cotangent, x, *, plan: _pull.bind(x, cotangent, plan=plan))
compat.transpose_last(_pull, lambda cotangent, x, *, plan: _push.bind(x, cotangent, plan=plan))

# -- on an NVIDIA GPU --------------------------------------------------------------------------------------------


def _kernel_or(plain: compat.Rule, name: str) -> compat.Rule:
    def compute(*operands: Array, plan: Plan) -> Array:
        try:
            from catnat.jax import kernels  # here: who has no GPU need not wait for Pallas
        except ImportError:  # a release of JAX without Pallas's Triton dialect
            return plain(*operands, plan=plan)
        return (getattr(kernels, name) if kernels.applies(operands[0], plan) else plain)(*operands, plan=plan)

    return compute


compat.on_cuda(_walk, _kernel_or(plain_walk, "walk"), plain_walk)
compat.on_cuda(_pull, _kernel_or(plain_pull, "pull"), plain_pull)
