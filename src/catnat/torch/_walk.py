"""A walk: one parameterization's answers to everything that users ask of scores, here in plain tensor code.

This is the judge on every device, and what compilers, exporters and transforms see. The fast walks are subclasses: they
answer some of it by themselves and leave the rest to this one. Scores are [..., K-1] from `_inputs.prepare`, masks
broadcast with their batch, and class ids are int64.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.compiler import is_compiling

from catnat.core.errors import nan_scores
from catnat.torch import _eager, _masks
from catnat.torch._compat import in_function_transform, is_plain
from catnat.torch._node import logit
from catnat.torch._plan import Plan

Generator = torch.Generator | None
Tensors = tuple[Tensor, ...]
SMALL_ROW, SMALL_BATCH = 64, 4096  # classes, and scores: up to there all classes cost no more than a path on a CPU
SMALL_RACE = 1 << 18  # numbers that draws may race with


class Walk:
    """The interface, and all of it in plain tensor code."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def traced_plan(self) -> Plan:
        """The plan as a compiler's walk takes it."""
        return self.plan

    # -- every class -------------------------------------------------------------------------------------------

    def log_probs(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """log p of every class: [..., K]."""
        return _masks.log_classes(_widened(x), self.plan, mask)

    def probs(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """p of every class: [..., K]."""
        return torch.softmax(self.log_probs(x, mask), -1)  # not exp: of equal classes it is exactly 1/K

    # -- one class per row -------------------------------------------------------------------------------------

    def log_prob(self, x: Tensor, index: Tensor, mask: Tensor | None = None) -> Tensor:
        """log p of ``index``, whose shape broadcasts with the batch of ``x``."""
        index = refusable(index.long(), self.plan)
        # a mask needs the whole row; so does a tree too large for a table of its paths
        whole = mask is not None or not self.plan.has_paths or _fuses_wrongly(x, self.plan)
        if whole:
            x = self.log_probs(x, mask)  # [..., K] from here on
        if index.dim() == 1 and x.dim() == 2 and index.shape[0] == x.shape[0]:  # one class per row: nothing to arrange
            return gathered(x, index) if whole else self.log_path(x, index)
        batch, extra = x.shape[:-1], index.dim() - (x.dim() - 1)
        if extra < 0 or index.shape[extra:] != batch:
            shape = _eager.joint_shape(index, batch, f"the scores' batch {tuple(batch)}")
            x, index, extra = x.expand((*shape, -1)), index.expand(shape), 0
        rows = x.unsqueeze(0).flatten(0, -2)  # by no shape: those of subclasses may be plain tuples
        # samples go last, so that a row's gradient is one row however many samples it has
        samples = index.unsqueeze(0).flatten(0, extra).movedim(0, -1)
        columns = samples.unsqueeze(0).flatten(0, -2) if extra else None
        ids = index.reshape(-1) if columns is None else columns
        found = gathered(rows, ids) if whole else self.log_path(rows, ids)
        return (found if columns is None else found.movedim(-1, 0)).reshape(index.shape)

    def log_path(self, rows: Tensor, ids: Tensor) -> Tensor:
        """log p of one class per row [R], or of several [R, M], from scores [R, K-1]."""
        return _eager.log_path(_widened(rows), ids, self.plan)

    def loss(self, x: Tensor, target: Tensor, ignored: int, weight: Tensor | None, reduction: str) -> Tensor:
        """- log p of one class per row [...], 0 for the class id ``ignored``; then the mean over rows that count."""
        keep = target != ignored
        ids = torch.where(keep, target, 0).long()
        loss = -self.log_prob(x, ids)
        if weight is None:
            return _eager.reduced(torch.where(keep, loss, 0.0), keep, reduction)
        counted = torch.where(keep, weight[refusable(ids, self.plan)], 0.0)
        return _eager.reduced(torch.where(keep, loss, 0.0) * counted, counted, reduction)

    # -- a row -------------------------------------------------------------------------------------------------

    def entropy(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Entropy in nats: [...]."""
        return _eager.entropy(*_masks.branches(_widened(x), self.plan, mask), self.plan)

    def kl_divergence(self, p: Tensor, q: Tensor, mask: Tensor | None = None) -> Tensor:
        """KL(p || q) in nats: [...]."""
        sides = [_masks.branches(_widened(x), self.plan, mask) for x in (p, q)]
        return _eager.kl_divergence(sides[0], sides[1], self.plan)

    # -- drawn classes -----------------------------------------------------------------------------------------

    def sample(self, x: Tensor, count: int, generator: Generator, mask: Tensor | None = None) -> Tensor:
        """[count, ...] draws.

        Which noise is drawn depends on sizes and on the kind of device alone, never on which walk runs: so one seed
        gives the same draws with and without compiled code.
        """
        plan = self.plan
        if self.races(x, count):
            log_p = self.log_probs(x, mask).detach()
            return known(_eager.exponential_race(log_p, count, generator), plan.num_classes)
        x = _widened(x)
        if mask is not None:
            batch = torch.broadcast_shapes(x.shape[:-1], mask.shape[:-1])
            x, mask = x.expand((*batch, -1)), mask.expand((*batch, -1))
        if plan.depth > _eager.MAX_STEPS:
            drawn = _eager.draw_by_sums(_masks.log_classes(x, plan, mask), count, generator)
        else:
            if mask is not None:
                left, right = _masks.branches(x, plan, mask)
                x = right - left  # where one branch is dead the other's log-probability is 0, never NaN

            def logits_at(nodes: Tensor) -> Tensor:
                at = torch.gather(x, -1, nodes)
                return at if mask is not None else logit(at, plan, nodes)

            drawn = _eager.draw(logits_at, (*x.shape[:-1], count), plan, x, generator)
        return known(drawn.movedim(-1, 0), plan.num_classes)

    def draw(self, x: Tensor, index: Tensor | None, generator: Generator, mask: Tensor | None = None) -> Tensors:
        """A class per row, drawn or given, its log p and the row's entropy."""
        if index is None:
            with torch.no_grad():
                index = self.sample(x, 1, generator, mask).squeeze(0)
        return index, self.log_prob(x, index, mask), self.entropy(x, mask)

    def mode(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The likeliest class of every row, the first of several."""
        best, found = self.log_probs(x, mask).max(-1)
        return known(torch.where(best.isnan(), self.plan.num_classes, found), self.plan.num_classes)

    def is_small(self, x: Tensor) -> bool:
        """Whether all classes cost no more than a path."""
        return x.device.type == "cpu" and (self.plan.num_classes <= SMALL_ROW or x.numel() <= SMALL_BATCH)

    def races(self, x: Tensor, count: int) -> bool:
        """Whether draws are a race of all classes, not a walk down the tree."""
        traces = is_compiling() or in_function_transform()
        return self.is_small(x) and count * x.numel() <= SMALL_RACE and not traces


def known(drawn: Tensor, num_classes: int) -> Tensor:
    """Classes that were drawn, or an error where one is K: its scores were NaN. Where that cannot be seen, K stays."""
    if drawn.device.type == "cpu" and is_plain(drawn) and drawn.numel() and int(drawn.max()) == num_classes:
        raise nan_scores((drawn == num_classes).nonzero()[0].tolist())
    return drawn


def refusable(index: Tensor, plan: Plan) -> Tensor:
    """Class ids of which a table refuses those out of range: what compilers make of one counts from the end, too."""
    return torch.where(index < 0, plan.num_classes, index) if is_compiling() else index


def _widened(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def gathered(rows: Tensor, ids: Tensor) -> Tensor:
    """One entry of every row [R, K], or several."""
    return torch.gather(rows, 1, ids if ids.dim() == 2 else ids.unsqueeze(1)).view(ids.shape)


def _fuses_wrongly(x: Tensor, plan: Plan) -> bool:
    """Whether PyTorch's compiler is at work for a CPU on a tree that is no heap.

    There Inductor (2.13) fuses the gradients of a path and of a whole row, of the entropy say, into one loop, and the
    gradient is wrong. Without fusion (`max_fusion_size=1`) it is right. Whole rows alone are not fused so.
    """
    return is_compiling() and not plan.is_heap and x.device.type == "cpu"
