"""What a compiler takes as a constant while it traces. Only code that is being compiled loads this file.

PyTorch's word for it loads PyTorch's whole compiler, which takes longer than everything else of `import catnat.torch`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


@torch.compiler.assume_constant_result
def constant(function: Callable[..., Result], *arguments: object) -> Result:
    """What the function returns now, outside of the trace."""
    return function(*arguments)
