"""A node inside of a kernel: log(1-a), log(a) and their slopes, for a block of float32 scores.

The natural family has one formula: with u the angle between a score and the nearer end of its range, but never less
than at the joint, |z| = -2 log tan(u) + steepest * (how far beyond the joint). The paper's activation has its floor for
a joint, and nothing beyond. Logarithm and quotient are the GPU's own, or in Pallas's interpreter the library's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental.pallas import triton

from catnat.core.fits import TAN
from catnat.core.parameterization import Natural, Sigmoid
from catnat.jax._node import log_one_plus, polynomial
from catnat.jax._plan import Plan, Values

Pair = tuple[Array, Array]
number = np.float32  # constants of a kernel must be plain numbers of one type


def applies(plan: Plan) -> bool:
    """Whether this file has the activation's formula."""
    return isinstance(plan.activation, (Sigmoid, Natural))


def log_branches(x: Array, plan: Plan, given: Sequence[Values], interpret: bool) -> Pair:
    """log(1-a) and log(a)."""
    size, t, is_right, _ = _node(x, plan, given, interpret)
    rest = log_one_plus(t)
    return -jnp.where(is_right, size, number(0)) - rest, -jnp.where(is_right, number(0), size) - rest


def slopes(x: Array, plan: Plan, given: Sequence[Values], interpret: bool) -> Pair:
    """d log(1-a)/dx and d log(a)/dx."""
    _, t, is_right, slope = _node(x, plan, given, interpret)
    big = _inverse(1 + t, interpret) * slope
    small = t * big
    return -jnp.where(is_right, big, small), jnp.where(is_right, small, big)


def _node(x: Array, plan: Plan, given: Sequence[Values], interpret: bool) -> tuple[Any, Any, Any, Any]:
    """|z|, e^-|z|, whether z > 0, and dz/dx."""
    natural = plan.activation
    if not isinstance(natural, Natural):
        z = x - given[0] if plan.centered else x
        return jnp.abs(z), jnp.exp(-jnp.abs(z)), z > 0, number(1)
    angle, is_upper = _angle(x, plan, given)
    least = number(plan.least)
    u = jnp.maximum(angle, least)
    v = u * u
    tangent = u * v * polynomial(v, TAN.coefficients) + u
    size, t = _log2(tangent, interpret) * number(-2 * np.log(2)), tangent * tangent
    slope = (1 + t) * _inverse(tangent, interpret) * number(natural.gain / 2)  # gain / sin(2u)
    if natural.tail > 0:
        beyond = (u - angle) * number(4 * natural.steepest)
        size, t = size + beyond, t * jnp.exp(-beyond)
    else:
        slope = jnp.where(angle <= least, number(0), slope)
    return size, t, is_upper, slope


def _angle(x: Array, plan: Plan, given: Sequence[Values]) -> tuple[Any, Any]:
    """The angle to the nearer end (negative past it) and whether that is the upper one, where a = 1."""
    angle = number(plan.angle)
    if plan.paper is None:
        x = x - given[0] if plan.centered else x
        return number(np.pi / 4) - jnp.abs(x) * angle, x > 0
    lower, lower_rest, upper, upper_rest = given
    if not plan.centered:  # the range is symmetric
        return (upper - jnp.abs(x)) * angle + upper_rest, x > 0
    to_lower = (x - lower) * angle - lower_rest
    to_upper = (upper - x) * angle + upper_rest
    return jnp.minimum(to_lower, to_upper), to_upper < to_lower


def _log2(y: Array, interpret: bool) -> Array:
    """The GPU's own logarithm; Triton's is a software routine of twenty operations."""
    return jnp.log2(y) if interpret else _instruction("lg2.approx.ftz.f32", y)


def _inverse(y: Array, interpret: bool) -> Array:
    """1/y to one unit in the last place."""
    return 1 / y if interpret else _instruction("rcp.approx.ftz.f32", y)


def _instruction(name: str, y: Array) -> Array:
    """One instruction of the GPU at every element."""
    out = jax.ShapeDtypeStruct(y.shape, y.dtype)
    (found,) = triton.elementwise_inline_asm(
        f"{name} $0, $1;", args=[y], constraints="=f,f", pack=1, result_shape_dtypes=[out]
    )
    return found
