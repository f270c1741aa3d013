"""The GPU's walk: the kernels, as differentiable functions of scores and a plan.

In eager mode each is an autograd function around its launch; a compiler or exporter is shown the operators of
`catnat.torch._gpu.operators`. Derivatives of higher order and function transforms go through `catnat.torch._eager`.
Class ids are those of the heap, whatever the order of the plan's classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from catnat.torch import _eager
from catnat.torch._compat import must_be_plain, plain_backward
from catnat.torch._gpu import operators
from catnat.torch._plan import Plan
from catnat.torch._walk import Generator, Walk

MAX_ROW = 4096  # classes that one program holds

Tensors = tuple[Tensor, ...]


class KernelWalk(Walk):
    """By the kernels, for a tree of the heap's shape; what the methods do, `Walk` says.

    Scores of 16 bits stay so. Masks are left to the plain walk.
    """

    @staticmethod
    def serves(plan: Plan, x: Tensor, mask: Tensor | None) -> bool:
        """Whether a compiler may take it for these."""
        return plan.bernoulli is not None and mask is None

    def log_probs(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._in_order(_call("walk", x, self.plan, False)[0])

    def probs(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._in_order(_call("walk", x, self.plan, True)[0])

    def log_path(self, rows: Tensor, ids: Tensor) -> Tensor:
        return _call("log_path", rows, self.plan, self._in_heap(ids))[0]

    def loss(self, x: Tensor, target: Tensor, ignored: int, weight: Tensor | None, reduction: str) -> Tensor:
        if self.plan.order is not None or (weight is not None and weight.requires_grad):
            return super().loss(x, target, ignored, weight, reduction)
        return _call("loss", x, self.plan, target, ignored, weight, reduction)[0]

    def entropy(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return _call("entropy", x, self.plan)[0] if self._is_row() else super().entropy(x)

    def sample(self, x: Tensor, count: int, generator: Generator, mask: Tensor | None = None) -> Tensor:
        return self._from_heap(_call("sample", x.detach(), self.plan, seed_for(x, generator), count)[0])

    def draw(self, x: Tensor, index: Tensor | None, generator: Generator, *masking: Any) -> tuple[Tensor, ...]:
        if not self._is_row():
            return super().draw(x, index, generator)
        if index is None:
            log_p, entropy, drawn = _call("sample_and_score", x, self.plan, seed_for(x, generator))
            return self._from_heap(drawn), log_p, entropy
        return index, *_call("score", x, self.plan, self._in_heap(index.long()))

    def _is_row(self) -> bool:
        return self.plan.num_classes <= MAX_ROW

    # the kernels know the heap's order of classes only

    def _in_order(self, classes: Tensor) -> Tensor:
        return classes if self.plan.order is None else classes.index_select(-1, self.plan.order)

    def _in_heap(self, index: Tensor) -> Tensor:
        return index if self.plan.order is None else self.plan.order[index]

    def _from_heap(self, drawn: Tensor) -> Tensor:
        of = self.plan.class_of
        if of is None:
            return drawn
        lost = drawn == self.plan.num_classes  # scores that were NaN; such a class is no class
        return torch.where(lost, drawn, of[torch.where(lost, 0, drawn)])


def seed_for(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """One number on the device, drawn there: the host need not know it, and a captured graph draws anew."""
    source = {} if generator is None else {"generator": generator}  # as in `_eager`
    return torch.randint(1 << 62, (1,), device=x.device, **source)  # type: ignore[call-overload]


# -- autograd ----------------------------------------------------------------------------------------------------


def _call(name: str, x: Tensor, plan: Plan, *arguments: Any) -> Tensors:
    assert plan.bernoulli is not None
    if is_compiling():  # it takes the plan as a constant, whose functions it cannot call
        found = getattr(torch.ops.catnat, name)(x, *plan.nodes, *arguments)
    elif torch.is_grad_enabled() and x.requires_grad:
        found = _Differentiable.apply(x, name, plan, *arguments)
    else:
        found = operators.directly(name, x, plan.bernoulli, *arguments)
    return found if isinstance(found, tuple) else (found,)


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str, plan: Plan, *arguments: Any) -> Tensors:
        assert plan.bernoulli is not None
        ctx.name, ctx.plan = name, plan
        found = operators.directly(name, x, plan.bernoulli, *arguments)
        return operators.keep(ctx, (x, *arguments), found, operators.OPERATORS[name].differentiable)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        name, plan = ctx.name, ctx.plan
        (x, *arguments), results = operators.kept(ctx)
        operator = operators.OPERATORS[name]
        gradients = gradients[: operator.differentiable]
        if any(must_be_plain(gradient) for gradient in gradients):
            plain = PLAIN[name]
            dx = plain_backward(lambda x: plain(x, plan, *arguments, *results), x, gradients)
        else:
            assert operator.backward is not None
            name, *given = operator.backward(arguments, results, gradients)
            dx = operators.directly(name, x, plan.bernoulli, *given)
        return dx, None, None, *[None] * len(arguments)


# -- the same in plain tensor code, for x, the plan, the arguments and what was kept of the results ----------------


def _own_ids(index: Tensor, plan: Plan) -> Tensor:
    return index if plan.class_of is None else plan.class_of[index]


def _plain_walk(x: Tensor, plan: Plan, exp: bool) -> Tensors:
    found = _eager.log_classes(x.float(), plan)
    found = found if plan.class_of is None else found[..., plan.class_of]
    return ((found.exp() if exp else found).to(x.dtype),)


def _plain_loss(
    x: Tensor, plan: Plan, target: Tensor, ignored: int, weight: Tensor | None, reduction: str, share: Tensor
) -> Tensors:
    loss = Walk(plan).loss(x, target, ignored, weight, "none")
    return ((loss if reduction == "none" else loss.sum() * share).to(x.dtype),)


def _plain_score(x: Tensor, plan: Plan, index: Tensor) -> Tensors:
    return Walk(plan).log_prob(x, _own_ids(index, plan)), Walk(plan).entropy(x)


PLAIN: dict[str, Callable[..., Tensors]] = {
    "walk": _plain_walk,
    "log_path": lambda x, plan, index: (Walk(plan).log_path(x, _own_ids(index, plan)),),
    "loss": _plain_loss,
    "entropy": lambda x, plan: (Walk(plan).entropy(x),),
    "sample_and_score": lambda x, plan, seed, index: _plain_score(x, plan, index),
    "score": _plain_score,
}
