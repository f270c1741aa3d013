"""The GPU kernels behind the same doors as the walks on a CPU.

In eager mode each is an autograd function around its launch; a compiler or exporter is shown the operators of
`catnat.torch._gpu.operators`. Derivatives of higher order and function transforms go through `catnat.torch._eager`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from catnat.torch import _eager
from catnat.torch._gpu.coin import Coin
from catnat.torch._compat import must_be_plain
from catnat.torch.fused import plain_backward
from catnat.torch._plan import Plan, takes_kernels

MAX_HEAD_CLASSES = 4096  # a head's tree fits into one program

Tensors = tuple[Tensor, ...]


def has_head(x: Tensor, plan: Plan) -> bool:
    """Whether `entropy`, `draw` and `judge` may be asked; for the others `takes_kernels` is enough."""
    return plan.num_classes <= MAX_HEAD_CLASSES and takes_kernels(x, plan)


def log_classes(x: Tensor, plan: Plan) -> Tensor:
    """log p of every class: [..., K-1] to [..., K], in the dtype of the scores."""
    return _call(_Walk, x, plan, False)[0]


def classes(x: Tensor, plan: Plan) -> Tensor:
    """p of every class."""
    return _call(_Walk, x, plan, True)[0]


def log_path(x: Tensor, index: Tensor, plan: Plan) -> Tensor:
    """float32 log p of one class a row [R], or of several [R, M], from scores [R, K-1]."""
    single = index.dim() == 1
    found = _call(_Path, x, plan, None, index.unsqueeze(1) if single else index)[0]
    return found.squeeze(1) if single else found


def path_loss(x: Tensor, target: Tensor, ignored: int, plan: Plan) -> Tensor:
    """float32 - log p of one class a row [R] from scores [R, K-1]; 0 for the class id to be ignored."""
    return _call(_Path, x, plan, ignored, target.unsqueeze(1))[0].squeeze(1)


def sample(x: Tensor, count: int, plan: Plan, generator: torch.Generator | None) -> Tensor:
    """[count, ...] draws."""
    assert plan.coin_arguments is not None and plan.launch is not None
    seed = _seed(x, generator)
    if is_compiling():
        return torch.ops.catnat.sample(x, *plan.coin_arguments, seed, count)
    found: Tensor = plan.launch.sample(x, seed, count, plan.coin)
    return found


def entropy(x: Tensor, plan: Plan) -> Tensor:
    """[...] float32."""
    return _call(_Entropy, x, plan)[0]


def draw(x: Tensor, plan: Plan, generator: torch.Generator | None) -> Tensors:
    """log p of one draw a row, the row's entropy, and the draw."""
    return _call(_Draw, x, plan, _seed(x, generator))


def judge(x: Tensor, index: Tensor, plan: Plan) -> Tensors:
    """log p of one class a row and the row's entropy."""
    return _call(_Judge, x, plan, index)


def _seed(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """One number on the device, drawn there: the host need not know it, and a captured graph draws anew."""
    source = {} if generator is None else {"generator": generator}  # as in `eager`
    return torch.randint(1 << 62, (1,), device=x.device, **source)  # type: ignore[call-overload]


# -- autograd ----------------------------------------------------------------------------------------------------


def _call(kernel: type[_Kernel], x: Tensor, plan: Plan, *arguments: Any) -> Tensors:
    assert plan.coin_arguments is not None and plan.launch is not None
    if is_compiling():
        found = getattr(torch.ops.catnat, kernel.name)(x, *plan.coin_arguments, *arguments)
        return found if isinstance(found, tuple) else (found,)
    if torch.is_grad_enabled() and x.requires_grad:
        return _Differentiable.apply(x, kernel, plan, *arguments)
    return kernel.start(plan.launch, x, plan.coin, *arguments)


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: type[_Kernel], plan: Plan, *arguments: Any) -> Tensors:
        found = kernel.start(plan.launch, x, plan.coin, *arguments)
        drawn = found[-1:] if kernel.draws else ()
        ctx.mark_non_differentiable(*drawn)
        ctx.kernel, ctx.plan = kernel, plan
        # autograd watches tensors only: whoever overwrites the class ids is told so
        ctx.numbers = tuple(None if isinstance(a, Tensor) else a for a in arguments)
        ctx.is_tensor = tuple(isinstance(a, Tensor) for a in arguments)
        ctx.save_for_backward(x, *drawn, *(a for a in arguments if isinstance(a, Tensor)))
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        kernel, plan = ctx.kernel, ctx.plan
        x, *tensors = ctx.saved_tensors
        drawn = [tensors.pop(0)] if kernel.draws else []
        arguments = [tensors.pop(0) if t else n for t, n in zip(ctx.is_tensor, ctx.numbers, strict=True)]
        gradients = gradients[: len(gradients) - len(drawn)]
        if any(must_be_plain(gradient) for gradient in gradients):
            dx = plain_backward(lambda x: kernel.plain(x, plan, *arguments, *drawn), x, gradients)
        else:
            dx = kernel.pull(plan.launch, x, plan.coin, gradients, *arguments, *drawn)
        return dx, None, None, *[None] * len(arguments)


