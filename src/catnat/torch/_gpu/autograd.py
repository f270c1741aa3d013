"""What `catnat.torch._dispatch` calls: the GPU kernels, as differentiable functions of scores and a plan.

In eager mode each is an autograd function around its launch; a compiler or exporter is shown the operators of
`catnat.torch._gpu.operators`. Derivatives of higher order and function transforms go through `catnat.torch._eager`.
Class ids are those of the heap, whatever the order of the plan's classes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from catnat.core.parameterization import Parameterization
from catnat.torch import _eager
from catnat.torch._compat import must_be_plain, plain_backward
from catnat.torch._gpu.coin import Coin, coin_of
from catnat.torch._plan import Plan

OLDEST_TRITON = (3, 5)  # whose language has what the kernels use; it comes with PyTorch 2.9

Tensors = tuple[Tensor, ...]


class Settings(NamedTuple):
    """What a plan knows of the kernels."""

    coin: Coin
    arguments: tuple[Any, ...]  # the same, as a plain tuple: a compiler can unpack that
    operators: ModuleType


def settings_for(pi: Parameterization, device: torch.device) -> Settings | None:
    """The settings of a plan; None where there is no GPU or no Triton for the kernels, or no kernel for the tree."""
    if not has_kernels(device) or (coin := coin_of(pi, device)) is None:
        return None
    return Settings(coin, tuple(coin), importlib.import_module("catnat.torch._gpu.operators"))


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


# -- the functions -----------------------------------------------------------------------------------------------


def log_classes(x: Tensor, plan: Plan) -> Tensor:
    """log p of every class: [..., K-1] to [..., K], in the dtype of the scores."""
    return _call("walk", x, plan, False)[0]


def classes(x: Tensor, plan: Plan) -> Tensor:
    """p of every class."""
    return _call("walk", x, plan, True)[0]


def log_path(x: Tensor, index: Tensor, plan: Plan) -> Tensor:
    """float32 log p of one class a row [R], or of several [R, M], from scores [R, K-1]."""
    return _call("log_path", x, plan, index)[0]


def cross_entropy(x: Tensor, target: Tensor, plan: Plan, ignored: int, weight: Tensor | None, reduction: str) -> Tensor:
    """- log p of one class a row [...], in the dtype of the scores [..., K-1]; 0 for the class id to be ignored."""
    return _call("loss", x, plan, target, ignored, weight, reduction)[0]


def sample(x: Tensor, count: int, plan: Plan, generator: torch.Generator | None) -> Tensor:
    """[count, ...] draws."""
    return _call("sample", x.detach(), plan, seed_for(x, generator), count)[0]


def entropy(x: Tensor, plan: Plan) -> Tensor:
    """[...] float32."""
    return _call("entropy", x, plan)[0]


def draw(x: Tensor, plan: Plan, generator: torch.Generator | None) -> Tensors:
    """log p of one draw a row, the row's entropy, and the draw."""
    return _call("draw", x, plan, seed_for(x, generator))


def judge(x: Tensor, index: Tensor, plan: Plan) -> Tensors:
    """log p of one class a row and the row's entropy."""
    return _call("judge", x, plan, index)


def seed_for(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """One number on the device, drawn there: the host need not know it, and a captured graph draws anew."""
    source = {} if generator is None else {"generator": generator}  # as in `_eager`
    return torch.randint(1 << 62, (1,), device=x.device, **source)  # type: ignore[call-overload]


# -- autograd ----------------------------------------------------------------------------------------------------


def _call(name: str, x: Tensor, plan: Plan, *arguments: Any) -> Tensors:
    if is_compiling():  # it takes the plan as a constant, whose functions it cannot call
        found = getattr(torch.ops.catnat, name)(x, *plan.gpu.arguments, *arguments)
    elif torch.is_grad_enabled() and x.requires_grad:
        found = _Differentiable.apply(x, name, plan, *arguments)
    else:
        found = plan.gpu.operators.directly(name, x, plan.gpu.coin, *arguments)
    return found if isinstance(found, tuple) else (found,)


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str, plan: Plan, *arguments: Any) -> Tensors:
        coin, _, operators = plan.gpu
        ctx.name, ctx.plan = name, plan
        found = operators.directly(name, x, coin, *arguments)
        return operators.keep(ctx, operators.OPERATORS[name], (x, *coin, *arguments), found)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        name, plan, operators = ctx.name, ctx.plan, ctx.plan.gpu.operators
        x, coin, arguments, results = operators.kept(ctx)
        operator = operators.OPERATORS[name]
        gradients = gradients[: operator.differentiable]
        if any(must_be_plain(gradient) for gradient in gradients):
            plain = PLAIN[name]
            dx = plain_backward(lambda x: plain(x, plan, *arguments, *results), x, gradients)
        else:
            dx = operator.backward(operators.directly, x, coin, arguments, results, gradients)
        return dx, None, None, *[None] * len(arguments)


# -- the same in plain tensor code, for x, the plan, the arguments and what was kept of the results ----------------


def _plain_classes(x: Tensor, plan: Plan) -> Tensor:
    found = _eager.log_classes(x.float(), plan)
    return found if plan.class_of is None else found[..., plan.class_of]


def _plain_walk(x: Tensor, plan: Plan, exp: bool) -> Tensors:
    found = _plain_classes(x, plan)
    return ((found.exp() if exp else found).to(x.dtype),)


def _plain_path(x: Tensor, plan: Plan, index: Tensor) -> Tensors:
    return (_eager.log_path(x.float(), index if plan.class_of is None else plan.class_of[index], plan),)


def _plain_loss(
    x: Tensor, plan: Plan, target: Tensor, ignored: int, weight: Tensor | None, reduction: str, share: Tensor
) -> Tensors:
    keep = target.reshape(-1) != ignored
    ids = torch.where(keep, target.reshape(-1), 0)
    (found,) = _plain_path(x.reshape(-1, x.shape[-1]), plan, ids)
    loss = torch.where(keep, -found if weight is None else -found * weight[ids], 0.0)
    return ((loss.reshape(target.shape) if reduction == "none" else loss.sum() * share).to(x.dtype),)


def _plain_entropy(x: Tensor, plan: Plan) -> Tensors:
    return (_eager.minus_p_log_p(_plain_classes(x, plan)).sum(-1),)


def _plain_judge(x: Tensor, plan: Plan, index: Tensor) -> Tensors:
    found = _plain_classes(x, plan).gather(-1, index.unsqueeze(-1)).squeeze(-1)
    return found, *_plain_entropy(x, plan)


PLAIN: dict[str, Callable[..., Tensors]] = {
    "walk": _plain_walk,
    "log_path": _plain_path,
    "loss": _plain_loss,
    "entropy": _plain_entropy,
    "draw": lambda x, plan, seed, index: _plain_judge(x, plan, index),
    "judge": _plain_judge,
}
