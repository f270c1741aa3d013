"""The grid that the contract runs over: trees, activations, centres and scores.

`make test` asks about a part of it: every activation on every tree and at every size, but not all three at once. The
slow tests ask about all of it. Of JAX, which compiles every case, `make test` asks about a few that have every size,
tree and family of activations, and the slow tests about every tree of every size with one activation a precision.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from catnat import Activation, Natural, Parameterization, Sigmoid
from catnat.core.parameterization import DEFAULT_FLOOR
from tests.core.trees import KINDS, make_tree
from tests.thinned import covering

SIZES = (1, 2, 3, 5, 6, 8, 18, 33, 100, 1000, 4096)
TAILS = (0.5, 0.1, 0.01, 1e-3)
ACTIVATIONS: dict[str, Activation] = {
    "sigmoid": Sigmoid(),
    **{f"tail{t:g}": Natural(tail=t) for t in TAILS},
    "amplitude": Natural(amplitude=3.0, tail=0.05),
    **{f"floor{floor:g}": Natural(tail=0.0, floor=floor) for floor in (0.0, DEFAULT_FLOOR)},
}
WHOLE_GRID = False  # set by conftest.py where the slow tests are wanted
PART = 11  # `make test` asks about one case in so many; no divisor of the number of activations or of trees
PRECISIONS = (np.float32, np.float64)
JAX_TURNS = {0: (np.float32,), len(ACTIVATIONS) // 2: (np.float64,)}
# Distances from the ends of a node's range, where the natural activation is hard to get right.
DISTANCES = 10.0 ** -np.arange(1, 7)
# Where e^-|z| rounds away beside 1, and where it leaves the dtype: in float32 and in float64.
SIGMOID_ENDS = np.array([9.0, 17.0, 37.0, 88.0, 104.0, 709.0, 746.0])
SCORE_SETS = ("scale 1", "scale 10", "scale 1e4", "near the ends")


@dataclass(frozen=True)
class Case:
    """A parameterization with a name for the test's report."""

    name: str
    pi: Parameterization
    turn: int = 0  # its place in the grid
    for_jax: tuple[type, ...] = ()  # the precisions in which JAX is asked

    def __str__(self) -> str:
        return self.name


def _case(size: int, kind: str, activation: str, center: str | float = "uniform") -> Case:
    pi = Parameterization(size, ACTIVATIONS[activation], make_tree(kind, size, seed=size), center)
    turn = SIZES.index(size) + KINDS.index(kind) + list(ACTIVATIONS).index(activation) + (center != "uniform")
    return Case(f"{size}-{kind}-{activation}" + ("" if center == "uniform" else f"-C{center}"), pi, turn)


@lru_cache
def grid(*sizes: int) -> tuple[Case, ...]:
    """Every tree and activation at the given sizes, and some other centres."""
    kinds = {1: KINDS[:1], 2: KINDS[:2]}  # there is one tree of one class, and two of two
    cases = [_case(size, kind, a) for size in sizes for kind in kinds.get(size, KINDS) for a in ACTIVATIONS]
    others = [
        (6, "balanced", 0.0),
        (6, "balanced", 0.3),
        (33, "chain", -0.5),
        (100, "balanced", 0.0),
        (100, "huffman", 0.3),
    ]
    cases += [_case(n, kind, a, c) for n, kind, c in others if n in sizes for a in ACTIVATIONS]
    if WHOLE_GRID:
        return tuple(replace(case, for_jax=JAX_TURNS.get(case.turn % len(ACTIVATIONS), ())) for case in cases)
    cases = [case for case in cases if case.turn % PART == 0]
    families = [(*case.name.split("-")[:2], case.name.split("-")[2][:4]) for case in cases]
    few = sorted(covering(families))
    return tuple(replace(c, for_jax=(PRECISIONS[few.index(i) % 2],) if i in few else ()) for i, c in enumerate(cases))


def batches(size: int) -> Iterator[tuple[str, int]]:
    """(score set, rows): batch sizes that take a backend through all of its regimes, where the oracle can keep up."""
    rows = (7, 130) if size <= 100 else (1, 7) if size <= 1000 else (2,)
    yield from itertools.product(SCORE_SETS, rows)
    if size <= 100:
        yield from (("scale 1", 1), ("scale 1", 300))
    if size == 33:
        yield "scale 1", 1100


def scores_for(pi: Parameterization, score_set: str, rows: int, dtype: type = np.float64, seed: int = 0) -> np.ndarray:
    """[rows, K-1] scores in the given dtype; the oracle is to be asked about exactly these."""
    rng = np.random.default_rng([seed, rows, pi.num_classes])
    shape = (rows, pi.num_nodes)
    if score_set.startswith("scale"):
        return (rng.normal(size=shape) * float(score_set.split()[1])).astype(dtype)
    assert score_set == "near the ends"
    natural = pi.activation
    if not isinstance(natural, Natural):
        return (pi.centers + rng.choice(SIGMOID_ENDS, shape) * rng.choice([-1, 1], shape)).astype(dtype)
    if natural.tail > 0:  # around the joints, and far out on the straight lines
        steps = np.concatenate((DISTANCES, -DISTANCES, SIGMOID_ENDS))
        joint = natural.joint / natural.gain + rng.choice(steps, shape)
        return (pi.centers + joint * rng.choice([-1, 1], shape)).astype(dtype)
    lower, _, upper, _ = natural.edges(pi.centers)
    outside = rng.integers(2, size=shape) * (np.arange(rows) % 2)[:, None]  # every other row stays inside
    inward = rng.choice(DISTANCES, shape) * (1 - 2 * outside)
    return np.where(rng.integers(2, size=shape), lower + inward, upper - inward).astype(dtype)


def inside_scores(pi: Parameterization, rows: int, dtype: type = np.float64, seed: int = 0) -> np.ndarray:
    """Scores well inside of every node's range."""
    natural = pi.activation if isinstance(pi.activation, Natural) and pi.activation.tail == 0 else None
    half = 4.0 if natural is None else natural.amplitude / 2
    rng = np.random.default_rng([seed, rows, pi.num_classes])
    return (pi.centers + rng.uniform(-0.7 * half, 0.7 * half, (rows, pi.num_nodes))).astype(dtype)


def masks_for(pi: Parameterization, rows: int, seed: int = 0) -> np.ndarray:
    """[rows, K] masks: one class left, all but one left, then random ones."""
    rng = np.random.default_rng([seed, rows, pi.num_classes])
    mask = rng.random((rows, pi.num_classes)) < 0.5
    mask[0::3], mask[1::3] = False, True
    mask[np.arange(rows), rng.integers(pi.num_classes, size=rows)] ^= True
    mask[~mask.any(-1), 0] = True
    return mask
