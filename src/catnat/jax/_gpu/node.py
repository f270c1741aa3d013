"""A node's coin inside of a kernel: log(1-a), log(a) and their slopes, for a block of float32 scores.

The same formulas as `catnat.jax._node`, with the GPU's own logarithm and quotient where these are right to the
last digits, and short polynomials (minimax fits, right to 4e-8) where they are not. Pallas's interpreter has the
library's functions instead.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental.pallas import triton

from catnat.jax._plan import Ends, Plan

Pair = tuple[Array, Array]

LOG_COS = (-1.0, -0.16666919, -0.0443888591, -0.0138854251, -0.00318964215, -0.00298791118)  # log(cos(u)^2) / u^2
LOG_SIN = (-0.333333283, -0.01111189, -0.000701716318, -5.99327859e-05)  # log(sin(u)^2 / u^2) / u^2
TAN = (0.333331395, 0.133392001, 0.0533812508, 0.0245282715, 0.00297443264, 0.00946560302)  # (tan(u) - u) / u^3
LOG_ONE_PLUS = (  # (log(1 + t) - t) / t^2
    -0.49999648,
    0.333213226,
    -0.248571635,
    0.191536543,
    -0.137538007,
    0.0792045149,
    -0.0300657785,
    0.00536482063,
)


def log_branches(x: Array, plan: Plan, ends: Ends, interpret: bool) -> Pair:
    """log(1-a) and log(a)."""
    number = np.float32
    if plan.natural is None:
        z = x - ends.center if plan.centered else x
        t = jnp.exp(-jnp.abs(z))
        tail = t * t * _polynomial(t, LOG_ONE_PLUS) + t
        return jnp.minimum(-z, 0) - tail, jnp.minimum(z, 0) - tail
    u, is_upper = _angle(x, plan, ends)
    u = jnp.maximum(u, number(plan.least))
    v = u * u
    big = v * _polynomial(v, LOG_COS)
    small = v * _polynomial(v, LOG_SIN) + _log2(u, interpret) * number(2 * np.log(2))
    return jnp.where(is_upper, small, big), jnp.where(is_upper, big, small)


def slopes(x: Array, plan: Plan, ends: Ends, interpret: bool) -> Pair:
    """d log(1-a)/ds and d log(a)/ds."""
    number = np.float32
    if plan.natural is None:
        z = x - ends.center if plan.centered else x
        t = jnp.exp(-jnp.abs(z))
        big = _inverse(1 + t, interpret)
        small = t * big
        return -jnp.where(z > 0, big, small), jnp.where(z > 0, small, big)
    u, is_upper = _angle(x, plan, ends)
    least = number(plan.least)
    dead = u <= least
    if plan.revives and plan.least > 0:  # a revived score has the slope of the floor, and a gate further up
        u, dead = jnp.maximum(u, least), None
    v = u * u
    tangent = u * v * _polynomial(v, TAN) + u
    rate = number(2 * plan.angle)
    tangent, cotangent = tangent * rate, _inverse(tangent, interpret) * rate
    left, right = jnp.where(is_upper, cotangent, tangent), jnp.where(is_upper, tangent, cotangent)
    if dead is not None:
        left, right = jnp.where(dead, number(0), left), jnp.where(dead, number(0), right)
    return -left, right


def _angle(x: Array, plan: Plan, ends: Ends) -> tuple[Any, Any]:
    """The angle to the nearer end (negative past it) and whether that is the upper one, where a = 1."""
    angle = np.float32(plan.angle)
    if not plan.centered:  # the range is symmetric
        return (ends.upper - jnp.abs(x)) * angle + ends.upper_rest, x > 0
    to_lower = (x - ends.lower) * angle - ends.lower_rest
    to_upper = (ends.upper - x) * angle + ends.upper_rest
    return jnp.minimum(to_lower, to_upper), to_upper < to_lower


def _polynomial(v: Array, coefficients: tuple[float, ...]) -> Array:
    total: Any = np.float32(coefficients[-1])
    for c in coefficients[-2::-1]:
        total = total * v + np.float32(c)
    return total


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
