"""The one door: which walk runs is asked here and nowhere else.

There are three. The GPU's kernels (`_gpu`) and the CPU's compiled walk (`_cpu`) serve plain eager calls, and the former
compilers too; `_eager` serves everything else, and the derivatives of higher order of all. The fast ones are loaded
when first needed. Everything here takes scores [..., K-1] from `_inputs.prepare` and a plan.
"""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from catnat.core.parameterization import ParameterizationLike, resolve
from catnat.torch import _eager, _masks, _plan
from catnat.torch._compat import fake_mode_of, in_forward_mode, in_function_transform, is_plain, plainly
from catnat.torch._plan import UNASKED, Plan

Tensors = tuple[Tensor, ...]


# The fast walks that are loaded, by name: a compiler takes a plan as a constant, and finds functions only in globals.
WALKS: dict[str, ModuleType] = {}


class Walk(NamedTuple):
    """A fast walk, by its name in `WALKS`, and what it can do beside rows of float32."""

    name: str
    compiles: bool  # a compiler can see it
    takes_half: bool  # it reads scores of 16 bits
    takes_masks: bool
    takes_order: bool  # it knows trees of the heap's shape whose classes stand in another order
    max_head: int  # classes up to which it has `entropy`, `draw` and `judge`


def plan_for(parameterization: ParameterizationLike, dtype: torch.dtype, like: Tensor) -> Plan:
    """The plan of a parameterization for tensors like this one."""
    if is_compiling():
        from catnat.torch._constant import constant

        return constant(_find, parameterization, dtype, like.device)
    faking = fake_mode_of(like)
    if faking is not None:  # tensors without values want constants without values
        with faking:
            return Plan(resolve(parameterization), dtype, like.device)
    return _find(parameterization, dtype, like.device)


def wide_plan_for(parameterization: ParameterizationLike, dtype: torch.dtype, like: Tensor) -> Plan:
    """The same for a linear head that reads one path, with the tables that its kernels need."""
    if is_compiling():
        from catnat.torch._constant import constant

        return constant(_find_wide, parameterization, dtype, like.device)
    if fake_mode_of(like) is not None:
        return plan_for(parameterization, dtype, like)
    return _find_wide(parameterization, dtype, like.device)


def _find_wide(parameterization: ParameterizationLike, dtype: torch.dtype, device: torch.device) -> Plan:
    plan = _find(parameterization, dtype, device)
    if plan.wide is UNASKED:
        plan.wide = None
        if device.type == "cuda" and dtype == torch.float32:
            from catnat.torch._gpu import autograd

            if autograd.has_kernels(device):
                from catnat.torch._gpu import wide_launch

                with plainly():
                    plan.wide = wide_launch.wide_of(plan.pi, device)
                WALKS["wide"] = wide_launch
    return plan


def _find(parameterization: ParameterizationLike, dtype: torch.dtype, device: torch.device) -> Plan:
    plan = _plan.find_plan(parameterization, dtype, device)
    if plan.fast is UNASKED:
        with plainly():  # its tables are kept, so they must be ordinary tensors
            plan.fast = _fast_walk(plan, dtype, device)
    return plan


def _fast_walk(plan: Plan, dtype: torch.dtype, device: torch.device) -> Walk | None:
    """The walk for a plan, with its settings in the plan; None where only the plain one will do."""
    if device.type == "cuda" and dtype == torch.float32:
        from catnat.torch._gpu import autograd

        plan.gpu = autograd.settings_for(plan.pi, device)
        WALKS["gpu"] = autograd
        return None if plan.gpu is None else Walk("gpu", True, True, False, False, 4096)
    if device.type == "cpu":
        from catnat.torch import _cpu, _whole

        plan.cpu = _cpu.settings_for(plan.pi, dtype)
        WALKS["cpu"] = _whole
        return None if plan.cpu is None else Walk("cpu", False, False, True, True, 1 << 62)
    return None


