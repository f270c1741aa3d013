"""A node in registers: the logit of a score and its slope, for a block of scores, and what follows from them.

All activations are one family. With u the angle from a score to the nearer end of the natural range, but no less than
at the joint, and T = tan(u),

    |z| = -2 log T + 4 (how far the score lies past the joint, as an angle) / sin(2 u),
    dz/dx = gain / sin(2 u) = gain (T + 1/T) / 2 = gain cosh(z / 2), which stops growing at the joint.

The sigmoid has its joint at the centre: all of |z| lies past it. Of the paper's formula nothing lies past its floor.
Everything else follows from the root of the odds, e^(-|z| / 2), which is T up to the joint; its logarithm is half of z,
so logarithms are to the base 4 until a class is stored: the GPU's own are to the base 2.

``exact`` is for scores in float32: right to 3e-7 a level, the error of that logarithm. For 16 bits, whose last digit is
4e-3 or 5e-4, 1e-4 will do; only a slope that is tiny beside its node's other one has fewer digits then (2e-3 of the
gradient below the node). There arithmetic is what a gradient's time goes to, and the GPU's own functions are eight
products each: z and dz/dx are polynomials where these are short (`blocks.Short`), which leaves two functions of four.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from triton.language.extra import libdevice

from catnat.torch import _bernoulli

# Without a GPU the kernels run in Triton's interpreter, which knows none of the GPU's own functions.
INTERPRETED: tl.constexpr = tl.constexpr(bool(triton.knobs.runtime.interpret))
NAN: tl.constexpr = tl.constexpr(tl.PropagateNan.ALL)
SIGMOID: tl.constexpr = tl.constexpr(_bernoulli.SIGMOID)
NATURAL: tl.constexpr = tl.constexpr(_bernoulli.NATURAL)
PAPER: tl.constexpr = tl.constexpr(_bernoulli.PAPER)
NONE: tl.constexpr = tl.constexpr(_bernoulli.NONE)
UNEVEN: tl.constexpr = tl.constexpr(_bernoulli.UNEVEN)
SIGN: tl.constexpr = tl.constexpr(-(1 << 31))
BOUND: tl.constexpr = tl.constexpr(40.0)
HALF_LOG2_E: tl.constexpr = tl.constexpr(math.log2(math.e) / 2)
LN_2: tl.constexpr = tl.constexpr(math.log(2))
LN_4: tl.constexpr = tl.constexpr(math.log(4))


@triton.jit
def log2(y):
    """The GPU's own logarithm; `tl.log2` is a software routine of twenty operations."""
    return tl.log2(y) if INTERPRETED else libdevice.fast_log2f(y)


@triton.jit
def inverse(y):
    """1/y to one unit in the last place."""
    tl.static_assert(y.dtype == tl.float32)  # the instruction would read half of a longer number
    if INTERPRETED:
        return 1 / y
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [y], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def polynomial(v, P: tl.constexpr):
    """The sum of P's coefficients, each times its power of v."""
    LAST: tl.constexpr = len(P.coefficients) - 1
    sum = P.coefficients[LAST]
    for i in tl.static_range(LAST):
        sum = sum * v + P.coefficients[LAST - 1 - i]
    return sum


# -- the logit and its slope -------------------------------------------------------------------------------------


@triton.jit
def offset_of(x, places, level, centers_ptr, KIND: tl.constexpr, F: tl.constexpr):
    """x - C for the nodes at the given places of a level, and what that rounded away where it is needed."""
    rounded = 0.0
    if KIND != NONE:
        center = _of_nodes(centers_ptr, places, level, KIND, F)
        offset = x - center
        if F.near:
            ROWS: tl.constexpr = F.levels if KIND == UNEVEN else F.nodes
            rest = _of_nodes(centers_ptr + ROWS, places, level, KIND, F)
            back = offset - x
            rounded = (x - (offset - back)) - (center + back) - rest
        x = offset
    return x, rounded


@triton.jit
def _of_nodes(table_ptr, places, level, KIND: tl.constexpr, F: tl.constexpr):
    """One row of the table of centres."""
    if KIND == UNEVEN:
        return tl.where(places == F.nodes >> (F.levels - 1 - level), tl.load(table_ptr + level), 0.0)
    else:
        return tl.load(table_ptr + tl.minimum(places, F.nodes) - 1)


