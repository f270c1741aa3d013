"""A node in registers: the logit of a score and its slope, for a block of scores, and what follows from them.

All activations are one family. With u the angle from a score to the nearer end of the natural range, but no less than
that of the joint, and T = tan(u),

    |z| = -2 log T + (what lies past the joint) / sin(2 u),    dz/dx = gain / sin(2 u) = gain (T + 1/T) / 2.

The sigmoid is the family's end where the joint is at the centre: T = 1, and all of |z| lies past it. The paper's formula
is the other end: nothing lies past the floor. From t = e^-|z|, the odds of the less likely branch, all else is derived:
the branches have 1/(1+t) and t/(1+t), and the gradient is the slope times (1-a) right - a left.

Logarithms are to the base 2 until a class is stored, since the GPU's own exponential and logarithm are. EXACT is for scores
in float32: right to 4e-7, the error of that logarithm. Else the scores have 16 bits, whose last digit is 4e-3 or
5e-4, and right to 1e-5 will do.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from triton.language.extra import libdevice

from catnat.core import fits
from catnat.torch._gpu import coin

# Without a GPU the kernels run in Triton's interpreter, which knows none of the GPU's own functions.
INTERPRETED: tl.constexpr = tl.constexpr(bool(triton.knobs.runtime.interpret))
NAN: tl.constexpr = tl.constexpr(tl.PropagateNan.ALL)
SIGMOID: tl.constexpr = tl.constexpr(coin.SIGMOID)
NATURAL: tl.constexpr = tl.constexpr(coin.NATURAL)
PAPER: tl.constexpr = tl.constexpr(coin.PAPER)
NONE: tl.constexpr = tl.constexpr(coin.NONE)
UNEVEN: tl.constexpr = tl.constexpr(coin.UNEVEN)
HALF_LOG2_E: tl.constexpr = tl.constexpr(math.log2(math.e) / 2)
SIGN: tl.constexpr = tl.constexpr(-(1 << 31))
LN_2: tl.constexpr = tl.constexpr(math.log(2))
LN_4: tl.constexpr = tl.constexpr(math.log(4))
TAN: tl.constexpr = tl.constexpr(fits.TAN.coefficients)
TAN_SHORT: tl.constexpr = tl.constexpr(fits.TAN_SHORT.coefficients)
LOG2_TAN_SHORT: tl.constexpr = tl.constexpr((0.48158057, 0.10591109, 0.04737265))
LOG4_ONE_PLUS: tl.constexpr = tl.constexpr(tuple(c / math.log(4) for c in (1.0, *fits.LOG_ONE_PLUS.coefficients)))


@triton.jit
def log2(y):
    """The GPU's own logarithm; `tl.log2` is a software routine of twenty operations."""
    return tl.log2(y) if INTERPRETED else libdevice.fast_log2f(y)


@triton.jit
def inverse(y):
    """1/y to one unit in the last place."""
    if INTERPRETED:
        return 1 / y
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [y], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def polynomial(v, FIT: tl.constexpr):
    """The sum of FIT[i] v^i."""
    LAST: tl.constexpr = len(FIT.value) - 1
    sum = FIT.value[LAST]
    for i in tl.static_range(LAST):
        sum = sum * v + FIT.value[LAST - 1 - i]
    return sum


# -- the logit and its slope -------------------------------------------------------------------------------------


@triton.jit
def offset_of(x, places, level, centers_ptr, KIND: tl.constexpr, F: tl.constexpr):
    """x - C for the nodes at the given places of a level, and what that rounded away where it is needed."""
    rounded = 0.0
    if KIND != NONE:
        center = _of_nodes(centers_ptr, places, level, KIND, F)
        offset = x - center
        if F.exact and F.activation >= PAPER:  # near an end of the range the distance to it is all that matters
            ROWS: tl.constexpr = F.levels if KIND == UNEVEN else F.nodes
            rest = _of_nodes(centers_ptr + ROWS, places, level, KIND, F)
            back = offset - x
            rounded = (x - (offset - back)) - (center + back) - rest
        x = offset
    return x, rounded


