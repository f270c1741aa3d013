"""log a, log(1-a) and their slopes for an array of scores, exact to the last digits at both ends of the range.

With z the logit of a, log a = min(z, 0) - log(1 + e^-|z|) and log(1-a) = min(-z, 0) - log(1 + e^-|z|). For the natural
activation, with u the angle between the score and the nearer end of its range, e^-|z| is tan(u)^2; and since only the
distance to that end matters, the end is kept as the sum of two numbers.

Values and slopes are written down apart (`jax.custom_jvp`): slopes taken from the value's own formula would be slower
and, near the ends, wrong. In float32 both are short polynomials, since XLA's log1p and tan cost several times an exp on
a CPU; slopes of slopes go through the library's functions.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from catnat.jax import _compat
from catnat.jax._plan import Ends, Plan

Pair = tuple[Array, Array]

# Up to so many scores, a pass over memory costs less than to compute a value twice.
SMALL = 4096

# Minimax fits, to 3.5e-8 or better for s in [0, 1/3] and u in [0, pi/4]. The leading term, which is exact, is added
# last: its rounding is then the only one that counts.
ATANH = (0.66666679, 0.39998695, 0.28620623, 0.21394267, 0.24409403)  # (2 atanh(s) - 2 s) / s^3, in s^2
ATANH_NEAR = (0.666534222, 0.412877391)  # the same for s up to 0.172, where the rest of a logarithm lies
LOG_COS = (-0.16666919, -0.0443888591, -0.0138854251, -0.00318964215, -0.00298791118)  # (log cos(u)^2 + u^2) / u^4
TAN = (0.333331395, 0.133392001, 0.0533812508, 0.0245282715, 0.00297443264, 0.00946560302)  # (tan(u) - u) / u^3
EXP = (0.5, 0.16666665, 0.04166580, 0.00833345, 0.00139820, 0.00019876)  # (exp(r) - 1 - r) / r^2 for |r| <= log(2)/2
LOG_TAN = (0.333333036, 0.0777868179, 0.0217785222, 0.00713466881, 0.00125508881, 0.00168594605)  # log(tan(u)/u) / u^2


# -- both branches -----------------------------------------------------------------------------------------------


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def log_branches(x: Array, plan: Plan, nodes: Array | None = None) -> Pair:
    """log(1-a) and log(a) of scores ``x``: all of them along the last axis, or those of the given zero-based nodes."""
    return plain_logs(x, plan, plan.ends_at(nodes))


@log_branches.defjvp
def _log_branches_jvp(plan: Plan, primals: tuple, tangents: tuple) -> tuple[Pair, Pair]:
    x, nodes = primals
    left, right = slopes(x, plan, nodes)
    return log_branches(x, plan, nodes), (left * tangents[0], right * tangents[0])


def plain_logs(x: Array, plan: Plan, ends: Ends) -> Pair:
    """`log_branches` in elementwise operations alone."""
    fast = plan.dtype == np.float32
    if plan.natural is None:
        z = _centered(x, plan, ends)
        t = _exp(-jnp.abs(z), library=not fast)
        tail = _double_atanh(t / (2 + t)) if fast else jnp.log1p(t)
        return jnp.minimum(-z, 0) - tail, jnp.minimum(z, 0) - tail
    to_lower, to_upper = _angles(x, plan, ends)
    u = _nearer(to_lower, to_upper, plan)
    side = to_lower - to_upper  # not below 0 where the nearer end is the upper one, where a = 1
    v = u * u
    if fast:
        log_big = v * v * _polynomial(v, LOG_COS) - v
    else:
        log_big = -jnp.log1p(jnp.tan(u) ** 2)
    if plan.least == 0:  # a logarithm may be infinite
        log_small = log_big + 2 * (jnp.log(u) + v * _polynomial(v, LOG_TAN) if fast else jnp.log(jnp.tan(u)))
        return jnp.where(side >= 0, log_small, log_big), jnp.where(side >= 0, log_big, log_small)
    # by sign, not by selection: a selection between costly values becomes a branch that nobody can predict
    sign = jnp.copysign(plan.dtype.type(1), side)
    if not fast:
        log_tan = jnp.log(jnp.tan(u))
    else:
        log_power, m = _split_log(u)
        more = log_power + v * _polynomial(v, LOG_TAN)
        if compat.is_known(x.shape) and x.size <= SMALL:
            # XLA computes all that is cheap anew in every loop over the tree, but never a division: so end in one
            divisor = 2 + m
            log_tan = (m * _double_atanh_over(m / divisor) + more * divisor) / divisor
            log_big = log_big * divisor / divisor
            return log_big + log_tan * (1 + sign), log_big + log_tan * (1 - sign)
        log_tan = more + _double_atanh(m / (2 + m), ATANH_NEAR)
    return log_big + log_tan * (1 + sign), log_big + log_tan * (1 - sign)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def slopes(x: Array, plan: Plan, nodes: Array | None = None) -> Pair:
    """d log(1-a)/ds and d log(a)/ds."""
    return plain_slopes(x, plan, plan.ends_at(nodes))


@slopes.defjvp
def _slopes_jvp(plan: Plan, primals: tuple, tangents: tuple) -> tuple[Pair, Pair]:
    x, nodes = primals
    return slopes(x, plan, nodes), jax.jvp(
        lambda y: library_slopes(y, plan, plan.ends_at(nodes)), (x,), (tangents[0],)
    )[1]


def plain_slopes(x: Array, plan: Plan, ends: Ends) -> Pair:
    """`slopes` in elementwise operations alone."""
    if plan.natural is None:
        z = _centered(x, plan, ends)
        t = _exp(-jnp.abs(z), library=plan.dtype != np.float32)
        big = 1 / (1 + t)
        small = t * big
        return -jnp.where(z > 0, big, small), jnp.where(z > 0, small, big)
    return _natural_slopes(x, plan, ends, differentiable=False)


def library_slopes(x: Array, plan: Plan, ends: Ends) -> Pair:
    """`slopes` in functions that JAX can differentiate, again and again."""
    if plan.natural is None:
        z = _centered(x, plan, ends)
        return -jax.nn.sigmoid(z), jax.nn.sigmoid(-z)
    return _natural_slopes(x, plan, ends, differentiable=True)


def _natural_slopes(x: Array, plan: Plan, ends: Ends, differentiable: bool) -> Pair:
    number = plan.dtype.type  # constants of a kernel must be plain numbers of one type
    to_lower, to_upper = _angles(x, plan, ends)
    is_upper = to_upper < to_lower
    # a minimum is faster, but has two derivatives in the middle of the range
    nearer = jnp.where(is_upper, to_upper, to_lower) if differentiable else jnp.minimum(to_lower, to_upper)
    u = jnp.maximum(jnp.abs(nearer) if plan.reflects else nearer, number(plan.least))
    rate: Any = number(2 * plan.angle)
    if plan.reflects:
        rate = jnp.where(nearer < 0, -rate, rate)  # mirrored scores run backwards
    if not (plan.revives and plan.least > 0):  # a revived score has the slope of the floor, and a gate further up
        rate = jnp.where(u > number(plan.least), rate, number(0))
    if plan.least == 0:
        u = jnp.where(u == 0, number(1), u)
    if differentiable or plan.dtype != np.float32:
        tangent = jnp.tan(u)
    else:
        v = u * u
        tangent = u * v * _polynomial(v, TAN) + u
    cotangent = 1 / tangent
    return -rate * jnp.where(is_upper, cotangent, tangent), rate * jnp.where(is_upper, tangent, cotangent)


def _centered(x: Array, plan: Plan, ends: Ends) -> Array:
    return x - ends.center if plan.centered else x


# -- the natural activation's angle ------------------------------------------------------------------------------


def _angles(x: Array, plan: Plan, ends: Ends) -> Pair:
    """The angles between every score and the lower and the upper end of its range; negative past that end."""
    number, turned = plan.dtype.type, None
    if plan.reflects:
        # Take whole periods off. The remainder is exact; what the last step rounds away, and what the rounded period
        # lacks, is paid back below.
        remainder = lax.rem(x, jnp.full_like(x, plan.period))
        step = plan.period * lax.stop_gradient(jnp.round((remainder - ends.near_center) / plan.period))
        y = remainder - step
        rounded = lax.stop_gradient((remainder - y) - step)
        turned = lax.stop_gradient(jnp.round((x - y) / plan.period)) * plan.period_rest - rounded
        x = y
    lower_rest, upper_rest = ends.lower_rest, ends.upper_rest
    if turned is not None:
        lower_rest, upper_rest = lower_rest + turned * number(plan.angle), upper_rest + turned * number(plan.angle)
    to_lower = (x - ends.lower) * number(plan.angle) - lower_rest
    to_upper = (ends.upper - x) * number(plan.angle) + upper_rest
    return to_lower, to_upper


def _nearer(to_lower: Array, to_upper: Array, plan: Plan) -> Array:
    """u in [0, pi/4], the angle to the nearer end, where the score is kept inside of its floor."""
    nearer = jnp.minimum(to_lower, to_upper)
    if plan.reflects:
        nearer = jnp.abs(nearer)
    return jnp.maximum(nearer, plan.dtype.type(plan.least))


def _exp(y: Array, library: bool) -> Array:
    """exp of numbers up to 0; ours is 1e-38 at least, and fast in the many loops that XLA cannot vectorise."""
    if library:
        return jnp.exp(y)
    y = jnp.maximum(y, np.float32(-87))
    power = jnp.floor(y * np.float32(np.log2(np.e)) + np.float32(0.5))
    rest = y - power * np.float32(0.693359375) + power * np.float32(2.12194440e-4)  # log(2) in two parts
    scale = lax.bitcast_convert_type((power.astype(jnp.int32) + 127) << 23, jnp.float32)
    return scale * (rest * rest * _polynomial(rest, EXP) + rest + 1)


def _split_log(u: Array) -> Pair:
    """The logarithm of a power of two and m in [sqrt(1/2) - 1, sqrt(2) - 1]: log(u) is the one plus log(1 + m).

    For positive normal float32 numbers, at half the price of XLA's logarithm on a CPU; a NaN must come out elsewhere.
    """
    bits = lax.bitcast_convert_type(u, jnp.int32)
    exponent = (bits - 0x3F3504F3) >> 23
    m = lax.bitcast_convert_type(bits - (exponent << 23), jnp.float32) - 1
    return exponent.astype(jnp.float32) * np.float32(np.log(2)), m


def _double_atanh(s: Array, coefficients: tuple[float, ...] = ATANH) -> Array:
    """log((1+s)/(1-s)) for s up to 1/3; log(1+m) is that of s = m/(2+m)."""
    square = s * s
    return s * square * _polynomial(square, coefficients) + 2 * s


def _double_atanh_over(s: Array) -> Array:
    """The same for s up to 0.172, divided by s."""
    square = s * s
    return square * _polynomial(square, ATANH_NEAR) + 2


def _polynomial(v: Array, coefficients: tuple[float, ...]) -> Array:
    number = np.dtype(v.dtype).type
    total = number(coefficients[-1])
    for c in coefficients[-2::-1]:
        total = total * v + number(c)
    return total


# -- one number a node -------------------------------------------------------------------------------------------


def log_branch(x: Array, turns_right: Array, plan: Plan, nodes: Array | None = None) -> Array:
    """log(a) where ``turns_right``, else log(1-a)."""
    left, right = log_branches(x, plan, nodes)
    return jnp.where(turns_right, right, left)


def probability(x: Array, plan: Plan) -> Array:
    """a: the probability of the right turn."""
    if plan.natural is None:
        return jax.nn.sigmoid(_centered(x, plan, plan.ends))
    to_lower, to_upper = _angles(x, plan, plan.ends)
    square = jnp.tan(_nearer(to_lower, to_upper, plan)) ** 2
    return jnp.where(to_upper < to_lower, 1.0, square) / (1 + square)


def node_fisher(x: Array, plan: Plan) -> Array:
    """a'^2 / (a (1-a)): the Fisher information of every node's own coin."""
    if plan.natural is None:
        z = _centered(x, plan, plan.ends)
        return jax.nn.sigmoid(z) * jax.nn.sigmoid(-z)
    nearer = jnp.minimum(*_angles(x, plan, plan.ends))
    if plan.reflects:
        nearer = jnp.abs(nearer)
    alive = ~(nearer <= plan.least)  # also NaN
    return jnp.where(alive, (2 * plan.angle) ** 2 + 0 * nearer, 0)


def score_of(left: Array, right: Array, plan: Plan) -> Array:
    """The score at which a : 1-a is ``right : left``, two masses that need not sum to one; 0 where both are 0."""
    empty = (left == 0) & (right == 0)
    left, right = jnp.where(empty, 1, left), jnp.where(empty, 1, right)
    if plan.natural is None:
        x = jnp.log(right) - jnp.log(left)
    else:
        x = (jnp.arctan2(jnp.sqrt(right), jnp.sqrt(left)) - np.pi / 4) / plan.angle
    return jnp.where(empty, 0, x + plan.ends.center)


# -- revival -----------------------------------------------------------------------------------------------------

_gate = compat.rowwise("catnat_gate", lambda outside, dx: dx, lambda outside, dx: dx[-1])
compat.differentiate(_gate, lambda primals, tangents: (_gate.bind(*primals), _gate.bind(primals[0], tangents[1])))
compat.transpose_last(_gate, lambda ct, outside: jnp.where((outside == 0) | (outside * ct > 0), ct, 0))


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def gate_revival(x: Array, plan: Plan) -> Array:
    """The scores themselves; on the way back, outside the range, only a gradient whose descent step leads back inside.

    The gate looks at the whole gradient of a score, so it stands where the scores come in. Forward mode knows no
    descent: there every tangent passes.
    """
    return x


@gate_revival.defjvp
def _gate_revival_jvp(plan: Plan, primals: tuple, tangents: tuple) -> Pair:
    x = lax.stop_gradient(primals[0])
    to_lower, to_upper = _angles(x, plan, plan.ends)
    side = jnp.where(to_upper < to_lower, 1.0, -1.0).astype(x.dtype)
    outside = jnp.where(jnp.minimum(to_lower, to_upper) < plan.least, side, 0)
    return primals[0], _gate.bind(outside, tangents[0])
