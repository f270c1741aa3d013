"""A node's coin in registers: log(1-a), log(a) and their slopes, for a block of scores.

The same formulas as `catnat.torch._node`, with the library's functions replaced by the GPU's own approximations
where these are right to the last digits, and by short polynomials (minimax fits) where they are not. EXACT is for
scores in float32: right to 4e-7, the error of the GPU's logarithm. Else the scores have 16 bits, whose last digit is
4e-3 or 5e-4, and right to 1e-5 will do; only a slope that is tiny beside its node's other one has fewer digits then
(2e-3 of the gradient below the node).

ENDS is the ``kind`` of `catnat.torch._gpu.coin.Coin`: where the ends of the nodes' ranges come from.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

# Without a GPU the kernels run in Triton's interpreter, which knows none of the four functions below.
INTERPRETED: tl.constexpr = tl.constexpr(bool(triton.knobs.runtime.interpret))
NAN: tl.constexpr = tl.constexpr(tl.PropagateNan.ALL)
FEW: tl.constexpr = tl.constexpr(6)  # numbers a level: a place, its centre, both ends in two parts
CLIP: tl.constexpr = tl.constexpr(0)
REVIVE: tl.constexpr = tl.constexpr(1)
REFLECT: tl.constexpr = tl.constexpr(2)


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
def sin(y):
    """The GPU's own sine: its error is 5e-7 at most, which is not small beside a small sine."""
    return tl.sin(y) if INTERPRETED else libdevice.fast_sinf(y)


@triton.jit
def cos(y):
    """The GPU's own cosine; likewise."""
    return tl.cos(y) if INTERPRETED else libdevice.fast_cosf(y)


# -- where the ends of the range are -----------------------------------------------------------------------------


@triton.jit
def ends_of(ends_ptr, places, level, coin, NODES: tl.constexpr, ENDS: tl.constexpr):
    """Centre, lower end, its rest, upper end, its rest of the nodes at the given places of one level."""
    if ENDS == 0:
        return 0.0, 0.0, 0.0, 0.0, 0.0
    elif ENDS == 2:
        own = ends_ptr + tl.minimum(places, NODES) - 1
        center, lower, lower_rest = tl.load(own), tl.load(own + NODES), tl.load(own + 2 * NODES)
        return center, lower, lower_rest, tl.load(own + 3 * NODES), tl.load(own + 4 * NODES)
    else:
        own = ends_ptr + (level + 1) * FEW
        odd = places == tl.load(own).to(tl.int32)
        if ENDS == 1:  # the common centre is 0
            half, rest, angle, least, period, period_rest = coin
            center, lower, lower_rest, upper, upper_rest = 0.0, -half, -rest, half, rest
        else:
            center, lower, lower_rest = tl.load(ends_ptr + 1), tl.load(ends_ptr + 2), tl.load(ends_ptr + 3)
            upper, upper_rest = tl.load(ends_ptr + 4), tl.load(ends_ptr + 5)
        return _but_for(odd, own, center, lower, lower_rest, upper, upper_rest)


@triton.jit
def _but_for(odd, own, center, lower, lower_rest, upper, upper_rest):
    """The given ends, where ``odd`` the node's own."""
    center = tl.where(odd, tl.load(own + 1), center)
    lower = tl.where(odd, tl.load(own + 2), lower)
    lower_rest = tl.where(odd, tl.load(own + 3), lower_rest)
    upper = tl.where(odd, tl.load(own + 4), upper)
    upper_rest = tl.where(odd, tl.load(own + 5), upper_rest)
    return center, lower, lower_rest, upper, upper_rest


@triton.constexpr_function
def uneven_place(nodes, level):
    """The node of a level that has classes of both depths below it (the last node and the first class), or 0."""
    up = nodes.bit_length() - 1 - level
    return nodes >> up if nodes >> up == (nodes + 1) >> up else 0


@triton.jit
def ends_of_level(ends_ptr, places, LEVEL: tl.constexpr, coin, NODES: tl.constexpr, ENDS: tl.constexpr):
    """`ends_of` where the level is known to the compiler, and so which place has ends of its own."""
    if ENDS == 1:
        half, rest, angle, least, period, period_rest = coin
        ODD: tl.constexpr = uneven_place(NODES, LEVEL)
        if ODD == 0:
            return 0.0, -half, -rest, half, rest
        else:
            return _but_for(places == ODD, ends_ptr + (LEVEL + 1) * FEW, 0.0, -half, -rest, half, rest)
    else:
        return ends_of(ends_ptr, places, LEVEL, coin, NODES, ENDS)


@triton.jit
def angle_of(x, ends, coin, ENDS: tl.constexpr, SATURATION: tl.constexpr, EXACT: tl.constexpr):
    """The angle to the nearer end (negative past it) and whether that is the upper one, where a = 1."""
    half, rest, angle, least, period, period_rest = coin
    center, lower, lower_rest, upper, upper_rest = ends
    if ENDS == 0 or (SATURATION != REFLECT and not EXACT):
        # what a shift by the centre rounds away matters at the very end of the range only
        y = x - center
        if EXACT:
            return (half - tl.abs(y)) * angle + rest, y > 0
        return (half * angle + rest) - tl.abs(y) * angle, y > 0
    if SATURATION == REFLECT:
        # Take whole periods off. The remainder is exact; what the last step rounds away, and what the rounded period
        # lacks, is paid back below.
        remainder = x % period
        step = period * tl.floor((remainder - center) / period + 0.5)
        y = remainder - step
        rounded = (remainder - y) - step
        turned = (tl.floor((x - y) / period + 0.5) * period_rest - rounded) * angle
        lower_rest += turned
        upper_rest += turned
        x = y
    to_lower = (x - lower) * angle - lower_rest
    to_upper = (upper - x) * angle + upper_rest
    return tl.minimum(to_lower, to_upper, propagate_nan=NAN), to_upper < to_lower


