"""A parameterization's activation as the GPU kernels take it: a few numbers and a small table of ends."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from catnat.core.parameterization import Natural, Parameterization
from catnat.core.tree import Floats, Tree

SATURATIONS = {"clip": 0, "revive": 1, "reflect": 2}
MAX_CLASSES = 1 << 24  # the table holds places as float32


class Coin(NamedTuple):
    """The coins of a balanced tree's nodes.

    ``ends`` says for every node: centre, lower end and what it rounded away (in radians), upper end and what it rounded
    away. ``kind`` says how:

    - 0: not at all (None); the centre is 0 everywhere;
    - 1: [6 (depth + 1)], the common ones, and for each level the place of one node that differs, 0 if there is none,
      and that node's own. In a heap whose number of classes is no power of two, ``center="uniform"`` is of this kind:
      the common centre is 0, and a node that differs has classes of both depths below it;
    - 2: [5, K-1], node by node;
    - 3: as 1, with a common centre that is not 0, odd nodes anywhere, or an activation that reflects.
    """

    classes: int
    ends: Tensor | None
    kind: int
    amplitude: float  # 0 is the sigmoid
    least: float  # the least angle to an end
    saturation: int

    @property
    def arguments(self) -> tuple[Tensor | None, int, int, float, float, int]:
        """As the operators of `catnat.torch._gpu.operators` take them."""
        return self.ends, self.classes, self.kind, self.amplitude, self.least, self.saturation


def coin_of(pi: Parameterization, device: torch.device) -> Coin | None:
    """The coins for the kernels; None where these have no form of it."""
    assert pi.tree is not None
    if not pi.tree.is_heap or not 1 < pi.num_classes < MAX_CLASSES:
        return None
    natural = pi.activation if isinstance(pi.activation, Natural) else None
    reflects = natural is not None and natural.saturation == "reflect"
    centers = pi.centers
    if natural is None:
        columns, amplitude, least, saturation = [centers] * 5, 0.0, 0.0, 0
    else:
        amplitude, saturation = float(natural.amplitude), SATURATIONS[natural.saturation]
        angle = math.pi / (2 * amplitude)
        # a floor below the dtype's smallest number counts as none
        least = natural.margin * angle if natural.floor >= np.finfo(np.float32).tiny else 0.0
        lower, lower_rest, upper, upper_rest = natural.edges(centers)
        columns = [natural.near_zero(centers), *_split(lower, lower_rest, angle), *_split(upper, upper_rest, angle)]
    ends, kind = None, 0
    if reflects or np.any(centers != 0):
        table = np.stack(columns).astype(np.float32)
        few = _few(table, pi.tree)
        only_uneven = few is not None and few[0, 1] == 0 and _are_uneven(few[1:, 0], pi.tree)
        kind = 2 if few is None else 1 if only_uneven and not reflects else 3
        ends = torch.from_numpy(np.ascontiguousarray(table if few is None else few.reshape(-1))).to(device)
    return Coin(pi.num_classes, ends, kind, amplitude, least, saturation)


def _split(values: Floats, rest: Floats, angle: float) -> tuple[Floats, Floats]:
    """values + rest as a float32 and what that lacks, in radians."""
    return values, ((values - values.astype(np.float32).astype(np.float64)) + rest) * angle


def _few(table: np.ndarray, tree: Tree) -> np.ndarray | None:
    """[depth + 1, 6] from [5, K-1], if in every level at most one node differs from the common ones."""
    _, which, counts = np.unique(table[0], return_index=True, return_counts=True)
    common = table[:, which[np.argmax(counts)]]
    rows = [np.concatenate(([0], common))]
    for low, high in tree.levels:
        odd = np.flatnonzero(np.any(table[:, low - 1 : high - 1] != common[:, None], 0))
        if odd.size > 1:
            return None
        place = low + odd[0] if odd.size else 0
        rows.append(np.concatenate(([place], table[:, place - 1] if place else common)))
    return np.stack(rows).astype(np.float32)


def _are_uneven(places: np.ndarray, tree: Tree) -> bool:
    """Whether the one odd node of every level, where there is one, has classes of both depths below it."""
    # at the last level the places below K are nodes, the others classes: such a node is above K - 1 and above K
    for level, place in enumerate(places.astype(np.int64)):
        above = tree.depth - 1 - level
        if place and not place == tree.num_classes >> above == (tree.num_classes - 1) >> above:
            return False
    return True
