"""The GPU kernels behind the same doors as the walks on a CPU.

In eager mode each is an autograd function around its launch; a compiler or exporter is shown the operators of
`catnat.torch.kernels.ops`. Derivatives of higher order and function transforms go through `catnat.torch.eager`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from catnat.torch import eager
from catnat.torch.compat import must_be_plain
from catnat.torch.plan import Plan, takes_kernels

MAX_HEAD_CLASSES = 4096  # a head's tree fits into one program

Tensors = tuple[Tensor, ...]


def has_head(x: Tensor, plan: Plan) -> bool:
    """Whether `entropy`, `draw` and `judge` may be asked; for the others `takes_kernels` is enough."""
    return plan.num_classes <= MAX_HEAD_CLASSES and takes_kernels(x, plan)


def log_classes(x: Tensor, plan: Plan) -> Tensor:
    """log p of every class: [..., K-1] to [..., K], in the dtype of the scores."""
    return _call(_LOG_CLASSES, x, plan)[0]


def classes(x: Tensor, plan: Plan) -> Tensor:
    """p of every class."""
    return _call(_CLASSES, x, plan)[0]


def log_path(x: Tensor, index: Tensor, plan: Plan) -> Tensor:
    """float32 log p of one class a row [R], or of several [R, M], from scores [R, K-1]."""
    single = index.dim() == 1
    found = _call(_PATH, x, plan, index.unsqueeze(1) if single else index)[0]
    return found.squeeze(1) if single else found


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
    return _call(_ENTROPY, x, plan)[0]


def draw(x: Tensor, plan: Plan, generator: torch.Generator | None) -> Tensors:
    """log p of one draw a row, the row's entropy, and the draw."""
    return _call(_DRAW, x, plan, _seed(x, generator))


def judge(x: Tensor, index: Tensor, plan: Plan) -> Tensors:
    """log p of one class a row and the row's entropy."""
    return _call(_JUDGE, x, plan, index)


def _seed(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """One number on the device, drawn there: the host need not know it, and a captured graph draws anew."""
    return torch.randint(1 << 62, (1,), device=x.device, generator=generator)


# -- autograd ----------------------------------------------------------------------------------------------------


class _Kernel(NamedTuple):
    """One operator: its name, its launch, the gradient's, and the same in plain tensor code."""

    name: str
    launch: Callable[..., Tensors]  # (launch module, x, coin, others)
    pull: Callable[..., Tensor]  # (launch module, x, coin, others, results, gradients)
    plain: Callable[..., Tensors]  # (x, plan, others, results): what is differentiable
    draws: bool = False  # whether the last result is class ids


def _call(kernel: _Kernel, x: Tensor, plan: Plan, *others: Tensor) -> Tensors:
    assert plan.coin_arguments is not None and plan.launch is not None
    if is_compiling():
        found = getattr(torch.ops.catnat, kernel.name)(x, *plan.coin_arguments, *_SWITCHES.get(kernel, ()), *others)
        return found if isinstance(found, tuple) else (found,)
    if torch.is_grad_enabled() and x.requires_grad:
        found = _Differentiable.apply(x, kernel, plan, *others)
        return found
    return kernel.launch(plan.launch, x, plan.coin, others)


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: _Kernel, plan: Plan, *others: Tensor) -> Tensors:
        ctx.kernel, ctx.plan, ctx.others = kernel, plan, others  # class ids and seeds: nothing for autograd to watch
        found = kernel.launch(plan.launch, x, plan.coin, others)
        if kernel.draws:
            ctx.mark_non_differentiable(found[-1])
            ctx.save_for_backward(x, found[-1])
        else:
            ctx.save_for_backward(x)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        x, *drawn = ctx.saved_tensors
        kernel, plan = ctx.kernel, ctx.plan
        gradients = gradients[:-1] if kernel.draws else gradients
        if any(must_be_plain(gradient) for gradient in gradients):
            dx = _plain_backward(lambda x: kernel.plain(x, plan, ctx.others, drawn), x, gradients)
        else:
            dx = kernel.pull(plan.launch, x, plan.coin, ctx.others, drawn, gradients)
        return dx, None, None, *[None] * len(ctx.others)


def _plain_backward(function: Callable[[Tensor], Tensors], x: Tensor, gradients: Tensors) -> Tensor:
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # a view of our own: the user's hooks on x must see this gradient once, not twice
        x = x.view_as(x) if again else x.detach().requires_grad_()
        return torch.autograd.grad(function(x), x, gradients, create_graph=again)[0]


def _plain_log_classes(x: Tensor, plan: Plan, others: Tensors, drawn: Tensors) -> Tensors:
    return (eager.log_classes(x.float(), plan).to(x.dtype),)


def _plain_path(x: Tensor, plan: Plan, others: Tensors, drawn: Tensors) -> Tensors:
    return (eager.log_path(x.float().flatten(0, -2), others[0], plan),)


def _plain_entropy(x: Tensor, plan: Plan, others: Tensors, drawn: Tensors) -> Tensors:
    log_p = eager.log_classes(x.float(), plan)
    return (torch.where(log_p == -torch.inf, 0.0, -log_p.exp() * log_p).sum(-1),)


def _plain_head(x: Tensor, plan: Plan, others: Tensors, drawn: Tensors) -> Tensors:
    (index,) = drawn or others
    log_p = eager.log_classes(x.float(), plan).gather(-1, index.unsqueeze(-1)).squeeze(-1)
    return log_p, *_plain_entropy(x, plan, others, drawn)


_LOG_CLASSES = _Kernel(
    "walk",
    lambda launch, x, coin, others: (launch.walk(x, coin, False),),
    lambda launch, x, coin, others, drawn, gradients: launch.pull(x, gradients[0], coin, launch.LOG_P),
    _plain_log_classes,
)
_CLASSES = _Kernel(
    "walk",
    lambda launch, x, coin, others: (launch.walk(x, coin, True),),
    lambda launch, x, coin, others, drawn, gradients: launch.pull(x, gradients[0], coin, launch.P),
    lambda x, plan, others, drawn: (_plain_log_classes(x, plan, others, drawn)[0].exp(),),
)
_PATH = _Kernel(
    "log_path",
    lambda launch, x, coin, others: (launch.log_path(x, others[0], coin),),
    lambda launch, x, coin, others, drawn, gradients: launch.pull_path(x, others[0], gradients[0], coin),
    _plain_path,
)
_ENTROPY = _Kernel(
    "entropy",
    lambda launch, x, coin, others: launch.head(x, None, None, coin)[1:2],
    lambda launch, x, coin, others, drawn, gradients: launch.pull(x, None, coin, launch.HEAD, None, gradients[0]),
    _plain_entropy,
)
_DRAW = _Kernel(
    "draw",
    lambda launch, x, coin, others: launch.head(x, None, others[0], coin),
    lambda launch, x, coin, others, drawn, gradients: launch.pull(
        x, gradients[0], coin, launch.HEAD, drawn[0], gradients[1]
    ),
    _plain_head,
    draws=True,
)
_JUDGE = _Kernel(
    "judge",
    lambda launch, x, coin, others: launch.head(x, others[0], None, coin)[:2],
    lambda launch, x, coin, others, drawn, gradients: launch.pull(
        x, gradients[0], coin, launch.HEAD, others[0], gradients[1]
    ),
    _plain_head,
)
_SWITCHES: dict[_Kernel, tuple[bool, ...]] = {_LOG_CLASSES: (False,), _CLASSES: (True,)}