# -- both branches -----------------------------------------------------------------------------------------------


@triton.jit
def log_branches(
    x, ends, coin, NATURAL: tl.constexpr, ENDS: tl.constexpr, SATURATION: tl.constexpr, EXACT: tl.constexpr
):
    """log(1-a) and log(a)."""
    half, rest, angle, least, period, period_rest = coin
    if NATURAL:
        u, up = angle_of(x, ends, coin, ENDS, SATURATION, EXACT)
        if SATURATION == REFLECT:
            u = tl.abs(u)
        u = tl.maximum(u, least, propagate_nan=NAN)
        v = u * u
        # log cos(u)^2 = -v + v^2 P(v) and log sin(u)^2 = 2 log(u) + v Q(v)
        if EXACT:
            big = (((-0.00298791118 * v - 0.00318964215) * v - 0.0138854251) * v - 0.0443888591) * v - 0.16666919
            small = ((-5.99327859e-05 * v - 0.000701716318) * v - 0.01111189) * v - 0.333333283
        else:
            big = (-0.0207240896 * v - 0.0415541287) * v - 0.166980447
            small = -0.0117513369 * v - 0.333208597
        big = (big * v - 1.0) * v
        small = small * v + log2(u) * 1.3862943611198906
        return tl.where(up, small, big), tl.where(up, big, small)
    else:
        z = x if ENDS == 0 else x - ends[0]
        t = tl.exp2(tl.abs(z) * -1.4426950408889634)
        tail = _log_one_plus(t, EXACT)
        return tl.minimum(-z, 0.0) - tail, tl.minimum(z, 0.0) - tail


@triton.jit
def _log_one_plus(t, EXACT: tl.constexpr):
    """log(1+t) for t in [0, 1]."""
    if EXACT:
        p = 0.00536482063 * t - 0.0300657785
        p = p * t + 0.0792045149
        p = p * t - 0.137538007
        p = p * t + 0.191536543
        p = p * t - 0.248571635
        p = p * t + 0.333213226
        p = p * t - 0.49999648
        return (p * t) * t + t
    return log2(1 + t) * 0.6931471805599453


@triton.jit
def pull(
    x, left, right, both, ends, coin,
    NATURAL: tl.constexpr, ENDS: tl.constexpr, SATURATION: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """d/ds of left * log(1-a) + right * log(a); ``both`` is left + right."""
    half, rest, angle, least, period, period_rest = coin
    if NATURAL and not EXACT and SATURATION != REFLECT:
        # (right - left - sin(w) (left + right)) / cos(w), with w twice the angle from the centre
        y = x - ends[0]
        limit = half - least / angle
        inside = tl.minimum(tl.maximum(y, -limit, propagate_nan=NAN), limit, propagate_nan=NAN)
        w = (inside if SATURATION == REVIVE else y) * (2 * angle)
        slope = (2 * right - both - sin(w) * both) * (inverse(cos(w)) * (2 * angle))
        return slope if SATURATION == REVIVE else tl.where(tl.abs(y) >= limit, 0.0, slope)
    elif NATURAL:
        u, up = angle_of(x, ends, coin, ENDS, SATURATION, EXACT)
        rate = 2 * angle
        if SATURATION == REFLECT:
            rate = tl.where(u < 0, -rate, rate)  # mirrored scores run backwards
            u = tl.abs(u)
        dead = u <= least
        if SATURATION == REVIVE:  # a revived score has the slope of the floor, and a gate where it comes in
            dead = (u <= least) & (least == 0.0)
            u = tl.maximum(u, least, propagate_nan=NAN)
        v = u * u
        if EXACT:
            p = ((0.00946560302 * v + 0.00297443264) * v + 0.0245282715) * v + 0.0533812508
            p = (p * v + 0.133392001) * v + 0.333331395
        else:
            p = ((0.0434471382 * v + 0.0409752489) * v + 0.136215802) * v + 0.333139099
        tangent = (p * v) * u + u
        cotangent = inverse(tangent)
        slope = tl.where(up, tangent, cotangent) * right - tl.where(up, cotangent, tangent) * left
        return tl.where(dead, 0.0, slope * rate)
    else:
        z = x if ENDS == 0 else x - ends[0]
        if not EXACT:  # a small 1-a has fewer digits then, but still more than 16 bits show
            return right - inverse(1 + tl.exp2(z * -1.4426950408889634)) * both
        t = tl.exp2(tl.abs(z) * -1.4426950408889634)
        big = inverse(1 + t)
        small = t * big
        return tl.where(z > 0, small, big) * right - tl.where(z > 0, big, small) * left
