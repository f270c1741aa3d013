"""A parameterization as the C++ loops take it: numbers and tables, as in loops.h."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from catnat.core import fits
from catnat.core.parameterization import Natural, Parameterization, Sigmoid

BLOCK, SHORT, LONG = 1024, 8, 11  # as in loops.h
SIGMOID, FITTED, FITTED_LONG, NATURAL = range(4)
MAX_DEPTH = 512  # a sum of more terms, one after the other, loses digits that the plain walk keeps


class Tables(NamedTuple):
    """Arrays, flat or not."""

    fit: np.ndarray  # [LONG]
    shifts: np.ndarray  # of the nodes of as many rows as are taken at once
    levels: np.ndarray  # [depth, 2]
    node_places: np.ndarray  # [K-1], or empty where every node is at its own place
    class_places: np.ndarray  # [K], or empty where the classes follow in order


class Constants(NamedTuple):
    """Everything but the number of classes."""

    kind: int
    numbers: tuple[float, float, float]  # gain, joint, steepest
    tables: Tables


def constants_of(pi: Parameterization, is_single: bool) -> Constants | None:
    """The constants in float32 or float64; None where only the plain walk will do."""
    of, tree = pi.activation, pi.tree
    kind, numbers, fit = SIGMOID, (1.0, 0.0, 1.0), np.zeros(LONG, np.float32)
    if type(of) is Natural and of.tail > 0:  # the paper's own is left to the plain walk, which knows its ends
        kind, numbers = NATURAL, (of.gain, of.joint, of.steepest)
        if is_single:
            if (found := fits.natural_logit(of.tail)) is None:
                return None  # the library's functions would be no faster than the plain walk
            fit[: len(found.coefficients)] = found.coefficients
            kind = FITTED if len(found.coefficients) <= SHORT else FITTED_LONG
    elif type(of) is not Sigmoid:
        return None
    if tree is None or tree.num_classes == 1 or tree.depth > MAX_DEPTH:
        return None
    size, none = tree.num_classes, np.zeros(0, np.int32)
    nodes, classes = tree.node_places[1:].astype(np.int32), tree.class_places.astype(np.int32)
    shifts = np.tile(-numbers[0] * pi.centers, max(1, BLOCK // pi.num_nodes))
    tables = Tables(
        fit,
        shifts.astype(np.float32 if is_single else np.float64),
        np.array(tree.levels, np.int64),
        none if (nodes == np.arange(1, size)).all() else nodes,
        none if (classes == np.arange(size, 2 * size)).all() else classes,
    )
    return Constants(kind, numbers, tables)
