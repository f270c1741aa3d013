"""What the public functions share: each picks the walk that fits, with masks applied.

This is the one door through which faster walks come in: kernels on a GPU; compiled loops or hand-written passes on a
CPU in eager mode; plain tensor code anywhere else. Everything here takes prepared scores [..., K-1] and a plan.
"""

from __future__ import annotations

import torch
from torch import Tensor

from catnat.torch import _eager, _gpu, compiled, fused, fused_path
from catnat.torch._node import log_branches
from catnat.torch._inputs import check_index
from catnat.torch._masks import prune, renormalize
from catnat.torch._plan import Plan, takes_kernels


def _log_classes(x: Tensor, plan: Plan) -> Tensor:
    if takes_kernels(x, plan):
        return on_gpu.log_classes(x, plan)
    if compiled.applies(x, plan):
        return compiled.log_classes(x, plan)
    return fused.log_classes(x, plan) if fused.applies(x, plan) else eager.log_classes(x, plan)


def log_p(x: Tensor, plan: Plan, mask: Tensor | None, mask_mode: str) -> Tensor:
    """log p of every class: [..., K]."""
    if mask is None:
        return _log_classes(x, plan)
    if mask_mode == "renormalize":
        return renormalize(_log_classes(x, plan), mask)
    classes, _ = eager.descend(*prune(*log_branches(x, plan), mask, plan), plan)
    return torch.where(mask, classes, -torch.inf)


def p(x: Tensor, plan: Plan, mask: Tensor | None, mask_mode: str) -> Tensor:
    """p of every class: [..., K]."""
    if mask is None and takes_kernels(x, plan):
        return on_gpu.classes(x, plan)
    return log_p(x, plan, mask, mask_mode).exp()


def looks_up(x: Tensor, plan: Plan) -> bool:
    """Whether `log_prob` without a mask will itself refuse a class id that is out of range: by a table, or a kernel."""
    return takes_kernels(x, plan) or (plan.short_paths and x.device.type == "cpu")


def log_prob(x: Tensor, index: Tensor, plan: Plan, mask: Tensor | None, mask_mode: str) -> Tensor:
    """log p of ``index``, whose shape broadcasts with the batch of ``x``."""
    if torch.compiler.is_compiling():
        return _log_prob_unchecked(x, index, plan, mask, mask_mode)
    try:
        return _log_prob_unchecked(x, index, plan, mask, mask_mode)
    except IndexError:  # from the table of paths: say which one it was
        check_index(index, plan)
        raise


def _log_prob_unchecked(x: Tensor, index: Tensor, plan: Plan, mask: Tensor | None, mask_mode: str) -> Tensor:
    if index.dtype != torch.int64:
        index = index.long()
    # a mask needs the whole row; so does a tree too large for a table of its paths
    whole = mask is not None or not (plan.is_heap or plan.path_nodes is not None)
    if whole:
        x = log_p(x, plan, mask, mask_mode)  # [..., K] from here on
    if index.dim() == 1 and x.dim() == 2 and index.shape[0] == x.shape[0]:  # one class a row: nothing to arrange
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


def _pick(rows: Tensor, columns: Tensor, plan: Plan, whole: bool) -> Tensor:
    """log p of one class a row [R], or of several [R, M], from all log-probabilities or from the scores."""
    if whole:
        return torch.gather(rows, 1, columns if columns.dim() == 2 else columns.unsqueeze(1)).view(columns.shape)
    if takes_kernels(rows, plan):
        return on_gpu.log_path(rows, columns, plan)
    if fused_path.applies(rows, columns, plan):
        return fused_path.log_path(rows, columns, plan)
    return eager.log_path(rows, columns, plan)


def branches(x: Tensor, plan: Plan, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """log(1-a), log(a) and the log-probability of being reached, for every node, in the pruned tree."""
    left, right = log_branches(x, plan)
    if mask is not None:
        left, right = prune(left, right, mask, plan)
    return left, right, eager.descend(left, right, plan)[1]


def minus_p_log_p(log_p: Tensor) -> Tensor:
    """- p log p with value and gradient 0 at p = 0."""
    return -times_log(log_p.exp(), log_p)


def times_log(weight: Tensor, log_p: Tensor) -> Tensor:
    """weight * log p, 0 where the weight is 0 whatever log p is."""
    return weight * torch.where(weight == 0, 0.0, log_p)


def p_log_ratio(log_p: Tensor, log_q: Tensor) -> Tensor:
    """p log(p / q) with value and gradient 0 at p = 0."""
    dead = log_p == -torch.inf
    return torch.where(dead, 0.0, log_p).exp() * torch.where(dead, 0.0, torch.where(dead, 0.0, log_p) - log_q)
