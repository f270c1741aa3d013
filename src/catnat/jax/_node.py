"""A node is its logit z(x) and the slope dz/dx; all else follows from them, in code that no activation repeats.

With t = e^-|z|: log a = min(z, 0) - log(1 + t), whose derivative is (1-a) dz/dx; 1/(1+t) and t/(1+t) are a and 1-a, or
the other way round. Derivatives are written down: taken from the values' own formulas they would be slower and, at the
ends, wrong. In float32 exp, log(1+t) and the family's logit are polynomials: XLA's own functions are slow on a CPU.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from catnat.core.fits import EXP, LOG_ONE_PLUS, natural_logit
from catnat.core.parameterization import Natural, Sigmoid
from catnat.jax._plan import Plan

Pair = tuple[Array, Array]
Branches = tuple[Array, Array, Array]

# -- what follows from z -----------------------------------------------------------------------------------------


@jax.custom_jvp
def branches(z: Array) -> Branches:
    """1-a, a and the deviation sqrt(a (1-a))."""
    root = _exp(jnp.abs(z) / -2)  # of t
    big = 1 / (1 + root * root)
    deviation = root * big
    small = root * deviation
    return jnp.where(z > 0, small, big), jnp.where(z > 0, big, small), deviation


@branches.defjvp
def _branches_jvp(primals: tuple, tangents: tuple) -> tuple[Branches, Branches]:
    left, right, deviation = found = branches(*primals)
    moved = left * right * tangents[0]
    return found, (-moved, moved, (left - right) * deviation / 2 * tangents[0])


@jax.custom_jvp
def log_branches(z: Array) -> Pair:
    """log(1-a) and log(a)."""
    rest = _once(log_one_plus(_exp(jnp.abs(z) / -2) ** 2))
    return jnp.minimum(-z, 0) - rest, jnp.minimum(z, 0) - rest


@log_branches.defjvp
def _log_branches_jvp(primals: tuple, tangents: tuple) -> tuple[Pair, Pair]:
    left, right, _ = branches(*primals)
    return log_branches(*primals), (-right * tangents[0], left * tangents[0])


@jax.custom_jvp
def log_add(x: Array, y: Array) -> Array:
    """log(e^x + e^y); where both are -inf it is so too, with the gradient 0."""
    top = jnp.maximum(x, y)
    gap = jnp.where(top == -jnp.inf, 0, x - y)
    return top + log_one_plus(_exp(-jnp.abs(gap)))


@log_add.defjvp
def _log_add_jvp(primals: tuple, tangents: tuple) -> Pair:
    x, y = primals
    total = log_add(x, y)
    whole = jnp.where(total == -jnp.inf, 0, total)
    return total, jnp.exp(x - whole) * tangents[0] + jnp.exp(y - whole) * tangents[1]


@jax.custom_jvp
def _exp(y: Array) -> Array:
    """exp of numbers up to 87; in float32 it is 1e-38 at least, and fast in loops that XLA cannot vectorise."""
    if y.dtype != np.float32:
        return jnp.exp(y)
    y = jnp.maximum(y, np.float32(-87))
    power = jnp.floor(y * np.float32(np.log2(np.e)) + np.float32(0.5))
    rest = y - power * np.float32(0.693359375) + power * np.float32(2.12194440e-4)  # log(2) in two parts
    scale = lax.bitcast_convert_type((power.astype(jnp.int32) + 127) << 23, jnp.float32)
    return scale * (rest * rest * polynomial(rest, EXP.coefficients) + rest + 1)


@_exp.defjvp
def _exp_jvp(primals: tuple, tangents: tuple) -> Pair:
    value = _exp(*primals)
    return value, value * tangents[0]


def log_one_plus(t: Array) -> Array:
    """log(1+t) for t in [0, 1]."""
    return t * t * polynomial(t, LOG_ONE_PLUS.coefficients) + t if t.dtype == np.float32 else jnp.log1p(t)


def _once(v: Array) -> Array:
    """The same numbers, computed once: XLA works out cheap things anew in every loop over the tree, but no quotient."""
    divisor = jnp.clip(jnp.abs(v), 0.5, 1)
    return v * divisor / divisor


def polynomial(v: Array, coefficients: tuple[float, ...]) -> Array:
    """The sum of coefficients times powers of v, the lowest first."""
    number = np.dtype(v.dtype).type
    total: Any = number(coefficients[-1])
    for c in coefficients[-2::-1]:
        total = total * v + number(c)
    return total


# -- z and its slope ---------------------------------------------------------------------------------------------


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def logit(x: Array, plan: Plan, nodes: Array | None = None) -> Array:
    """z of scores ``x``: all of them along the last axis, or those of the given zero-based nodes."""
    of = plan.activation
    if plan.paper is not None:
        u, _, is_upper = _paper(x, plan, nodes)
        log_odds = 2 * jnp.log(jnp.tan(u))
        return _once(jnp.where(is_upper, -log_odds, log_odds))
    offset = _centered(x, plan, nodes)
    if isinstance(of, Sigmoid):
        return offset
    fit = natural_logit(of.tail) if isinstance(of, Natural) and plan.dtype == np.float32 else None
    if fit is None or not isinstance(of, Natural):
        return _once(of.logit(offset, jnp))
    y = offset * of.gain
    inside = jnp.clip(y, -of.joint, of.joint)
    v = inside * inside
    return _once(inside * v * polynomial(v, fit.coefficients) + (inside + (y - inside) * of.steepest))


@logit.defjvp
def _logit_jvp(plan: Plan, primals: tuple, tangents: tuple) -> Pair:
    x, nodes = primals
    z = logit(x, plan, nodes)
    return z, slope(x, branches(z)[2], plan, nodes) * tangents[0]


def slope(x: Array, deviation: Array, plan: Plan, nodes: Array | None = None) -> Array:
    """dz/dx at scores whose branches have this deviation, in functions that JAX can differentiate, again and again."""
    of = plan.activation
    if plan.paper is not None:
        u, alive, _ = _paper(x, plan, nodes)
        return jnp.where(alive, plan.paper.gain / jnp.sin(2 * jnp.where(u == 0, 1, u)), 0)
    if isinstance(of, Natural):  # gain / (2 sqrt(a (1-a))), which no longer grows beyond the joints
        if of.tail == 0.5:  # both joints are at the centre, where JAX would take the mean of two derivatives
            return jnp.full_like(x, of.gain)
        return of.gain / 2 / jnp.maximum(deviation, 0.5 / of.steepest)
    # not the activation's own word for it: PyTorch, too, differentiates the logit
    offset = _centered(x, plan, nodes)
    return jax.jvp(lambda at: of.logit(at, jnp), (offset,), (jnp.ones_like(offset),))[1]


def is_saturated(x: Array, plan: Plan) -> Array:
    """Which scores are beyond the natural range: where the slope has stopped growing, or on the floor."""
    if plan.paper is not None:
        u, alive, _ = _paper(x, plan, None)
        return ~alive & (u == u)
    natural = plan.activation
    if not isinstance(natural, Natural) or natural.tail == 0.5:
        return jnp.zeros(x.shape, bool)
    return jnp.abs(_centered(x, plan, None) * natural.gain) > natural.joint


def score_of(left: Array, right: Array, plan: Plan) -> Array:
    """The score at which a : 1-a is as the masses of both sides, given as logarithms; 0 where both are 0."""
    empty = (left == -jnp.inf) & (right == -jnp.inf)
    z = jnp.where(empty, 0, right) - jnp.where(empty, 0, left)
    return jnp.where(empty, 0, plan.activation.inverse(z, jnp) + plan.center)


def _centered(x: Array, plan: Plan, nodes: Array | None) -> Array:
    return x - plan.constants_at(nodes)[0] if plan.centered else x


# -- the paper's activation, which ends --------------------------------------------------------------------------


def _paper(x: Array, plan: Plan, nodes: Array | None) -> tuple[Array, Array, Array]:
    """u, the angle to the nearer end of the range; whether it is above the floor; and whether that end is the upper.

    Only the distance to that end matters, so the end is kept as the sum of two numbers. The odds are tan(u)^2.
    """
    lower, lower_rest, upper, upper_rest = plan.constants_at(nodes)
    to_lower = (x - lower) * plan.angle - lower_rest
    to_upper = (upper - x) * plan.angle + upper_rest
    is_upper = jnp.asarray(to_upper < to_lower)  # there a = 1
    nearer = jnp.where(is_upper, to_upper, to_lower)
    return jnp.maximum(nearer, plan.least), nearer > plan.least, is_upper
