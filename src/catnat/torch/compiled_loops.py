"""The loops behind `catnat.torch.compiled`: read by Numba's compiler, never run by Python.

A thread takes a chunk of rows at a time, small enough for the nearest cache. All scores of a chunk go through one flat
loop, which a compiler turns into vector code; then every row is walked along the levels of its heap. Backward is the
same in reverse: up the levels, then the flat loop, which computes the slopes anew from the scores, since that costs
less than to fetch them from memory.

Library functions do not become vector code, so exp, log and tan are short polynomials, arranged so that few of their
steps wait for one another.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cfunc, config, njit, types

from catnat.torch.compiled_memory import (
    bits_of,
    call,
    call_in_threads,
    entry,
    load,
    make_task,
    of_bits,
    stack,
    store,
    take,
)

if config.DISABLE_JIT:  # the loops are not for Python
    raise ImportError("NUMBA_DISABLE_JIT is set")

CHUNK = 1024  # scores that a thread takes at once, or one row if that is longer

# What a task holds, each in 8 bytes. The first two are counters that the threads share.
NEXT_CHUNK, NEXT_THREAD, ROWS, X, GRADIENT, OUT, SCRATCH, CLASSES, CHUNK_ROWS, SETTINGS, STRIDE, STEP = range(12)
# What the settings hold, as floats: two numbers, where a slope is 0, then per-node constants for one chunk.
MARGIN, ANGLE, DEAD, CONSTANTS = range(4)

OPTIONS: dict[str, Any] = {"fastmath": {"contract"}, "error_model": "numpy"}  # no exception where we divide by 0

# -- functions ---------------------------------------------------------------------------------------------------


def _numbers(*values: float) -> tuple[Any, ...]:
    return tuple(np.float32(value) for value in values)  # a plain number would make everything float64


ZERO, ONE, TWO, NAN = _numbers(0, 1, 2, math.nan)
# Adding 1.5 * 2^23 rounds to a whole number, which the lowest bits then hold: no conversion, and a NaN stays one.
ROUNDER, LOG2_E, LOG_2, MOST = _numbers(1.5 * 2**23, math.log2(math.e), math.log(2), 88)
BIAS, MANTISSA, SQRT_HALF = np.int32(127), np.int32(23), np.int32(0x3F3504F3)

# Fits with the least greatest error, 1e-8 or better. The leading term, which is exact, is added last.
E0, E1, E2, E3, E4 = _numbers(0.5, -0.16666520, 0.04166621, -0.00836888, 0.00139505)  # (exp(-r) - 1 + r) / r^2
L0, L1, L2, L3, L4, L5, L6, L7 = _numbers(  # (log(1+t) - t) / t^2 for t in [0, 1]
    -0.49998882, 0.33307052, -0.24757408, 0.18803465, -0.13072123, 0.07173190, -0.02574624, 0.00434049
)
M0, M1, M2, M3, M4, M5, M6, M7 = _numbers(  # the same for t in [sqrt(1/2) - 1, sqrt(2) - 1]
    -0.49999982, 0.33334225, -0.25002491, 0.19953613, -0.16552334, 0.14979289, -0.14441884, 0.08733632
)
C0, C1, C2, C3, C4 = _numbers(  # (log cos(u)^2 + u^2) / u^4 in u^2, for u in [0, pi/4]
    -0.16667351, -0.04433618, -0.01410369, -0.00281544, -0.00321574
)
S0, S1, S2, S3 = _numbers(-0.33333328, -0.01111189, -0.00070172, -0.00005993)  # log (sin(u)/u)^2 / u^2 in u^2
# tan(u) on [0, pi/4] by a Pade approximant, error 2e-8
N1, N2, D1, D2 = _numbers(-1 / 9, 1 / 945, -4 / 9, 1 / 63)


@njit(**OPTIONS)
def exp_minus(w: Any) -> Any:
    """exp(-w) for w at least 0; 0 from 88 on."""
    w = MOST if w > MOST else w
    power = ROUNDER - w * LOG2_E
    r = w + (power - ROUNDER) * LOG_2
    scale = of_bits(np.int32(np.int32(bits_of(power) + BIAS) << MANTISSA))
    v = r * r
    return scale * ((ONE - r) + v * ((E0 + E1 * r) + v * ((E2 + E3 * r) + v * E4)))


@njit(**OPTIONS)
def log_1_plus(t: Any) -> Any:
    """log(1 + t) for t in [0, 1]."""
    v = t * t
    return t + v * (((L0 + L1 * t) + v * (L2 + L3 * t)) + (v * v) * ((L4 + L5 * t) + v * (L6 + L7 * t)))


@njit(**OPTIONS)
def log_of(u: Any) -> Any:
    """log(u) for positive normal numbers; a NaN must come out elsewhere."""
    bits = bits_of(u)
    exponent = np.int32(np.int32(bits - SQRT_HALF) >> MANTISSA)
    t = of_bits(np.int32(bits - np.int32(exponent << MANTISSA))) - ONE
    v = t * t
    tail = ((M0 + M1 * t) + v * (M2 + M3 * t)) + (v * v) * ((M4 + M5 * t) + v * (M6 + M7 * t))
    return (np.float32(exponent) * LOG_2 + t) + v * tail


# -- the flat loops: n scores, a term for each, and its two branches, left and right in turn --------------------------

# Each is two short loops rather than a long one: a processor looks only so far ahead for something else to do while it
# waits for a result.


@njit(**OPTIONS)
def sigmoid_odds(x: int, n: int, center: int, odds: int) -> None:
    """e^-|z|."""
    for j in range(n):
        store(odds, j, exp_minus(abs(load(x, j) - load(center, j))))


@njit(**OPTIONS)
def sigmoid_values(x: int, n: int, center: int, odds: int, branches: int) -> None:
    """log(1-a) and log(a)."""
    for j in range(n):
        z, tail = load(x, j) - load(center, j), log_1_plus(load(odds, j))
        store(branches, 2 * j, (ZERO if z < ZERO else -z) - tail)
        store(branches, 2 * j + 1, (ZERO if z > ZERO else z) - tail)


@njit(**OPTIONS)
def sigmoid_slopes(x: int, n: int, center: int, odds: int, branches: int, out: int) -> None:
    """(1-a) right - a left."""
    for j in range(n):
        z, t = load(x, j) - load(center, j), load(odds, j)
        left, right = load(branches, 2 * j), load(branches, 2 * j + 1)
        store(out, j, ((t if z > ZERO else ONE) * right - (ONE if z > ZERO else t) * left) / (ONE + t))


@njit(**OPTIONS)
def natural_angles(x: int, n: int, ends: int, stride: int, margin: Any, angle: Any, dead: Any, angles: int) -> None:
    """The angle to the nearer end, positive if that is the upper one; 0 where the distance is not above ``dead``."""
    for j in range(n):
        s = load(x, j)
        to_upper = (load(ends, j) - s) + load(ends, stride + j)
        to_lower = (s - load(ends, 2 * stride + j)) - load(ends, 3 * stride + j)
        distance = to_upper if to_upper < to_lower else to_lower
        u = angle * (margin if distance < margin else distance)
        u = ZERO if distance <= dead else u
        store(angles, j, u if to_upper < to_lower else -u)


@njit(**OPTIONS)
def natural_values(n: int, angles: int, branches: int) -> None:
    """log(1-a) and log(a): log cos(u)^2 and log sin(u)^2."""
    for j in range(n):
        side = load(angles, j)
        v = side * side
        w = v * v
        big = w * ((C0 + C1 * v) + w * ((C2 + C3 * v) + w * C4)) - v
        small = TWO * log_of(abs(side)) + v * ((S0 + S1 * v) + w * (S2 + S3 * v))
        store(branches, 2 * j, small if side > ZERO else big)
        store(branches, 2 * j + 1, big if side > ZERO else small)


@njit(**OPTIONS)
def natural_slopes(n: int, angles: int, rate: Any, branches: int, out: int) -> None:
    """(pi/A) (sqrt((1-a)/a) right - sqrt(a/(1-a)) left)."""
    for j in range(n):
        side = load(angles, j)
        v = side * side
        sine, cosine = abs(side) * (ONE + v * (N1 + v * N2)), ONE + v * (D1 + v * D2)  # up to a factor
        p, q = sine if side > ZERO else cosine, cosine if side > ZERO else sine
        left, right = load(branches, 2 * j), load(branches, 2 * j + 1)
        gradient = rate * (p * p * right - q * q * left) / (p * q)  # p/q and q/p with one division
        store(out, j, ZERO if side == ZERO else gradient)


# -- the heap: place i at index i, the children of node i at 2i and 2i+1, class k at K+k ------------------------------


@njit(**OPTIONS)
def add_down(places: int, low: int, high: int, out: int) -> None:
    """Add to both children of nodes low..high-1 what stands on the node."""
    for i in range(low, high):
        here = load(places, i)
        store(out, 2 * i, load(places, 2 * i) + here)
        store(out, 2 * i + 1, load(places, 2 * i + 1) + here)


@njit(**OPTIONS)
def descend(places: int, classes: int, out: int) -> None:
    """Sum along every path what stands on its branches; the classes' sums go to ``out``."""
    last = max(2, (classes + 1) // 2)  # from here on both children are classes
    low = 2  # nothing stands on the root
    while low < last:
        add_down(places, low, min(2 * low, last), places)
        low = 2 * low
    for k in range(classes, 2 * last):  # classes of nodes before
        store(out, k, load(places, k))
    add_down(places, last, classes, out)


@njit(**OPTIONS)
def add_up(places: int, low: int, high: int) -> None:
    """Give nodes low..high-1 the sum of their children."""
    for i in range(low, high):
        store(places, i, load(places, 2 * i) + load(places, 2 * i + 1))


@njit(**OPTIONS)
def ascend(places: int, classes: int, gradient: int) -> None:
    """Sum at every place the gradients of the classes below."""
    for k in range(classes, 2 * classes):
        store(places, k, load(gradient, k))
    high = classes
    while high > 2:
        low = max(2, (high + 1) // 2)
        add_up(places, low, high)
        high = low


# -- tasks -------------------------------------------------------------------------------------------------------


def compile_work(natural: bool, backward: bool) -> Any:
    """The address of a C function that works at a task, alone or in many threads at once."""

    def work(task: Any) -> None:
        rows, chunk_rows, classes = entry(task, ROWS), entry(task, CHUNK_ROWS), entry(task, CLASSES)
        settings, stride = entry(task, SETTINGS), entry(task, STRIDE)
        margin, angle = load(settings, MARGIN), load(settings, ANGLE)
        dead = load(settings, DEAD) if backward else NAN
        nodes = classes - 1
        terms = stack(3 * CHUNK)  # and behind them, room for their branches
        if entry(task, SCRATCH) == 0:
            branches = terms + 4 * CHUNK
        else:
            branches = entry(task, SCRATCH) + 8 * nodes * take(task, NEXT_THREAD)
        while True:
            first = chunk_rows * take(task, NEXT_CHUNK)
            if first >= rows:
                break
            count = min(chunk_rows, rows - first)
            if backward:
                for row in range(count):
                    gradient = entry(task, GRADIENT) + 4 * classes * (first + row - 1)
                    ascend(branches + 8 * (nodes * row - 1), classes, gradient)
            for start in range(0, nodes * count, CHUNK):
                n = min(CHUNK, nodes * count - start)
                x = entry(task, X) + 4 * (nodes * first + start)
                slopes = entry(task, OUT) + 4 * (nodes * first + start)
                constants = settings + 4 * (CONSTANTS + start * entry(task, STEP))
                pairs = branches + 8 * start
                if natural:
                    natural_angles(x, n, constants, stride, margin, angle, dead, terms)
                    if backward:
                        natural_slopes(n, terms, TWO * angle, pairs, slopes)
                    else:
                        natural_values(n, terms, pairs)
                else:
                    sigmoid_odds(x, n, constants, terms)
                    if backward:
                        sigmoid_slopes(x, n, constants, terms, pairs, slopes)
                    else:
                        sigmoid_values(x, n, constants, terms, pairs)
            if not backward:
                for row in range(count):
                    values = entry(task, OUT) + 4 * classes * (first + row - 1)
                    descend(branches + 8 * (nodes * row - 1), classes, values)

    return _compile(cfunc, types.void(types.voidptr), work).address


def compile_launch() -> Any:
    """What starts a task: called with the addresses of OpenMP's entry, or 0, and of the work, the threads, the task."""

    def launch(
        parallel: int,
        work: int,
        threads: int,
        rows: int,
        x: int,
        gradient: int,
        out: int,
        scratch: int,
        classes: int,
        chunk_rows: int,
        settings: int,
        stride: int,
        step: int,
    ) -> None:
        # a call from Python costs less with plain numbers than with a structure
        task = make_task((0, 0, rows, x, gradient, out, scratch, classes, chunk_rows, settings, stride, step))
        if parallel == 0 or threads == 1:
            call(work, task)
        else:
            call_in_threads(parallel, work, task, threads)

    return _compile(njit, types.void(*[types.int64] * 13), launch)


def _compile(compiler: Any, signature: Any, function: Any) -> Any:
    try:
        return compiler(signature, cache=True, nogil=True, **OPTIONS)(function)
    except RuntimeError:  # there is no place to keep it
        return compiler(signature, nogil=True, **OPTIONS)(function)
