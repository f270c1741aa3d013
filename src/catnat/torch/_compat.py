"""The few questions that PyTorch answers only under private names, in one place.

Each is about the moment, not about a tensor: is anything watching that plain eager code must not disturb?
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import lru_cache
from types import ModuleType

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _is_tracing, _len_torch_dispatch_stack
from torch._C._functorch import is_legacy_batchedtensor, unwrap_if_dead
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.utils._python_dispatch import _disable_current_modes

try:
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
except ImportError:  # older releases
    temporarily_clear_interpreter_stack = nullcontext  # type: ignore[assignment]

__all__ = [
    "PLAIN_TENSORS",
    "assert_on_device",
    "in_forward_mode",
    "in_function_transform",
    "is_plain",
    "kernels_for",
    "must_be_plain",
    "plainly",
    "unwrap_if_dead",
]

OLDEST_TRITON = (3, 5)  # whose language has what the kernels use; it comes with PyTorch 2.9
PLAIN_TENSORS = (Tensor, torch.nn.Parameter)


def is_plain(tensor: Tensor) -> bool:
    """Whether this is an ordinary tensor whose values may be read: no compiler, tracer or transform is at work."""
    return (
        type(tensor) in PLAIN_TENSORS
        and not is_compiling()
        and not _are_functorch_transforms_active()
        and not _len_torch_dispatch_stack()
        and not _is_tracing()
    )


def in_forward_mode() -> bool:
    """Whether forward-mode differentiation is on."""
    return forward_ad._current_level >= 0


def must_be_plain(gradient: Tensor) -> bool:
    """Whether a backward pass is itself differentiated, or run for many gradients at once, or transformed."""
    return (
        torch.is_grad_enabled()
        or bool(is_legacy_batchedtensor(gradient))  # is_grads_batched=True
        or type(gradient) not in PLAIN_TENSORS
        or gradient._is_zerotensor()  # it has no memory
        or in_forward_mode()
        or bool(_are_functorch_transforms_active())
    )


@torch.compiler.assume_constant_result  # a compiler asks it while it traces the transform
def in_function_transform() -> bool:
    """Whether a torch.func transform is running."""
    return bool(_are_functorch_transforms_active())


def assert_on_device(condition: Tensor) -> None:
    """Assert without waiting for the device; compilers keep it."""
    torch._assert_async(condition)


def plainly() -> AbstractContextManager[object]:
    """A context in which new tensors are ordinary ones, whatever is being traced or transformed around it."""
    stack = ExitStack()
    stack.callback(torch._C._set_tracing_state, torch._C._get_tracing_state())  # type: ignore[attr-defined]
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    if torch.is_inference_mode_enabled():
        stack.enter_context(torch.inference_mode(False))
    stack.enter_context(_disable_current_modes())
    stack.enter_context(temporarily_clear_interpreter_stack())
    return stack


@lru_cache(maxsize=64)
def kernels_for(device: torch.device) -> ModuleType | None:
    """`catnat.torch._gpu.launch` where there are a GPU and a Triton that it was written for, else None."""
    if device.type != "cuda" or torch.version.cuda is None or torch.cuda.get_device_capability(device) < (8, 0):
        return None
    try:
        triton = importlib.import_module("triton")
    except ImportError:
        return None
    if tuple(map(int, triton.__version__.split(".")[:2])) < OLDEST_TRITON:
        return None
    importlib.import_module("catnat.torch._gpu.operators")
    return importlib.import_module("catnat.torch._gpu.launch")