def _walk(x: Tensor, plan: Plan, mask: Tensor | None = None, head: bool = False) -> tuple[Walk | None, Tensor]:
    """The walk that may serve these scores now, None for the plain one; and the scores as it takes them."""
    walk: Walk | None = None if plan.fast is UNASKED else plan.fast
    if walk is not None and (
        in_forward_mode()
        or (mask is not None and not (walk.takes_masks and is_plain(mask)))
        or (head and plan.num_classes > walk.max_head)
        or not (walk.compiles and not in_function_transform() if is_compiling() else is_plain(x))
    ):
        walk = None
    if x.dtype in (torch.float16, torch.bfloat16) and not (walk is not None and walk.takes_half):
        x = x.float()
    return walk, x


# -- every class -------------------------------------------------------------------------------------------------


def log_p(x: Tensor, plan: Plan, mask: Tensor | None = None, mask_mode: str = "renormalize") -> Tensor:
    """log p of every class: [..., K]."""
    walk, x = _walk(x, plan, mask)
    masking = () if mask is None else (mask, mask_mode)
    if walk is not None:
        return _classes_in_order(WALKS[walk.name].log_classes(x, plan, *masking), walk, plan)
    return _masks.log_classes(x, plan, mask, mask_mode)


def p(x: Tensor, plan: Plan, mask: Tensor | None = None, mask_mode: str = "renormalize") -> Tensor:
    """p of every class: [..., K]."""
    walk, ready = _walk(x, plan, mask)
    if walk is not None and walk.takes_half and mask is None:
        return _classes_in_order(WALKS[walk.name].classes(ready, plan), walk, plan)
    return log_p(x, plan, mask, mask_mode).exp()


# -- one class per row -------------------------------------------------------------------------------------------


def log_prob(
    x: Tensor, index: Tensor, plan: Plan, mask: Tensor | None = None, mask_mode: str = "renormalize"
) -> Tensor:
    """log p of ``index``, whose shape broadcasts with the batch of ``x``."""
    index = index if index.dtype == torch.int64 else index.long()
    # a mask needs the whole row; so does a tree too large for a table of its paths
    whole = mask is not None or not plan.has_paths or _fuses_wrongly(x, plan)
    if whole:
        x = log_p(x, plan, mask, mask_mode)  # [..., K] from here on
    if index.dim() == 1 and x.dim() == 2 and index.shape[0] == x.shape[0]:  # one class per row: nothing to arrange
        return _pick(x, index, plan, whole)
    batch, extra = x.shape[:-1], index.dim() - (x.dim() - 1)
    if extra < 0 or index.shape[extra:] != batch:
        try:
            shape = torch.broadcast_shapes(index.shape, batch)
        except RuntimeError:
            came = tuple(index.shape)
            raise ValueError(f"index must broadcast with the scores' batch {tuple(batch)}; got shape {came}") from None
        x, index, extra = x.expand((*shape, -1)), index.expand(shape), 0
    rows = x.reshape(x.shape[:-1].numel(), x.shape[-1])
    if extra == 0:
        return _pick(rows, index.reshape(-1), plan, whole).reshape(index.shape)
    # samples go last, so that a row's gradient is one row however many samples it has
    samples = index.shape[:extra].numel()
    columns = index.reshape((samples, *batch)).movedim(0, -1).reshape(batch.numel(), samples)
    return _pick(rows, columns, plan, whole).movedim(-1, 0).reshape(index.shape)


def _fuses_wrongly(x: Tensor, plan: Plan) -> bool:
    """Whether PyTorch's compiler is at work for a CPU on a tree that is no heap.

    There Inductor (2.13) fuses the gradients of a path and of a whole row, of the entropy say, into one loop, and the
    gradient is wrong. Without fusion (`max_fusion_size=1`) it is right. Whole rows alone are not fused so.
    """
    return is_compiling() and not plan.is_heap and x.device.type == "cpu"


def _pick(rows: Tensor, columns: Tensor, plan: Plan, whole: bool) -> Tensor:
    """log p of one class per row [R], or of several [R, M], from all log-probabilities or from the scores."""
    if whole:
        return torch.gather(rows, 1, columns if columns.dim() == 2 else columns.unsqueeze(1)).view(columns.shape)
    walk, rows = _walk(rows, plan)
    if walk is not None:
        return WALKS[walk.name].log_path(rows, _ids_in_heap(columns, walk, plan), plan)
    return _eager.log_path(rows, columns, plan)


