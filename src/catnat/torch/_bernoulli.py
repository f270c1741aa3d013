"""A parameterization's activation and centres as the GPU kernels take them: a few numbers and a small table."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from catnat.core.parameterization import Activation, Natural, Parameterization, Sigmoid
from catnat.core.tree import Floats

SIGMOID, NATURAL, PAPER = range(3)
NONE, UNEVEN, BY_NODE = range(3)
MAX_CLASSES = 1 << 29  # places are 32-bit numbers


class Bernoulli(NamedTuple):
    """The nodes of a tree of the heap's shape, in the order in which the operators take it.

    ``centers`` has two rows: the centres in float32, and what that rounded away. ``kind`` says of which nodes:

    - NONE: of none (None); the centre is 0 everywhere;
    - UNEVEN: [2, depth], of one node a level, the one that has classes of both depths below it, 0 where there is none;
      all others are 0. In a heap whose number of classes is no power of two, ``center="uniform"`` is of this kind;
    - BY_NODE: [2, K-1], of every node.
    """

    centers: Tensor | None
    classes: int
    kind: int
    activation: int
    amplitude: float  # 0 for the sigmoid
    least: float  # the least angle to an end of the natural range, where the joint or the floor is


def bernoulli_of(pi: Parameterization, device: torch.device) -> Bernoulli | None:
    """The nodes for the kernels; None where these have no form of them."""
    assert pi.tree is not None and isinstance(pi.activation, Activation)
    found = formula(pi.activation)
    if found is None or pi.tree.heap_order is None or not 1 < pi.num_classes <= MAX_CLASSES:
        return None
    kind, centers = NONE, pi.centers
    if centers.any():
        places = [uneven_place(pi.num_nodes, level) for level in range(pi.tree.depth)]
        uneven = np.array([centers[place - 1] if place else 0.0 for place in places])
        is_all = np.count_nonzero(uneven) == np.count_nonzero(centers)
        kind, centers = (UNEVEN, uneven) if is_all else (BY_NODE, centers)
    return Bernoulli(None if kind == NONE else table_of(centers, device), pi.num_classes, kind, *found)


def table_of(centers: Floats, device: torch.device) -> Tensor:
    """Centres in float32, and what that rounded away: [2, ...]."""
    short = centers.astype(np.float32)
    return torch.from_numpy(np.stack((short, (centers - short).astype(np.float32)))).to(device)


def formula(activation: Activation) -> tuple[int, float, float] | None:
    """Which formula, the amplitude and the least angle."""
    if type(activation) is Sigmoid or activation == Natural(tail=0.5):
        return SIGMOID, 0.0, 0.0
    if type(activation) is not Natural:
        return None
    which, least = NATURAL, activation.tail
    if least == 0:
        # a floor below the dtype's smallest number counts as none
        least = floor if (floor := activation.floor or 0.0) >= np.finfo(np.float32).tiny else 0.0
        which = PAPER
    return which, activation.amplitude, math.asin(math.sqrt(least))


def uneven_place(nodes: int, level: int) -> int:
    """The node of a level that has classes of both depths below it, 0 if there is none."""
    up = nodes.bit_length() - 1 - level  # such a node is above the last node and above the first class, its neighbour
    return nodes >> up if nodes >> up == (nodes + 1) >> up else 0
