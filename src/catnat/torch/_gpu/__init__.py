"""Triton kernels for the balanced tree on an NVIDIA GPU; loaded on first use there, never at import.

- `node`: the logit of a score and its slope, in registers, and what follows from them;
- `walk`: log p (or p) of every class; `pull`: its gradient; `moves`: between memory and registers;
- `path`: log p of given classes, a loss, their gradient, and sampling; a draw with its log p and the entropy;
- `blocks`: which shape of program for which tree; `launch`: tensors to grids;
- `operators`: what PyTorch's compilers see of it; `autograd`: the walk made of it; `wide`, `wide_launch`: linear heads.
"""

from __future__ import annotations

import importlib
from functools import lru_cache

import torch

OLDEST_TRITON = (3, 5)  # whose language has what the kernels use; it comes with PyTorch 2.9


@lru_cache(maxsize=64)
def has_kernels(device: torch.device) -> bool:
    """Whether there are a GPU and a Triton that the kernels were written for."""
    if device.type != "cuda" or torch.version.cuda is None or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:
        triton = importlib.import_module("triton")
    except ImportError:
        return False
    return tuple(map(int, triton.__version__.split(".")[:2])) >= OLDEST_TRITON