def cross_entropy(
    x: Tensor, target: Tensor, plan: Plan, ignore_index: int, weight: Tensor | None, reduction: str
) -> Tensor | None:
    """- log p of a class per row, reduced, in one piece; None where no walk has it so."""
    walk, x = _walk(x, plan)
    if walk is None or not (walk.takes_order or plan.order is None):
        return None
    return WALKS[walk.name].cross_entropy(x, target, plan, ignore_index, weight, reduction)


# -- a policy's head ---------------------------------------------------------------------------------------------


def classes_are_cheap(x: Tensor, plan: Plan) -> bool:
    """Whether all log-probabilities cost no more than a path: then one call of `log_p` serves for a whole policy."""
    if is_compiling() or plan.cpu is None:
        return False
    return WALKS[plan.fast.name].wants_all(x, plan) and _walk(x, plan)[0] is not None


def entropy(x: Tensor, plan: Plan, mask: Tensor | None = None, mask_mode: str = "renormalize") -> Tensor:
    """Entropy in nats: [...]."""
    walk, x = _walk(x, plan, mask, head=True)
    if walk is not None:
        return WALKS[walk.name].entropy(x, plan, *(() if mask is None else (mask, mask_mode)))
    return _eager.entropy(*_masks.branches(x, plan, mask, mask_mode), plan)


def kl_divergence(p: Tensor, q: Tensor, plan: Plan, q_plan: Plan, mask: Tensor | None, mask_mode: str) -> Tensor:
    """KL(p || q) in nats: [...]."""
    (_, p), (_, q) = _walk(p, plan, head=True), _walk(q, q_plan, head=True)
    p, q = (t.float() if t.element_size() < 4 else t for t in (p, q))
    sides = _masks.branches(p, plan, mask, mask_mode), _masks.branches(q, q_plan, mask, mask_mode)
    return _eager.kl_divergence(*sides, plan)


def sample(
    x: Tensor, count: int, plan: Plan, mask: Tensor | None, mask_mode: str, generator: torch.Generator | None
) -> Tensor:
    """[count, ...] draws."""
    if mask is not None:
        batch = torch.broadcast_shapes(x.shape[:-1], mask.shape[:-1])
        x, mask = x.expand((*batch, -1)), mask.expand((*batch, -1))
    walk, x = _walk(x, plan, mask)
    if walk is not None:
        masking = () if mask is None else (mask, mask_mode)
        return _ids_from_heap(WALKS[walk.name].sample(x, count, plan, generator, *masking), walk, plan)
    if mask is None:
        logits_at = _eager.logits_of_scores(x, plan)
    else:
        logits_at = _eager.logits_of_branches(*_masks.branches(x, plan, mask, mask_mode))
    return _eager.draw(logits_at, (*x.shape[:-1], count), plan, x, generator).movedim(-1, 0)


def head(
    x: Tensor,
    index: Tensor | None,
    plan: Plan,
    mask: Tensor | None,
    mask_mode: str,
    generator: torch.Generator | None,
) -> Tensors:
    """A class per row, drawn or given, its log p and the row's entropy."""
    walk, ready = _walk(x, plan, mask, head=True)
    if walk is not None:
        masking = () if mask is None else (mask, mask_mode)
        if index is None:
            own, found, index = WALKS[walk.name].draw(ready, plan, generator, *masking)
            return _ids_from_heap(index, walk, plan), own, found
        return index, *WALKS[walk.name].judge(ready, _ids_in_heap(index.long(), walk, plan), plan, *masking)
    if index is None:
        with torch.no_grad():
            index = sample(x, 1, plan, mask, mask_mode, generator).squeeze(0)
    return index, log_prob(x, index, plan, mask, mask_mode), entropy(x, plan, mask, mask_mode)


# -- classes in another order than the heap's --------------------------------------------------------------------


def _classes_in_order(classes: Tensor, walk: Walk, plan: Plan) -> Tensor:
    return classes if plan.order is None or walk.takes_order else classes.index_select(-1, plan.order)


def _ids_in_heap(index: Tensor, walk: Walk, plan: Plan) -> Tensor:
    return index if plan.order is None or walk.takes_order else plan.order[index]


def _ids_from_heap(index: Tensor, walk: Walk, plan: Plan) -> Tensor:
    return index if plan.class_of is None or walk.takes_order else plan.class_of[index]
