"""log p of every class with its derivatives: three maps that are primitives of JAX's.

The *walk* goes from scores to log-probabilities; its derivative is the *push*, linear in a tangent, and the transpose
of that the *pull*, linear in a cotangent. Walk and pull have kernels too (docs/architecture.md says why no decorator
would do). A second derivative is the plain derivative of push or pull.
"""

from __future__ import annotations

from jax import Array

from catnat.jax import _compat, _eager
from catnat.jax._node import branches, log_branches, logit, slope
from catnat.jax._plan import Plan


def plain_walk(x: Array, *, plan: Plan) -> Array:
    """log p of every class: [..., K-1] to [..., K]."""
    return _eager.descend(*log_branches(logit(x, plan)), plan)[0]


def plain_push(x: Array, dx: Array, *, plan: Plan) -> Array:
    """The derivative of the walk at ``x`` along ``dx``."""
    left, right, deviation = branches(logit(x, plan))
    dz = slope(x, deviation, plan) * dx
    return _eager.descend(-right * dz, left * dz, plan)[0]


def plain_pull(x: Array, gradient: Array, *, plan: Plan) -> Array:
    """The gradient in the scores ``x`` of what has this gradient in the log-probabilities."""
    left, right, deviation = branches(logit(x, plan))
    below_left, below_right = _eager.ascend(gradient, plan)
    return slope(x, deviation, plan) * (left * below_right - right * below_left)


walk = _compat.rowwise("catnat_walk", plain_walk, lambda x, *, plan: plan.num_classes)
push = _compat.rowwise("catnat_push", plain_push, lambda x, dx, *, plan: plan.num_classes)
pull = _compat.rowwise("catnat_pull", plain_pull, lambda x, gradient, *, plan: plan.num_nodes)

_compat.differentiate(walk, lambda dx, x, *, plan: push.bind(x, dx, plan=plan))
_compat.linear_in_last(push, plain_push, transpose=pull)
_compat.linear_in_last(pull, plain_pull, transpose=push)
