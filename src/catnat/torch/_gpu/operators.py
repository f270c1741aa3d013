"""The kernels as PyTorch operators: with shapes for compilers, gradients for autograd, and nothing hidden.

An operator is a pure function of its tensors (a sample is one of its seed), so compilers may move it, graphs may replay
it, and PyTorch's `opcheck` can judge it. Its gradient is an operator too, which has none of its own: in eager mode
`catnat.torch._gpu.autograd` sees to those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor, library

from catnat.torch._bernoulli import Bernoulli
from catnat.torch._gpu import launch, wide_launch
from catnat.torch._gpu.node import INTERPRETED
from catnat.torch._gpu.wide_launch import Wide

SCHEMAS = {
    Bernoulli: "Tensor? centers, int classes, int kind, int activation, float amplitude, float least",
    Wide: "Tensor? centers, Tensor places, Tensor lengths, Tensor ranks, Tensor? above, Tensor node_at, "
    "Tensor class_at, int classes, int depth, int activation, float amplitude, float least",
}
Tensors = tuple[Tensor, ...]


class Operator(NamedTuple):
    """One operator, and which operator is its gradient."""

    arguments: str  # what follows x and the nodes
    start: Callable[..., Any]  # of x, the nodes and the arguments
    # (arguments, what it kept of its results, gradients) to the name and the arguments of the operator for its gradient
    backward: Callable[..., tuple[Any, ...]] | None = None
    results: int = 1
    differentiable: int = 1  # of the results; those after them are kept for the backward pass
    visible: int = 1  # of the results to callers in eager mode; autograd would fill in zeros for more of them
    nodes: type[Any] = Bernoulli


def _pull_loss(arguments: Any, kept: Any, gradients: Any) -> tuple[Any, ...]:
    target, ignored, weight, reduction = arguments
    return "pull_path", target, *gradients, True, ignored, weight, None if reduction == "none" else kept[0]


def _pull_wide(arguments: Any, kept: Any, gradients: Any) -> tuple[Any, ...]:
    weight, reduction, learns_weight, (share, *rest) = arguments[0], arguments[4], arguments[-1], kept
    return "wide_pull", weight, *gradients, None if reduction == "none" else share, *rest, learns_weight


OPERATORS = {
    # log p of every class, or p
    "walk": Operator("bool exp", launch.walk, lambda arguments, kept, gradients: ("pull", *gradients, *arguments)),
    "pull": Operator("Tensor? gradient, bool exp, Tensor? index=None, Tensor? of_entropy=None", launch.pull),
    # given classes
    "log_path": Operator(
        "Tensor index",
        launch.log_path,
        lambda arguments, kept, gradients: ("pull_path", *arguments, *gradients, False, 0, None, None),
    ),
    "loss": Operator("Tensor target, int ignored, Tensor? weight, str reduction", launch.loss, _pull_loss, results=2),
    "pull_path": Operator(
        "Tensor index, Tensor gradient, bool is_loss, int ignored, Tensor? weight, Tensor? share", launch.pull_path
    ),
    "sample": Operator("Tensor seed, SymInt count", launch.sample, differentiable=0),
    # a policy's head
    "entropy": Operator(
        "",
        lambda x, bernoulli: launch.head(x, bernoulli, None, None)[1],
        lambda arguments, kept, gradients: ("pull", None, False, None, *gradients),
    ),
    "sample_and_score": Operator(
        "Tensor seed",
        lambda x, bernoulli, seed: launch.head(x, bernoulli, None, seed),
        lambda arguments, kept, gradients: ("pull", gradients[0], False, kept[0], gradients[1]),
        results=3,
        differentiable=2,
        visible=3,
    ),
    "score": Operator(
        "Tensor index",
        lambda x, bernoulli, index: launch.head(x, bernoulli, index, None)[:2],
        lambda arguments, kept, gradients: ("pull", gradients[0], False, arguments[0], gradients[1]),
        results=2,
        differentiable=2,
        visible=2,
    ),
    # a linear head
    "wide_loss": Operator(
        "Tensor weight, Tensor? bias, Tensor target, int ignored, str reduction, ScalarType dtype, bool learns_x, "
        "bool learns_weight",
        wide_launch.loss,
        _pull_wide,
        results=6,
        nodes=Wide,
    ),
    "wide_pull": Operator(
        "Tensor weight, Tensor gradient, Tensor? share, Tensor slopes, Tensor steps, Tensor order, Tensor dx, "
        "bool learns_weight",
        wide_launch.pull,
        results=3,
        differentiable=3,
        nodes=Wide,
    ),
    "wide_sample": Operator(
        "Tensor weight, Tensor? bias, Tensor seed", wide_launch.sample, differentiable=0, nodes=Wide
    ),
}


def as_tuple(found: Any) -> Tensors:
    """An operator's results, however many they are."""
    return found if isinstance(found, tuple) else (found,)


