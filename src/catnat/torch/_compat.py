"""The few questions that PyTorch answers only under private names, in one place.

Each is about the moment, not about a tensor: is anything watching that plain eager code must not disturb?
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _is_tracing, _len_torch_dispatch_stack
from torch._C._functorch import is_legacy_batchedtensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.distributions import kl
from torch.utils._python_dispatch import _disable_current_modes

Result = TypeVar("Result")

PLAIN_TENSORS = (Tensor, torch.nn.Parameter)
in_function_transform = _are_functorch_transforms_active  # whether one of torch.func's is running
assert_on_device = torch._assert_async  # without waiting for the device; compilers keep it


def is_plain(tensor: Tensor) -> bool:
    """Whether this is an ordinary tensor whose values may be read: no compiler, tracer or transform is at work."""
    return (
        type(tensor) in PLAIN_TENSORS
        and not is_compiling()
        and not in_function_transform()
        and not _len_torch_dispatch_stack()
        and not _is_tracing()
    )


def fake_mode_of(tensor: Tensor) -> AbstractContextManager[object] | None:
    """The mode that a tensor without values belongs to; None for one that has values."""
    return None if type(tensor) in PLAIN_TENSORS else getattr(tensor, "fake_mode", None)


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
        or in_function_transform()
    )


def plain_backward(function: Callable[[Tensor], Any], x: Tensor, gradient: Any) -> Tensor:
    """The backward pass of plain tensor code at ``x``, open to differentiation and to transforms.

    ``function`` returns a tensor or several, and so is ``gradient``.
    """
    found: Tensor = plain_backwards(function, (x,), gradient)[0]
    return found


def plain_backwards(function: Callable[..., Any], inputs: Sequence[Tensor], gradient: Any) -> list[Any]:
    """The same in several tensors; None for those that want no gradient."""
    if in_function_transform() and not torch.is_grad_enabled():
        return list(torch.func.vjp(function, *inputs)[1](gradient))
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # views of our own: the user's hooks must see these gradients once, not twice
        own = [t.view_as(t) if again else t.detach().requires_grad_(t.requires_grad) for t in inputs]
        wanted = [i for i, t in enumerate(own) if t.requires_grad]
        found = torch.autograd.grad(function(*own), [own[i] for i in wanted], gradient, create_graph=again)
    gradients = dict(zip(wanted, found, strict=True))
    return [gradients.get(i) for i in range(len(own))]


def constant(function: Callable[..., Result], *arguments: object) -> Result:
    """What the function returns now: to a compiler that traces the call a constant."""
    return function(*arguments)


# as torch.compiler.assume_constant_result, which loads all of PyTorch's compiler
constant._dynamo_marked_constant = True  # type: ignore[attr-defined]


def remember_kl() -> None:
    """Settle which KL every registered pair has: how PyTorch finds it at the first call, its compiler cannot trace."""
    kl._KL_MEMOIZE.update(kl._KL_REGISTRY)


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether somebody watches a module's calls, or changes its weights before them."""
    return any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks))


def autocasts(device: torch.device) -> bool:
    """Whether autocast is on for a device, which may be one that has none."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def ordinary_tensors() -> AbstractContextManager[object]:
    """A context in which new tensors are ordinary ones, whatever is being traced or transformed around it."""
    stack = ExitStack()
    stack.callback(torch._C._set_tracing_state, torch._C._get_tracing_state())  # type: ignore[attr-defined]
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    if torch.is_inference_mode_enabled():
        stack.enter_context(torch.inference_mode(False))
    stack.enter_context(_disable_current_modes())
    if in_function_transform():
        stack.enter_context(temporarily_clear_interpreter_stack())
    return stack
