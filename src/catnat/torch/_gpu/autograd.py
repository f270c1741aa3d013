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
from catnat.torch._compat import must_be_plain, plain_backwards
from catnat.torch._gpu import operators
from catnat.torch._gpu.operators import Tensors
from catnat.torch._gpu.wide_launch import Wide
from catnat.torch._plan import Plan
from catnat.torch._walk import Generator, Walk
from catnat.torch._wide import LinearWalk

MAX_ROW = 4096  # classes that one program holds


class KernelWalk(Walk):
    """By the kernels, for a tree of the heap's shape; what the methods do, `Walk` says.

    Scores of 16 bits stay so. Masks are left to the plain walk.
    """

    @staticmethod
    def serves(plan: Plan, x: Tensor, mask: Tensor | None) -> bool:
        """Whether a compiler may take it for these."""
        return plan.bernoulli is not None and mask is None

    def log_probs(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._in_order(self._call("walk", x, False)[0])

    def probs(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._in_order(self._call("walk", x, True)[0])

    def log_path(self, rows: Tensor, ids: Tensor) -> Tensor:
        return self._call("log_path", rows, self._in_heap(ids))[0]

    def loss(self, x: Tensor, target: Tensor, ignored: int, weight: Tensor | None, reduction: str) -> Tensor:
        if self.plan.order is not None or (weight is not None and weight.requires_grad):
            return super().loss(x, target, ignored, weight, reduction)
        return self._call("loss", x, target, ignored, weight, reduction)[0]

    def entropy(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._call("entropy", x)[0] if self.plan.num_classes <= MAX_ROW else super().entropy(x)

    def sample(self, x: Tensor, count: int, generator: Generator, mask: Tensor | None = None) -> Tensor:
        return self._from_heap(self._call("sample", x.detach(), seed_for(x, generator), count)[0])

    def draw(self, x: Tensor, index: Tensor | None, generator: Generator, mask: Tensor | None = None) -> Tensors:
        if self.plan.num_classes > MAX_ROW:
            return super().draw(x, index, generator)
        if index is None:
            log_p, entropy, drawn = self._call("sample_and_score", x, seed_for(x, generator))
            return self._from_heap(drawn), log_p, entropy
        return index, *self._call("score", x, self._in_heap(index.long()))

    def _call(self, name: str, x: Tensor, *arguments: Any) -> Tensors:
        # a compiler takes the plan as a constant, of which it takes no named tuple apart (before 2.13)
        nodes = self.plan.nodes if is_compiling() else self.plan.bernoulli
        return _call(name, x.requires_grad and torch.is_grad_enabled(), x, self.plan, nodes, *arguments)

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


class KernelLinearWalk(LinearWalk):
    """By the kernels, any tree; what the methods do, `LinearWalk` says."""

    def __init__(self, plan: Plan, weight: Tensor, bias: Tensor | None, tables: Wide) -> None:
        super().__init__(plan, weight, bias)
        self.tables = tables

    def losses(self, x: Tensor, target: Tensor, ignored: int) -> Tensor:
        return self.loss(x, target, ignored, "none", torch.float32)

    def loss(self, x: Tensor, target: Tensor, ignored: int, reduction: str, dtype: torch.dtype) -> Tensor:
        learns_x, learns_weight = _learns(x), _learns(self.weight, self.bias)
        given = self.weight, self.bias, target.contiguous(), ignored, reduction, dtype, learns_x, learns_weight
        return _call("wide_loss", learns_x or learns_weight, x.contiguous(), self.plan, self.tables, *given)[0]

    @torch.no_grad()
    def sample(self, x: Tensor, generator: Generator) -> Tensor:
        given = self.weight, self.bias, seed_for(x, generator)
        return _call("wide_sample", False, x.contiguous(), self.plan, self.tables, *given)[0]


# -- autograd ----------------------------------------------------------------------------------------------------


def _learns(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _call(name: str, learns: bool, x: Tensor, plan: Plan, nodes: Any, *arguments: Any) -> Tensors:
    if is_compiling():
        return operators.as_tuple(getattr(torch.ops.catnat, name)(x, *nodes, *arguments))
    if learns:
        found: Tensors = _Differentiable.apply(name, plan, nodes, x, *arguments)
        return found
    return operators.directly(name, x, nodes, *arguments)


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, plan: Plan, nodes: Any, *inputs: Any) -> Tensors:
        ctx.name, ctx.plan, ctx.nodes = name, plan, nodes
        operator = operators.OPERATORS[name]
        found = operators.directly(name, inputs[0], nodes, *inputs[1:])
        return operators.keep(ctx, inputs, found, operator.differentiable)[: operator.visible]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        operator, wanted = operators.OPERATORS[ctx.name], ctx.needs_input_grad[3:]
        inputs, results = operators.kept(ctx)
        gradients = gradients[: operator.differentiable]
        if any(must_be_plain(gradient) for gradient in gradients):
            count = 1 + max(place for place, wants in enumerate(wanted) if wants)
            found = plain_backwards(
                lambda *first: PLAIN[ctx.name](ctx.plan, *first, *inputs[count:], *results), inputs[:count], gradients
            )
        else:
            assert operator.backward is not None
            name, *given = operator.backward(inputs[1:], results, gradients)
            found = operators.directly(name, inputs[0], ctx.nodes, *given)
        return None, None, None, *operators.of_inputs(found, wanted)


# -- the same in plain tensor code, for the plan, the inputs and what was kept of the results -----------------------


def _own_ids(index: Tensor, plan: Plan) -> Tensor:
    return index if plan.class_of is None else plan.class_of[index]


def _plain_walk(plan: Plan, x: Tensor, exp: bool) -> Tensors:
    found = _eager.log_classes(x.float(), plan)
    found = found if plan.class_of is None else found[..., plan.class_of]
    return ((found.exp() if exp else found).to(x.dtype),)


def _plain_loss(
    plan: Plan, x: Tensor, target: Tensor, ignored: int, weight: Tensor | None, reduction: str, share: Tensor
) -> Tensors:
    loss = Walk(plan).loss(x, target, ignored, weight, "none")
    return ((loss if reduction == "none" else loss.sum() * share).to(x.dtype),)


def _plain_score(plan: Plan, x: Tensor, index: Tensor) -> Tensors:
    return Walk(plan).log_prob(x, _own_ids(index, plan)), Walk(plan).entropy(x)


PLAIN: dict[str, Callable[..., Tensors]] = {
    "walk": _plain_walk,
    "log_path": lambda plan, x, index: (Walk(plan).log_path(x, _own_ids(index, plan)),),
    "loss": _plain_loss,
    "entropy": lambda plan, x: (Walk(plan).entropy(x),),
    "sample_and_score": lambda plan, x, seed, index: _plain_score(plan, x, index),
    "score": _plain_score,
    "wide_loss": lambda plan, x, weight, bias, *rest: (LinearWalk(plan, weight, bias).loss(x, *rest[:4]),),
}