def directly(name: str, x: Tensor, nodes: Any, *arguments: Any) -> Tensors:
    """Start its kernels without PyTorch in between."""
    return as_tuple(OPERATORS[name].start(x, nodes, *arguments))


# -- what autograd keeps and returns -----------------------------------------------------------------------------


def keep(ctx: Any, inputs: tuple[Any, ...], output: Any, differentiable: int) -> Tensors:
    """Keep an operator's inputs, and its results after so many, for its backward pass; its results as a tuple."""
    results = as_tuple(output)
    kept = results[differentiable:]
    ctx.mark_non_differentiable(*kept)
    # autograd watches tensors only: whoever overwrites the class ids is told so
    tensors = [i if isinstance(i, Tensor) else None for i in inputs]
    ctx.others = [i if t is None else None for i, t in zip(inputs, tensors, strict=True)]
    ctx.save_for_backward(*tensors, *kept)
    return results


def kept(ctx: Any) -> tuple[list[Any], Sequence[Tensor]]:
    """The inputs and the results that were kept."""
    tensors, count = ctx.saved_tensors, len(ctx.others)
    inputs = [other if t is None else t for t, other in zip(tensors, ctx.others, strict=False)]
    return inputs, tensors[count:]


def of_inputs(found: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
    """The gradients of the first inputs, where they are wanted, and None for the others."""
    return [gradient if wants else None for gradient, wants in zip_longest(found, wanted)]


# -- to PyTorch --------------------------------------------------------------------------------------------------

_library = library.Library("catnat", "DEF")


def _register(name: str, operator: Operator) -> None:
    nodes, count = operator.nodes, len(operator.nodes._fields)

    def start(x: Tensor, *rest: Any) -> Any:
        return operator.start(x, nodes(*rest[:count]), *rest[count:])

    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        if operator.backward is None:
            raise NotImplementedError(
                "catnat's operators have no second derivative; the functions of catnat.torch have, outside of "
                "torch.compile"
            )
        (x, *rest), results = kept(ctx)
        name, *given = operator.backward(rest[count:], results, gradients[: operator.differentiable])
        found = as_tuple(getattr(torch.ops.catnat, name)(x, *rest[:count], *given))
        return tuple(of_inputs((found[0], *[None] * count, *found[1:]), ctx.needs_input_grad))

    arguments = ", ".join(filter(None, ("Tensor x", SCHEMAS[nodes], operator.arguments)))
    _library.define(f"{name}({arguments}) -> ({', '.join(['Tensor'] * operator.results)})")
    for device in ("CUDA", "CPU") if INTERPRETED else ("CUDA",):
        _library.impl(name, start, device)
    library.register_fake(f"catnat::{name}", start, lib=_library)  # see `launch.starts`
    if operator.differentiable:
        setup = partial(keep, differentiable=operator.differentiable)
        library.register_autograd(f"catnat::{name}", backward, setup_context=setup, lib=_library)


for _name, _operator in OPERATORS.items():
    _register(_name, _operator)