@triton.jit
def angle_of(offset, rounded, numbers, F: tl.constexpr):
    """The angle from a score to the nearer end of the range, negative past it."""
    half, half_rest, angle = numbers[0], numbers[1], numbers[2]
    if F.near:
        free = (half - tl.abs(offset)) * angle + half_rest
        return free - tl.where(offset > 0, rounded, -rounded) * angle
    else:
        return (half * angle + half_rest) - tl.abs(offset) * angle


@triton.jit
def half_logit(offset, rounded, numbers, F: tl.constexpr):
    """-|z| / 2, to the base 2: the logarithm of the root of the odds. z has the sign of the offset."""
    least, steepness = numbers[3], numbers[4]
    if F.activation == SIGMOID:
        return tl.abs(offset) * -HALF_LOG2_E
    else:
        free = angle_of(offset, rounded, numbers, F)
        u = tl.maximum(free, least, propagate_nan=NAN)
        v = u * u
        LOG2_TAN: tl.constexpr = F.log2_tan
        found = polynomial(v, LOG2_TAN) * v + log2(u)
        if F.activation == NATURAL:
            found += (free - u) * steepness
        return found


@triton.jit
def signed_root(offset, rounded, numbers, F: tl.constexpr):
    """e^(-z / 2): the root of (1-a) / a, so bounded that its inverse is a number too."""
    if F.activation == SIGMOID:
        return tl.exp2(tl.clamp(offset * -HALF_LOG2_E, -BOUND, BOUND, propagate_nan=NAN))
    elif F.activation >= PAPER:  # it is the tangent all over, and at the ends a logarithm would cost it a digit
        u = tl.maximum(angle_of(offset, rounded, numbers, F), numbers[3], propagate_nan=NAN)
        v = u * u
        TAN: tl.constexpr = F.tan
        root = (polynomial(v, TAN) * v) * u + u
        return tl.where(offset > 0, root, inverse(root))
    else:
        z = tl.maximum(half_logit(offset, rounded, numbers, F), -BOUND, propagate_nan=NAN).to(tl.int32, bitcast=True)
        return tl.exp2((z ^ (offset.to(tl.int32, bitcast=True) & SIGN)).to(tl.float32, bitcast=True))


@triton.jit
def odds_and_slope(x, F: tl.constexpr):
    """(1-a) / a and dz/dx by the polynomials of 16-bit scores; x is the offset."""
    if F.activation == SIGMOID:
        return tl.exp2(x * F.short.logit_past), 1.0
    else:
        LOGIT: tl.constexpr = F.short.logit
        SLOPE: tl.constexpr = F.short.slope
        inside = tl.clamp(x, -F.short.joint, F.short.joint, propagate_nan=NAN)
        v = inside * inside
        minus_z = polynomial(v, LOGIT) * inside + (x - inside) * F.short.logit_past
        return tl.exp2(minus_z), polynomial(v, SLOPE)


# -- for all activations alike -----------------------------------------------------------------------------------


@triton.jit
def log_branches(here, offset, rounded, numbers, F: tl.constexpr):
    """``here`` + log(1-a) and ``here`` + log(a), to the base 4."""
    z = half_logit(offset, rounded, numbers, F)
    root = tl.exp2(z)
    likely = here - 0.5 * log2(root * root + 1)
    rare = likely + z
    return tl.where(offset > 0, rare, likely), tl.where(offset > 0, likely, rare)


@triton.jit
def pull(left, right, both, offset, rounded, numbers, F: tl.constexpr):
    """d/ds of left * log(1-a) + right * log(a), which is ((1-a) right - a left) dz/dx; ``both`` is left + right."""
    angle, least, steepness = numbers[2], numbers[3], numbers[4]
    if F.short is not None:
        odds, slope = odds_and_slope(offset, F)
        gradient = (right - inverse(odds + 1) * both) * slope
    else:
        # (1-a) dz/dx is root / (root + 1/root) dz/dx, and dz/dx is no more than (root + 1/root) gain / 2
        root = signed_root(offset, rounded, numbers, F)
        other = inverse(root)
        gradient = root * right - other * left
        if F.activation == SIGMOID:
            gradient *= inverse(root + other)
        elif F.activation == NATURAL:
            gradient *= tl.minimum(inverse(root + other) * (LN_2 * steepness), 1.0, propagate_nan=NAN)
        if F.activation != SIGMOID:
            gradient *= 2 * angle
    if F.activation == PAPER:  # whose gradient ends with the range
        gradient = tl.where(angle_of(offset, rounded, numbers, F) <= least, 0.0, gradient)
    return gradient
