"""The one door: which walk runs is asked here and nowhere else.

There are three. The GPU's kernels (`_gpu`) and the CPU's compiled walk (`_cpu`) serve plain eager calls, and the former
compilers too; plain tensor code (`_walk`) serves everything else, and the derivatives of higher order of all. The fast
ones are loaded when first needed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from catnat.core.caches import Kept
from catnat.core.parameterization import Parameterization, ParameterizationLike, numbered, resolve
from catnat.torch import _compat, _plan
from catnat.torch._compat import constant, is_plain, ordinary_tensors
from catnat.torch._plan import Plan
from catnat.torch._walk import Walk
from catnat.torch._wide import MAX_DEPTH, LinearWalk

# the GPU's, by its type of device once it is loaded, and a linear head's: compilers find classes only in globals
_KERNEL_WALK: dict[str, Any] = {}


def plan_for(parameterization: ParameterizationLike, dtype: torch.dtype, like: Tensor) -> Plan:
    """The plan of a parameterization for tensors like this one."""
    if is_compiling():  # it takes words and numbers for constants: `numbered` turns them back
        given: Any = parameterization.number if isinstance(parameterization, Parameterization) else parameterization
        return constant(_ready, given, dtype, like.device)
    if type(like) is not Tensor and (faking := _compat.fake_mode_of(like)) is not None:
        with faking:  # tensors without values want constants without values
            return _plan.Plan(resolve(parameterization), dtype, like.device)
    return _plan.find_plan(parameterization, dtype, like.device)


def resolved(parameterization: ParameterizationLike) -> Parameterization:
    """`resolve`, of which a compiler sees the result alone."""
    return parameterization if isinstance(parameterization, Parameterization) else constant(resolve, parameterization)


def walk_for(plan: Plan, x: Tensor, mask: Tensor | None = None) -> Walk:
    """The walk that serves these scores, and this mask of theirs, here and now."""
    if is_compiling():
        kernels = _KERNEL_WALK.get(x.device.type)
        transformed = _compat.in_function_transform() or _compat.in_forward_mode()
        if kernels is not None and not transformed and kernels.serves(plan, x, mask):
            return kernels(plan)
    elif not _compat.in_forward_mode() and is_plain(x) and (mask is None or (x.is_cpu and is_plain(mask))):
        return _WALKS[plan]
    return Walk(plan)


def _ready(given: Any, dtype: torch.dtype, device: torch.device) -> Plan:
    """A plan whose fast walk is loaded: while a compiler traces, nothing can be."""
    return _WALKS[_plan.find_plan(numbered(given), dtype, device)].traced_plan()


def _fast_walk(plan: Plan) -> Walk:
    """The walk for plain tensors of a plan's dtype, on its device."""
    walk: Walk | None = None
    with ordinary_tensors():  # its tables are kept, so they must be ordinary tensors
        if plan.center.device.type == "cpu":
            from catnat.torch import _cpu

            walk = _cpu.walk_of(plan)
            _KERNEL_WALK["cpu"] = _cpu.TracedWalk
        elif plan.bernoulli is not None:
            from catnat.torch._gpu import has_kernels

            if has_kernels(plan.center.device):
                from catnat.torch._gpu.autograd import KernelWalk

                _KERNEL_WALK["cuda"] = KernelWalk
                walk = KernelWalk(plan)
    return walk or Walk(plan)


_WALKS = Kept(lambda walk: walk.plan.nbytes, _fast_walk)  # by plan, those that serve plain tensors


# -- a linear head -----------------------------------------------------------------------------------------------

PATH_FROM = {"cpu": 2048, "cuda": 8192}  # classes; with fewer the scores of all nodes are as fast
ALIGNED_FROM, ALIGNED_ROWS = 8192, 256  # classes and rows; a small product is not worth a copy of the weights
MAX_CELLS = 1 << 31  # places in the kernels' tables


def linear_walk(pi: Parameterization, x: Tensor, weight: Tensor, bias: Tensor | None) -> LinearWalk:
    """The walk in plain tensor code that reads paths of a head [K-1, D] for rows of features [..., D]."""
    dtype = torch.float64 if torch.float64 in (x.dtype, weight.dtype) else torch.float32
    return LinearWalk(plan_for(pi, dtype, x), weight, bias)


def path_walk_for(pi: Parameterization, x: Tensor, weight: Tensor, bias: Tensor | None) -> LinearWalk | None:
    """The walk that reads one path per row; None where all scores are as fast."""
    if pi.num_classes < PATH_FROM.get(x.device.type, 2048):
        return None
    walk = linear_walk(pi, x, weight, bias)
    plan = walk.plan
    if plan.depth > MAX_DEPTH:
        return None
    tensors = [t for t in (x, weight, bias) if t is not None]
    if (
        x.device.type == "cuda"
        and plan.center.dtype == torch.float32
        and all(t.is_contiguous() for t in tensors[1:])
        and not _compat.in_forward_mode()
        and not _compat.in_function_transform()
        and x.shape[:-1].numel() * plan.depth < MAX_CELLS
        and (is_compiling() or all(map(is_plain, tensors)))
        and (tables := _kernel_tables(pi, x.device)) is not None
    ):
        return _KERNEL_WALK["linear"](plan, weight, bias, tables)
    return walk


def must_align(pi: Parameterization, x: Tensor, weight: Tensor) -> bool:
    """Whether a GPU's 16-bit matrix products, which want a multiple of eight outputs, have no fast path for K-1."""
    if pi.num_classes < ALIGNED_FROM or pi.num_classes % 8 == 1 or not (is_plain(x) and is_plain(weight) and x.is_cuda):
        return False
    short = weight.element_size() == 2 or (_compat.autocasts(x.device) and x.dtype != torch.float64)
    return short and x.numel() >= ALIGNED_ROWS * x.shape[-1]


def _kernel_tables(pi: Parameterization, device: torch.device) -> Any:
    """What the kernels of a linear head look up; None where there are none."""
    return constant(_numbered_tables, pi.number, device) if is_compiling() else _TABLES[pi, device]


def _numbered_tables(number: str, device: torch.device) -> Any:
    tables = _TABLES[numbered(number), device]
    return None if tables is None else tuple(tables)  # as for `Plan.nodes`


def _make_tables(key: tuple[Parameterization, torch.device]) -> Any:
    from catnat.torch._gpu import has_kernels

    if not has_kernels(key[1]):
        return None
    from catnat.torch._gpu import autograd, wide_launch

    _KERNEL_WALK["linear"] = autograd.KernelLinearWalk
    with ordinary_tensors():
        return wide_launch.wide_of(*key)


_TABLES = Kept(lambda tables: 0 if tables is None else 64 * tables.classes, _make_tables)
