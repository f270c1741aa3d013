"""The kernels as PyTorch operators: with shapes for compilers, gradients for autograd, and nothing hidden.

An operator is a pure function of its tensors (a sample is one of its seed), so compilers may move it, graphs may replay
it, and PyTorch's `opcheck` can judge it. Its gradient is an operator too, which has none of its own: in eager mode
`catnat.torch._gpu.autograd` sees to those.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, library

from catnat.torch._bernoulli import Bernoulli
from catnat.torch._gpu import launch
from catnat.torch._gpu.node import INTERPRETED

BERNOULLI = "Tensor? centers, int classes, int kind, int activation, float amplitude, float least"
N = len(Bernoulli._fields)
Tensors = tuple[Tensor, ...]


class Operator(NamedTuple):
    """One operator, its results' shapes, and which operator is its gradient."""

    schema: str  # of what follows the scores and the nodes
    start: Callable[..., Any]  # x, the nodes and the arguments to its results
    fake: Callable[..., Any]
    # (arguments, what it kept of its results, gradients) to the name and the arguments of the operator for its gradient
    backward: Callable[..., tuple[Any, ...]] | None = None
    differentiable: int = 1  # results; those after them are kept for the backward pass


def _per_row(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return x.new_empty(x.shape[:-1], dtype=dtype)


def _like(x: Tensor, *rest: Any) -> Tensor:
    return x.new_empty(x.shape)


def _pull_loss(arguments: Any, kept: Any, gradients: Any) -> tuple[Any, ...]:
    target, ignored, weight, reduction = arguments
    return "pull_path", target, gradients[0], launch.ASKED[reduction], ignored, weight, kept[0]


def _pull_head(arguments: Any, kept: Any, gradients: Any) -> tuple[Any, ...]:
    return "pull_head", kept[0] if kept else arguments[0], *gradients


OPERATORS = {
    # log p of every class, or p
    "walk": Operator(
        "bool exp) -> Tensor",
        launch.walk,
        lambda x, bernoulli, exp: x.new_empty((*x.shape[:-1], bernoulli.classes)),
        lambda arguments, kept, gradients: ("pull", gradients[0], *arguments),
    ),
    "pull": Operator(
        "Tensor gradient, bool exp) -> Tensor",
        lambda x, bernoulli, gradient, exp: launch.pull(x, gradient, bernoulli, launch.P if exp else launch.LOG_P),
        _like,
    ),
    # given classes
    "log_path": Operator(
        "Tensor index) -> Tensor",
        lambda x, bernoulli, index: launch.log_path(x, index, bernoulli),
        lambda x, bernoulli, index: x.new_empty(index.shape, dtype=torch.float32),
        lambda arguments, kept, gradients: ("pull_path", *arguments, gradients[0], launch.LOG_P, 0, None, None),
    ),
    "loss": Operator(
        "Tensor target, int ignored, Tensor? weight, str reduction) -> (Tensor, Tensor)",
        lambda x, bernoulli, target, *rest: launch.loss(x, target, bernoulli, *rest),
        lambda x, bernoulli, target, ignored, weight, reduction: (
            x.new_empty(target.shape if reduction == "none" else ()),
            x.new_empty((0,) if reduction == "none" else (), dtype=x.dtype if reduction == "none" else torch.float32),
        ),
        _pull_loss,
    ),
    "pull_path": Operator(
        "Tensor index, Tensor gradient, int what, int ignored, Tensor? weight, Tensor? share) -> Tensor",
        lambda x, bernoulli, index, gradient, *rest: launch.pull_path(x, index, gradient, bernoulli, *rest),
        _like,
    ),
    "sample": Operator(
        "Tensor seed, SymInt count) -> Tensor",
        lambda x, bernoulli, seed, count: launch.sample(x, seed, count, bernoulli),
        lambda x, bernoulli, seed, count: x.new_empty((count, *x.shape[:-1]), dtype=torch.int64),
    ),
    # a policy's head
    "entropy": Operator(
        ") -> Tensor",
        lambda x, bernoulli: launch.head(x, None, None, bernoulli)[1],
        lambda x, bernoulli: _per_row(x),
        lambda arguments, kept, gradients: ("pull_head", None, None, *gradients),
    ),
    "sample_and_score": Operator(
        "Tensor seed) -> (Tensor, Tensor, Tensor)",
        lambda x, bernoulli, seed: launch.head(x, None, seed, bernoulli),
        lambda x, bernoulli, seed: (_per_row(x), _per_row(x), _per_row(x, torch.int64)),
        _pull_head,
        differentiable=2,
    ),
    "score": Operator(
        "Tensor index) -> (Tensor, Tensor)",
        lambda x, bernoulli, index: launch.head(x, index, None, bernoulli)[:2],
        lambda x, bernoulli, index: (_per_row(x), _per_row(x)),
        _pull_head,
        differentiable=2,
    ),
    "pull_head": Operator(
        "Tensor? index, Tensor? of_log_prob, Tensor of_entropy) -> Tensor",
        lambda x, bernoulli, index, of_log_prob, of_entropy: launch.pull(
            x, of_log_prob, bernoulli, launch.HEAD, index, of_entropy
        ),
        _like,
    ),
}


def directly(name: str, x: Tensor, bernoulli: Bernoulli, *arguments: Any) -> Any:
    """Start its kernels without PyTorch in between."""
    return OPERATORS[name].start(x, bernoulli, *arguments)


# -- what autograd keeps -----------------------------------------------------------------------------------------


def keep(ctx: Any, inputs: tuple[Any, ...], output: Any, differentiable: int = 1) -> Tensors:
    """Keep an operator's inputs, and its results after so many, for its backward pass; its results as a tuple."""
    results = output if isinstance(output, tuple) else (output,)
    kept = results[differentiable:]
    ctx.mark_non_differentiable(*kept)
    # autograd watches tensors only: whoever overwrites the class ids is told so
    ctx.numbers = tuple(None if isinstance(i, Tensor) else i for i in inputs)
    ctx.is_tensor = tuple(isinstance(i, Tensor) for i in inputs)
    ctx.save_for_backward(*(i for i in inputs if isinstance(i, Tensor)), *kept)
    return results


def kept(ctx: Any) -> tuple[list[Any], list[Tensor]]:
    """The inputs and the results that were kept."""
    tensors = list(ctx.saved_tensors)
    return [tensors.pop(0) if t else n for t, n in zip(ctx.is_tensor, ctx.numbers, strict=True)], tensors


# -- to PyTorch --------------------------------------------------------------------------------------------------

_library = library.Library("catnat", "DEF")


def define(name: str, schema: str, start: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Make it an operator."""
    _library.define(f"{name}({schema}")
    for device in ("CUDA", "CPU") if INTERPRETED else ("CUDA",):
        _library.impl(name, start, device)
    library.register_fake(f"catnat::{name}", fake, lib=_library)


def differentiate(name: str, backward: Callable[..., Any], setup: Callable[..., Any]) -> None:
    """Give an operator a gradient."""
    library.register_autograd(f"catnat::{name}", backward, setup_context=setup, lib=_library)


def _refuse(ctx: Any, *gradients: Tensor) -> Any:
    raise NotImplementedError(
        "catnat's operators have no second derivative; the functions of catnat.torch have, outside of torch.compile"
    )


def _with_nodes(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *rest: function(x, Bernoulli(*rest[:N]), *rest[N:])


def _register(name: str, operator: Operator) -> None:
    schema = f"Tensor x, {BERNOULLI}{', ' if operator.schema[0] != ')' else ''}{operator.schema}"
    define(name, schema, _with_nodes(operator.start), _with_nodes(operator.fake))
    if operator.backward is None:
        if name != "sample":
            differentiate(name, _refuse, lambda ctx, inputs, output: None)
        return
    pull = operator.backward

    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (x, *rest), results = kept(ctx)
        name, *given = pull(rest[N:], results, gradients[: operator.differentiable])
        return getattr(torch.ops.catnat, name)(x, *rest[:N], *given), *[None] * len(rest)

    differentiate(name, backward, partial(keep, differentiable=operator.differentiable))


for _name, _operator in OPERATORS.items():
    _register(_name, _operator)
