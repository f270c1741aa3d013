"""The kernels as PyTorch operators: with shapes for compilers, gradients for autograd, and nothing hidden.

An operator is a pure function of its tensors (a sample is one of its seed), so compilers may move it, graphs may replay
it, and PyTorch's `opcheck` can judge it. These gradients have no gradients of their own: in eager mode
`catnat.torch._gpu.autograd` sees to those.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, library

from catnat.torch._gpu.coin import Coin
from catnat.torch._gpu import launch
from catnat.torch._gpu.node import INTERPRETED

COIN = "Tensor? ends, int classes, int kind, float amplitude, float least, int saturation"
SCHEMAS = {
    "walk": f"(Tensor x, {COIN}, bool exp) -> Tensor",
    "pull": f"(Tensor x, {COIN}, bool exp, Tensor gradient) -> Tensor",
    "log_path": f"(Tensor x, {COIN}, int? ignored, Tensor index) -> Tensor",
    "pull_path": f"(Tensor x, {COIN}, int? ignored, Tensor index, Tensor gradient) -> Tensor",
    "sample": f"(Tensor x, {COIN}, Tensor seed, SymInt count) -> Tensor",
    "entropy": f"(Tensor x, {COIN}) -> Tensor",
    "draw": f"(Tensor x, {COIN}, Tensor seed) -> (Tensor, Tensor, Tensor)",
    "judge": f"(Tensor x, {COIN}, Tensor index) -> (Tensor, Tensor)",
    "pull_head": f"(Tensor x, {COIN}, Tensor? index, Tensor? of_log_prob, Tensor of_entropy) -> Tensor",
}
_library = library.Library("catnat", "DEF")
for _name, _schema in SCHEMAS.items():
    _library.define(_name + _schema)


def _coin(ends: Tensor | None, classes: int, kind: int, amplitude: float, least: float, saturation: int) -> Coin:
    return Coin(classes, ends, kind, amplitude, least, saturation)


N = 6  # numbers of a coin


def _operator(name: str, fake: Any) -> Any:
    """Register what follows as the operator's kernel, and ``fake`` for its shapes."""

    def register(function: Any) -> Any:
        for device in ("CUDA", "CPU") if INTERPRETED else ("CUDA",):
            _library.impl(name, function, device)
        library.register_fake(f"catnat::{name}", fake, lib=_library)
        return function

    return register


def _differentiable(name: str, backward: Any, keep: Any) -> None:
    library.register_autograd(f"catnat::{name}", backward, setup_context=keep, lib=_library)


def _rows(x: Tensor) -> Tensor:
    """[...] float32: one number a row."""
    return x.new_empty(x.shape[:-1], dtype=torch.float32)


def _ids(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[:-1], dtype=torch.int64)


# -- log p of every class, or p ----------------------------------------------------------------------------------


@_operator("walk", lambda x, ends, classes, *rest: x.new_empty((*x.shape[:-1], classes)))
def _walk(x: Tensor, *rest: Any) -> Tensor:
    return launch.walk(x, _coin(*rest[:N]), exp=rest[N])


@_operator("pull", lambda x, *rest: x.new_empty(x.shape))
def _pull(x: Tensor, *rest: Any) -> Tensor:
    exp, gradient = rest[N:]
    return launch.pull(x, gradient, _coin(*rest[:N]), launch.P if exp else launch.LOG_P)


def _keep_walk(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ends, *ctx.rest = inputs
    ctx.save_for_backward(x, ends)


def _walk_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    x, ends = ctx.saved_tensors
    return torch.ops.catnat.pull(x, ends, *ctx.rest, gradient), *[None] * (N + 1)


_differentiable("walk", _walk_backward, _keep_walk)


# -- one class a row ---------------------------------------------------------------------------------------------


@_operator("log_path", lambda x, *rest: x.new_empty(rest[N + 1].shape, dtype=torch.float32))
def _log_path(x: Tensor, *rest: Any) -> Tensor:
    ignored, index = rest[N:]
    return launch.log_path(x, index, _coin(*rest[:N]), ignored)


@_operator("pull_path", lambda x, *rest: x.new_empty(x.shape))
def _pull_path(x: Tensor, *rest: Any) -> Tensor:
    ignored, index, gradient = rest[N:]
    return launch.pull_path(x, index, gradient, _coin(*rest[:N]), ignored)


def _keep_path(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ends, *ctx.rest, index = inputs
    ctx.save_for_backward(x, ends, index)


def _path_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    x, ends, index = ctx.saved_tensors
    return torch.ops.catnat.pull_path(x, ends, *ctx.rest, index, gradient), *[None] * (N + 2)


_differentiable("log_path", _path_backward, _keep_path)


@_operator("sample", lambda x, *rest: x.new_empty((rest[N + 1], *x.shape[:-1]), dtype=torch.int64))
def _sample(x: Tensor, *rest: Any) -> Tensor:
    return launch.sample(x, rest[N], rest[N + 1], _coin(*rest[:N]))


# -- a policy's head ---------------------------------------------------------------------------------------------


@_operator("entropy", lambda x, *rest: _rows(x))
def _entropy(x: Tensor, *rest: Any) -> Tensor:
    return launch.head(x, None, None, _coin(*rest))[1]


@_operator("draw", lambda x, *rest: (_rows(x), _rows(x), _ids(x)))
def _draw(x: Tensor, *rest: Any) -> tuple[Any, ...]:
    return launch.head(x, None, rest[N], _coin(*rest[:N]))


@_operator("judge", lambda x, *rest: (_rows(x), _rows(x)))
def _judge(x: Tensor, *rest: Any) -> tuple[Any, ...]:
    return launch.head(x, rest[N], None, _coin(*rest[:N]))[:2]


@_operator("pull_head", lambda x, *rest: x.new_empty(x.shape))
def _pull_head(x: Tensor, *rest: Any) -> Tensor:
    index, of_log_prob, of_entropy = rest[N:]
    return launch.pull(x, of_log_prob, _coin(*rest[:N]), launch.HEAD, index, of_entropy)


def _keep_entropy(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ends, *ctx.rest = inputs
    ctx.save_for_backward(x, ends)


def _entropy_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    x, ends = ctx.saved_tensors
    return torch.ops.catnat.pull_head(x, ends, *ctx.rest, None, None, gradient), *[None] * N


def _keep_draw(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, ends, *ctx.rest, _ = inputs
    ctx.mark_non_differentiable(output[2])
    ctx.save_for_backward(x, ends, output[2])


def _keep_judge(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, ends, *ctx.rest, index = inputs
    ctx.save_for_backward(x, ends, index)


def _head_backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
    x, ends, index = ctx.saved_tensors
    return torch.ops.catnat.pull_head(x, ends, *ctx.rest, index, *gradients[:2]), *[None] * (N + 1)


_differentiable("entropy", _entropy_backward, _keep_entropy)
_differentiable("draw", _head_backward, _keep_draw)
_differentiable("judge", _head_backward, _keep_judge)


# -- gradients of gradients --------------------------------------------------------------------------------------


def _refuse(ctx: Any, *gradients: Tensor) -> Any:
    raise NotImplementedError(
        "catnat's operators have no second derivative; the functions of catnat.torch have, outside of torch.compile"
    )


for _name in ("pull", "pull_path", "pull_head"):
    _differentiable(_name, _refuse, lambda ctx, inputs, output: None)