# -- the kernels, and the same in plain tensor code --------------------------------------------------------------


class _Kernel:
    """One operator: what starts it, its gradient, and the same in plain tensor code.

    ``start`` takes what the operator takes; the other two get the class ids too that were drawn.
    """

    name: str
    draws = False  # whether the last result is class ids
    start: Callable[..., Tensors]
    pull: Callable[..., Tensor]
    plain: Callable[..., Tensors]


class _Walk(_Kernel):
    name = "walk"

    @staticmethod
    def start(launch: Any, x: Tensor, coin: Coin, exp: bool) -> Tensors:
        return (launch.walk(x, coin, exp),)

    @staticmethod
    def pull(launch: Any, x: Tensor, coin: Coin, gradients: Tensors, exp: bool) -> Tensor:
        return launch.pull(x, gradients[0], coin, launch.P if exp else launch.LOG_P)

    @staticmethod
    def plain(x: Tensor, plan: Plan, exp: bool) -> Tensors:
        log_p = eager.log_classes(x.float(), plan)
        return ((log_p.exp() if exp else log_p).to(x.dtype),)


class _Path(_Kernel):
    name = "log_path"

    @staticmethod
    def start(launch: Any, x: Tensor, coin: Coin, ignored: int | None, index: Tensor) -> Tensors:
        return (launch.log_path(x, index, coin, ignored),)

    @staticmethod
    def pull(launch: Any, x: Tensor, coin: Coin, gradients: Tensors, ignored: int | None, index: Tensor) -> Tensor:
        return launch.pull_path(x, index, gradients[0], coin, ignored)

    @staticmethod
    def plain(x: Tensor, plan: Plan, ignored: int | None, index: Tensor) -> Tensors:
        if ignored is None:
            return (eager.log_path(x.float(), index, plan),)
        keep = index != ignored
        return (torch.where(keep, -eager.log_path(x.float(), torch.where(keep, index, 0), plan), 0.0),)


class _Entropy(_Kernel):
    name = "entropy"

    @staticmethod
    def start(launch: Any, x: Tensor, coin: Coin) -> Tensors:
        return launch.head(x, None, None, coin)[1:2]

    @staticmethod
    def pull(launch: Any, x: Tensor, coin: Coin, gradients: Tensors) -> Tensor:
        return launch.pull(x, None, coin, launch.HEAD, None, gradients[0])

    @staticmethod
    def plain(x: Tensor, plan: Plan) -> Tensors:
        log_p = eager.log_classes(x.float(), plan)
        dead = log_p == -torch.inf
        log_p = torch.where(dead, 0.0, log_p)
        return (torch.where(dead, 0.0, -log_p.exp() * log_p).sum(-1),)


class _Judge(_Kernel):
    name = "judge"

    @staticmethod
    def start(launch: Any, x: Tensor, coin: Coin, index: Tensor) -> Tensors:
        return launch.head(x, index, None, coin)[:2]

    @staticmethod
    def pull(launch: Any, x: Tensor, coin: Coin, gradients: Tensors, index: Tensor) -> Tensor:
        return launch.pull(x, gradients[0], coin, launch.HEAD, index, gradients[1])

    @staticmethod
    def plain(x: Tensor, plan: Plan, index: Tensor) -> Tensors:
        log_p = eager.log_classes(x.float(), plan).gather(-1, index.unsqueeze(-1)).squeeze(-1)
        return log_p, *_Entropy.plain(x, plan)


class _Draw(_Kernel):
    name = "draw"
    draws = True

    @staticmethod
    def start(launch: Any, x: Tensor, coin: Coin, seed: Tensor) -> Tensors:
        return launch.head(x, None, seed, coin)

    @staticmethod
    def pull(launch: Any, x: Tensor, coin: Coin, gradients: Tensors, seed: Tensor, index: Tensor) -> Tensor:
        return _Judge.pull(launch, x, coin, gradients, index)

    @staticmethod
    def plain(x: Tensor, plan: Plan, seed: Tensor, index: Tensor) -> Tensors:
        return _Judge.plain(x, plan, index)
