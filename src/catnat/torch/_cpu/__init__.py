"""The one fast walk on a CPU, in C++: log p of all classes, with its gradient, and what is made of them.

All classes are cheap there: a few calls of PyTorch's own functions matter more than the scores that they read.
"""

from __future__ import annotations

from copy import copy
from functools import partial
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, library
from torch.compiler import is_exporting

from catnat._native.constants import constants_of
from catnat.core.errors import REDUCTIONS
from catnat.core.parameterization import Parameterization
from catnat.torch import _masks
from catnat.torch._compat import PLAIN_TENSORS, plain_backward
from catnat.torch._cpu.build import load
from catnat.torch._plan import Plan, find_plan
from catnat.torch._walk import Walk, gathered


class TracedWalk(Walk):
    """For a compiler, as PyTorch operators: of plain tensor code it would make slow loops.

    What the methods do, `Walk` says.
    """

    @staticmethod
    def serves(plan: Plan, x: Tensor, mask: Tensor | None) -> bool:
        """Whether a compiler may take it for these; what is exported runs where its operators are not."""
        plain = type(x) in PLAIN_TENSORS and (mask is None or type(mask) in PLAIN_TENSORS)
        return bool(plan.traced) and plain and not is_exporting()

    def log_probs(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return torch.ops.catnat_cpu.log_p(*_ready(x, mask), self.plan.traced)

    def log_path(self, rows: Tensor, ids: Tensor) -> Tensor:
        if not self.is_small(rows):
            return super().log_path(rows, ids)
        return gathered(self.log_probs(rows), ids)


class CompiledWalk(TracedWalk):
    """By the C++ itself, in float32 or float64, for ordinary tensors in eager mode."""

    def __init__(self, plan: Plan, operator: Any) -> None:
        super().__init__(plan)
        self.operator = operator

    def traced_plan(self) -> Plan:
        """The plan for `TracedWalk`: it names this walk in the same way in every process, as programs are saved."""
        name = sha256(repr(self.plan.pi.definition).encode()).hexdigest()[:16]
        _TRACED[name, self.plan.center.dtype] = self
        plan = copy(self.plan)
        vars(plan)["traced"] = name
        return plan

    def log_probs(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.operator.log_p(*_ready(x, mask))

    def loss(self, x: Tensor, target: Tensor, ignored: int, weight: Tensor | None, reduction: str) -> Tensor:
        if not self.is_small(x) or (weight is not None and weight.requires_grad):  # PyTorch's own gives it no gradient
            return super().loss(x, target, ignored, weight, reduction)
        rows = x.float() if x.element_size() < 4 else x
        rows, target_rows = (rows, target) if x.dim() > 1 else (rows[None], target[None])  # nll_loss wants a batch
        code = REDUCTIONS.index(reduction)  # as PyTorch numbers them
        loss = self.operator.cross_entropy(rows, target_rows.long(), weight, code, ignored)
        return loss.view(target.shape) if reduction == "none" else loss


def _ready(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """As the operator takes them: 32 bits at least, and a mask of one row or of all."""
    if x.element_size() < 4:
        x = x.float()
    if mask is not None and mask.dim() > 1 and mask.shape[:-1] != x.shape[:-1]:
        batch = torch.broadcast_shapes(x.shape[:-1], mask.shape[:-1])
        x, mask = x.expand((*batch, -1)), mask.expand((*batch, -1))
    return x, mask


_library = library.Library("catnat_cpu", "DEF")
_TRACED: dict[tuple[str, torch.dtype], CompiledWalk] = {}  # for good, as are the programs that name them


def _walk(name: str, x: Tensor) -> CompiledWalk:
    found = _TRACED.get((name, x.dtype))
    if found is None:
        raise RuntimeError("a saved program needs its parameterization: compile a call with it in this process first")
    return found


@torch.no_grad()
def _log_p(x: Tensor, mask: Tensor | None, name: str) -> Tensor:
    return _walk(name, x).operator.log_p(x, mask)


@torch.no_grad()
def _gradient(x: Tensor, mask: Tensor | None, name: str, log_p: Tensor | None, given: Tensor) -> Tensor:
    mask, log_p = (None if t is None else t.contiguous() for t in (mask, log_p))
    return _walk(name, x).operator.gradient(x.contiguous(), mask, log_p, given.contiguous())


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, mask, ctx.name = inputs
    ctx.save_for_backward(x, mask, None if mask is None else output)


def _backward(ctx: Any, given: Tensor) -> tuple[Any, ...]:
    x, mask, log_p = ctx.saved_tensors
    if torch.is_grad_enabled():  # it is to be differentiated in turn
        return _plain_gradient(_walk(ctx.name, x).plan.pi, x, mask, given), None, None
    return torch.ops.catnat_cpu.gradient(x, mask, ctx.name, log_p, given), None, None


_library.define("log_p(Tensor x, Tensor? mask, str name) -> Tensor")
_library.define("gradient(Tensor x, Tensor? mask, str name, Tensor? log_p, Tensor given) -> Tensor")
_library.impl("log_p", _log_p, "CPU")
_library.impl("gradient", _gradient, "CPU")
library.register_fake("catnat_cpu::log_p", lambda x, *_: x.new_empty((*x.shape[:-1], x.shape[-1] + 1)), lib=_library)
library.register_fake("catnat_cpu::gradient", lambda x, *_: x.new_empty(x.shape), lib=_library)
library.register_autograd("catnat_cpu::log_p", _backward, setup_context=_keep, lib=_library)


def walk_of(plan: Plan) -> CompiledWalk | None:
    """The compiled walk of a plan; None where only the plain walk will do."""
    found = constants_of(plan.pi, plan.center.dtype == torch.float32)
    if found is None or (module := load()) is None:
        return None
    make = module.Float32 if plan.center.dtype == torch.float32 else module.Float64
    tables = (table.reshape(-1).tolist() for table in found.tables)
    gradient = partial(_plain_gradient, plan.pi)
    return CompiledWalk(plan, make(plan.num_classes, found.kind, found.numbers, *tables, gradient))


def _plain_gradient(pi: Parameterization, x: Tensor, mask: Tensor | None, given: Tensor) -> Tensor:
    """The gradient where it is to be differentiated in turn, or asked for many gradients at once."""
    plan = find_plan(pi, x.dtype, x.device)
    return plain_backward(lambda x: _masks.log_classes(x, plan, mask), x, given)