@triton.jit
def _of_nodes(table_ptr, places, level, KIND: tl.constexpr, F: tl.constexpr):
    """One row of a coin's table."""
    if KIND == UNEVEN:
        return tl.where(places == F.nodes >> (F.levels - 1 - level), tl.load(table_ptr + level), 0.0)
    else:
        return tl.load(table_ptr + tl.minimum(places, F.nodes) - 1)


@triton.jit
def angle_of(offset, rounded, numbers, F: tl.constexpr):
    """The angle from a score to the nearer end of the range, negative past it."""
    half, half_rest, angle, least, steepness = numbers
    if F.exact:
        free = (half - tl.abs(offset)) * angle + half_rest
        if F.activation >= PAPER:
            free -= tl.where(offset > 0, rounded, -rounded) * angle
        return free
    else:
        return (half * angle + half_rest) - tl.abs(offset) * angle


@triton.jit
def tan(u, F: tl.constexpr):
    """For u up to pi/4."""
    v = u * u
    return (polynomial(v, TAN if F.exact else TAN_SHORT) * v) * u + u


@triton.jit
def half_logit(offset, rounded, numbers, F: tl.constexpr):
    """-|z| / 2, to the base 2: the logarithm of the root of the odds. z has the sign of the offset."""
    half, half_rest, angle, least, steepness = numbers
    if F.activation == SIGMOID:
        return tl.abs(offset) * -HALF_LOG2_E
    else:
        free = angle_of(offset, rounded, numbers, F)
        u = tl.maximum(free, least, propagate_nan=NAN)
        if F.exact:
            found = log2(tan(u, F))
        else:
            v = u * u
            found = polynomial(v, LOG2_TAN_SHORT) * v + log2(u)
        if F.activation == NATURAL:
            found += (free - u) * steepness
        return found


# -- for all activations alike -----------------------------------------------------------------------------------


@triton.jit
def log_branches(here, offset, rounded, numbers, F: tl.constexpr):
    """``here`` + log(1-a) and ``here`` + log(a), to the base 4."""
    z = half_logit(offset, rounded, numbers, F)
    root = tl.exp2(z)
    if F.exact:
        t = root * root
        likely = here - polynomial(t, LOG4_ONE_PLUS) * t
    else:
        likely = here - 0.5 * log2(root * root + 1)
    rare = likely + z
    return tl.where(offset > 0, rare, likely), tl.where(offset > 0, likely, rare)


@triton.jit
def pull(left, right, both, offset, rounded, numbers, F: tl.constexpr):
    """d/ds of left * log(1-a) + right * log(a), which is ((1-a) right - a left) dz/dx; ``both`` is left + right."""
    half, half_rest, angle, least, steepness = numbers
    # the root of (1-a) / a, and its inverse
    if F.activation == SIGMOID:
        root = tl.exp2(offset * -HALF_LOG2_E)
    elif F.exact and F.activation >= PAPER:  # the logarithm would cost it a digit
        free = angle_of(offset, rounded, numbers, F)
        tangent = tan(tl.maximum(free, least, propagate_nan=NAN), F)
        root = tl.where(offset > 0, tangent, inverse(tangent))
    else:
        z = half_logit(offset, rounded, numbers, F)
        sign = offset.to(tl.int32, bitcast=True) & SIGN
        root = tl.exp2((z.to(tl.int32, bitcast=True) ^ sign).to(tl.float32, bitcast=True))
    other = inverse(root)
    if F.exact:
        gradient = inverse(1 + other * other) * right - inverse(1 + root * root) * left
    else:
        gradient = right - inverse(1 + root * root) * both
    if F.activation != SIGMOID:
        steep = root + other
        if F.activation == NATURAL:
            steep = tl.minimum(steep, steepness * LN_2, propagate_nan=NAN)
        gradient *= steep * (2 * angle)
    if F.activation == PAPER:
        gradient = tl.where(angle_of(offset, rounded, numbers, F) <= least, 0.0, gradient)
    return gradient
