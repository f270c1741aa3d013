"""Triton kernels for the balanced tree on an NVIDIA GPU; loaded on first use there, never at import.

- `node`: the logit of a score and its slope, in registers, and what follows from them;
- `walk`: log p (or p) of every class and its gradient; `moves`: between memory and registers;
- `path`: log p of given classes, a loss, their gradient, and sampling; a draw with its log p and the entropy;
- `blocks`: which shape of program for which tree; `launch`: tensors to grids;
- `operators`: what PyTorch's compilers see of it; `autograd`: the walk made of it; `wide`, `wide_launch`: linear heads.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache

import torch


@lru_cache(maxsize=64)
def has_kernels(device: torch.device) -> bool:
    """Whether there are a GPU that the kernels were written for, and Triton, which comes with PyTorch for CUDA."""
    if device.type != "cuda" or torch.version.cuda is None or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    return importlib.util.find_spec("triton") is not None
