"""log p of every class on a CPU in one compiled loop each way, where Numba is installed.

The loops (`catnat.torch.compiled_loops`) are compiled for this machine at the first call, in some seconds, and kept on
disk for later processes. They are for float32 and the balanced heap; anything else, and anybody without Numba, goes
through `catnat.torch.fused` or `catnat.torch.eager`.

Threads are not Numba's but PyTorch's own: its OpenMP library runs our loop as it runs PyTorch's. So
`torch.set_num_threads` holds here too, and two sets of threads do not fight for the cores.
"""

from __future__ import annotations

import ctypes
import math
import os
import warnings
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from catnat.torch import eager
from catnat.torch.compat import in_forward_mode, is_plain, must_be_plain, unwrap_if_dead
from catnat.torch.fused import plain_backward
from catnat.torch.plan import Plan

GRAIN = 8192  # scores from which a second thread is worth the call
PROCESS = os.getpid()  # OpenMP's threads do not live on in a forked child


def applies(x: Tensor, plan: Plan) -> bool:
    """Whether `log_classes` here may stand in for the plain walk, now and for this tensor."""
    return (
        is_plain(x)
        and not in_forward_mode()
        and x.dtype == torch.float32
        and x.numel() > 0
        and _program(plan) is not None
        and (x.numel() <= GRAIN or _enough_threads())
    )


def log_classes(x: Tensor, plan: Plan) -> Tensor:
    """log p of every class: [..., K-1] to [..., K]."""
    x = unwrap_if_dead(x)  # what has leaked from a function transform that is over
    rows = _in_memory(x if x.dim() == 2 else x.reshape(-1, plan.num_nodes))
    # without a graph to record, autograd costs more than the loop of a small batch
    classes = _apply(rows, plan) if rows.requires_grad and torch.is_grad_enabled() else _values(rows, plan)
    return classes if x.dim() == 2 else classes.reshape(*x.shape[:-1], plan.num_classes)


class _Compiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: Plan) -> Tensor:
        ctx.plan = plan
        ctx.save_for_backward(x)
        return _values(x, plan)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,), plan = ctx.saved_tensors, ctx.plan
        program = _program(plan)
        if program is not None and x.dtype == torch.float32 and not must_be_plain(gradient):
            scores, gradient = _in_memory(x), _in_memory(gradient)
            upstream = gradient.data_ptr()
            if upstream and program.backward:  # a tensor of zeros may have no memory
                out = torch.empty_like(scores)
                program.run(program.backward, scores, scores.data_ptr(), upstream, out)
                return out, None
        return plain_backward(lambda x: eager.log_classes(x, plan), x, gradient), None


# What stands before it in `apply` is for function transforms, and takes a tenth of the time of a small batch.
_apply = super(torch.autograd.Function, _Compiled).apply


def _values(x: Tensor, plan: Plan) -> Tensor:
    program, address = _program(plan), x.data_ptr()
    if program is None or address == 0:
        return eager.log_classes(x, plan)
    out = x.new_empty(x.size(0), plan.num_classes)
    program.run(program.forward, x, address, 0, out)
    return out


def _in_memory(x: Tensor) -> Tensor:
    """The same numbers in rows without gaps, none of them to be negated when read."""
    return x if x.is_contiguous() and not x.is_neg() else x.resolve_neg().contiguous()


# -- what is made once -------------------------------------------------------------------------------------------


class _Program:
    """A plan as the loops want it."""

    def __init__(self, plan: Plan, loops: Any) -> None:
        self._natural, self._nodes = plan.natural is not None, plan.num_nodes
        self._launch, self.forward = _launch(), _work(self._natural, False)
        self._chunk_rows = max(1, loops.CHUNK // plan.num_nodes)
        self._needs_scratch = plan.num_nodes > loops.CHUNK  # else the stack will do
        numbers, constants = [0.0, 0.0, 0.0], [plan.center]
        if plan.natural is not None:
            # `revive` has its gate where the scores come in: nothing is less than NaN, so no slope is 0
            numbers = [plan.margin, plan.angle, math.nan if plan.revives else plan.margin]
            constants = [plan.upper, plan.upper_rest, plan.lower, plan.lower_rest]
        # The loops take them one by one beside the scores of a chunk. If all nodes have the same, they start again
        # from the first at every chunk; else they go on, through the rows of a chunk or through a long row.
        same = all(len(c) == 1 for c in constants)
        stride = loops.CHUNK if same else self._chunk_rows * plan.num_nodes
        rows = [np.tile(c.numpy(), stride // len(c)) for c in constants]
        self._settings = np.concatenate([np.array(numbers), *rows], dtype=np.float32, casting="same_kind")
        self._task = (plan.num_classes, self._chunk_rows, self._settings.ctypes.data, stride, int(not same))

    @cached_property
    def backward(self) -> int:
        """The address of the loop for gradients, compiled when first asked for; 0 where that fails."""
        return _work(self._natural, True)

    def run(self, work: int, x: Tensor, address: int, upstream: int, out: Tensor) -> None:
        """Fill ``out`` with log p or, given the address of the classes' gradients, with the scores'."""
        rows, parallel, threads, scratch = x.size(0), 0, 1, 0
        if rows * self._nodes > GRAIN and os.getpid() == PROCESS:
            parallel, threads = _parallel(), min(torch.get_num_threads(), -(-rows // self._chunk_rows))
        if self._needs_scratch:
            room = x.new_empty(2 * self._nodes * threads)
            scratch = room.data_ptr()
        self._launch(parallel, work, threads, rows, address, upstream, out.data_ptr(), scratch, *self._task)


@lru_cache(maxsize=1024)
def _program(plan: Plan) -> _Program | None:
    """None where the loops have no form of a plan, or where there are no loops."""
    if not (plan.fusable and plan.is_heap and plan.center.dtype == torch.float32):
        return None
    loops = _loops()
    return _Program(plan, loops) if loops is not None and _work(plan.natural is not None, False) else None


@lru_cache
def _loops() -> Any:
    """The module with the loops; None where Numba is missing, or broken."""
    try:
        from catnat.torch import compiled_loops

        return compiled_loops
    except ImportError:
        return None
    except Exception as problem:
        _warn(problem)
        return None


def _warn(problem: Exception) -> None:
    warnings.warn(f"catnat's compiled loops cannot be used: Numba says {problem!r}", RuntimeWarning, stacklevel=2)


@lru_cache
def _launch() -> Any:
    """What starts a loop."""
    return _loops().compile_launch()


@lru_cache
def _work(natural: bool, backward: bool) -> int:
    """The address of a compiled loop, or 0."""
    try:
        _launch()
        return _loops().compile_work(natural, backward)
    except Exception as problem:
        _warn(problem)
        return 0


@lru_cache
def _parallel() -> int:
    """The address of OpenMP's own entry, in the library that PyTorch has loaded, or 0."""
    try:
        return ctypes.cast(ctypes.CDLL(torch._C.__file__).GOMP_parallel, ctypes.c_void_p).value or 0
    except (AttributeError, OSError, TypeError):
        return 0


def _enough_threads() -> bool:
    """Whether ours are not much fewer than PyTorch's: one compiled loop is as fast as three of its threads."""
    return _parallel() != 0 or torch.get_num_threads() <= 3
