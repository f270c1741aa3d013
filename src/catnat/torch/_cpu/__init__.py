"""The one fast walk on a CPU, in C++: log p of all classes, with its gradient; `_whole` makes the rest of it."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from catnat.core import fits
from catnat.core.parameterization import Natural, Parameterization, Sigmoid
from catnat.torch import _masks
from catnat.torch._compat import plain_backward
from catnat.torch._cpu.build import load
from catnat.torch._plan import find_plan

BLOCK, SHORT, LONG = 1024, 8, 11  # as in loops.h
SIGMOID, FITTED, FITTED_LONG, NATURAL = range(4)
MAX_DEPTH = 512  # a sum of more terms, one after the other, loses digits that the plain walk keeps


def settings_for(pi: Parameterization, dtype: torch.dtype) -> Any:
    """The compiled walk of a parameterization; None where only the plain walk will do."""
    of, tree = pi.activation, pi.tree
    kind, numbers, fit = SIGMOID, (1.0, 0.0, 1.0), np.zeros(LONG)
    if type(of) is Natural and of.tail > 0:  # the paper's own is left to the plain walk, which knows its ends
        kind, numbers = NATURAL, (of.gain, of.joint, of.steepest)
        if dtype == torch.float32:
            if (found := fits.natural_logit(of.tail)) is None:
                return None  # the library's functions would be no faster than the plain walk
            fit[: len(found.coefficients)] = found.coefficients
            kind = FITTED if len(found.coefficients) <= SHORT else FITTED_LONG
    elif type(of) is not Sigmoid:
        return None
    if tree is None or tree.num_classes == 1 or tree.depth > MAX_DEPTH or (module := load()) is None:
        return None
    make = module.Float32 if dtype == torch.float32 else module.Float64
    shifts = np.tile(-numbers[0] * pi.centers, max(1, BLOCK // pi.num_nodes))
    places = tree.node_places.tolist(), tree.class_places.tolist()
    return make(kind, numbers, fit, shifts, tree.levels, *places, tree.is_heap, partial(_plain_gradient, pi))


def _plain_gradient(pi: Parameterization, x: Tensor, mask: Tensor | None, renormalizes: bool, given: Tensor) -> Tensor:
    """The gradient where it is to be differentiated in turn, or asked for many gradients at once."""
    plan, mode = find_plan(pi, x.dtype, x.device), "renormalize" if renormalizes else "prune"
    return plain_backward(lambda x: _masks.log_classes(x, plan, mask, mode), x, given)
