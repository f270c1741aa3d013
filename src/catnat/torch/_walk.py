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
        return _masks.log_classes(at_least_single(x), self.plan, mask)

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
        ids = index.flatten(0, extra - 1).movedim(0, -1).unsqueeze(0).flatten(0, -2) if extra else index.reshape(-1)
        found = gathered(rows, ids) if whole else self.log_path(rows, ids)
        return (found.movedim(-1, 0) if extra else found).reshape(index.shape)

    def log_path(self, rows: Tensor, ids: Tensor) -> Tensor:
        """log p of one class per row [R], or of several [R, M], from scores [R, K-1]."""
        return _eager.log_path(at_least_single(rows), ids, self.plan)

    def loss(self, x: Tensor, target: Tensor, ignored: int, weight: Tensor | None, reduction: str) -> Tensor:
        """- log p of one class per row [...], 0 for the class id ``ignored``; then the mean over rows that count."""
        losses = -self.log_prob(x, torch.where(target != ignored, target, 0))
        return _eager.weighted(losses, target, ignored, weight, reduction)

    # -- a row -------------------------------------------------------------------------------------------------

    def entropy(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Entropy in nats: [...]."""
        return _eager.entropy(self.log_probs(at_least_single(x), mask))

    def kl_divergence(self, p: Tensor, q: Tensor, mask: Tensor | None = None) -> Tensor:
        """KL(p || q) in nats, that of every coin times the probability of its toss: [...]."""
        ours, theirs = (_masks.branches(at_least_single(x), self.plan, mask) for x in (p, q))
        reached = _eager.descend(*ours, self.plan)[1]
        # a coin that is never tossed counts for nothing, be it infinitely off
        never = reached == -torch.inf
        sides = ([torch.where(never, 0.0, side) for side in pair] for pair in zip(ours, theirs, strict=True))
        left, right = (_eager.p_log_ratio(*pair) for pair in sides)
        coins = left + right
        # a coin that is infinitely off makes the sum so, however rarely it is tossed
        return torch.where(coins == torch.inf, coins, reached.exp() * coins).sum(-1)

    # -- drawn classes -----------------------------------------------------------------------------------------

    def sample(self, x: Tensor, count: int, generator: Generator, mask: Tensor | None = None) -> Tensor:
        """[count, ...] draws.

        Which noise is drawn depends on sizes and on the kind of device alone, never on which walk runs: so one seed
        gives the same draws with and without compiled code.
        """
        plan = self.plan
        if self.races(x, count):
            return self._raced(self.log_probs(x, mask), count, generator)
        x = at_least_single(x)
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

    def draw(
        self, x: Tensor, index: Tensor | None, generator: Generator, mask: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """A class per row, drawn or given, its log p and the row's entropy."""
        log_p = self.log_probs(at_least_single(x), mask)
        if index is None and self.races(x, 1):
            index = self._raced(log_p, 1, generator)[0]
        elif index is None:
            with torch.no_grad():
                index = self.sample(x, 1, generator, mask)[0]
        own = log_p.gather(-1, refusable(index.long(), self.plan).unsqueeze(-1)).squeeze(-1)
        return index, own, _eager.entropy(log_p)

    def mode(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The likeliest class of every row, the first of several."""
        best, found = self.log_probs(x, mask).max(-1)
        return known(torch.where(best.isnan(), self.plan.num_classes, found), self.plan.num_classes)

    def is_small(self, x: Tensor) -> bool:
        """Whether all classes cost no more than a path."""
        return x.device.type == "cpu" and (self.plan.num_classes <= SMALL_ROW or x.numel() <= SMALL_BATCH)

    def _raced(self, log_p: Tensor, count: int, generator: Generator) -> Tensor:
        """[count, ...] draws: the class that comes first, if each takes an exponential time at the rate p."""
        p = at_least_single(log_p.detach()).exp()
        times = torch.empty((count, *p.shape), dtype=p.dtype, device=p.device).exponential_(generator=generator)
        first, drawn = torch.where(p == 0, -1.0, p / times).max(-1)  # a class of probability 0 never does
        return known(torch.where(first.isnan(), self.plan.num_classes, drawn), self.plan.num_classes)

    def races(self, x: Tensor, count: int) -> bool:
        """Whether draws are a race of all classes, not a walk down the tree."""
        few = self.is_small(x) and count * x.numel() <= SMALL_RACE
        return few and not is_compiling() and not in_function_transform()


def known(drawn: Tensor, num_classes: int) -> Tensor:
    """Classes that were drawn, or an error where one is K: its scores were NaN. Where that cannot be seen, K stays."""
    if drawn.device.type == "cpu" and is_plain(drawn) and drawn.numel() and int(drawn.max()) == num_classes:
        raise nan_scores((drawn == num_classes).nonzero()[0].tolist())
    return drawn


def refusable(index: Tensor, plan: Plan) -> Tensor:
    """Class ids of which a table refuses those out of range: what compilers make of one counts from the end, too."""
    return torch.where(index < 0, plan.num_classes, index) if is_compiling() else index


def at_least_single(x: Tensor) -> Tensor:
    """Numbers in float32 or more; what is no tensor stays, for a check to refuse it."""
    return x.float() if getattr(x, "dtype", None) in (torch.float16, torch.bfloat16) else x


def gathered(rows: Tensor, ids: Tensor) -> Tensor:
    """One entry of every row [R, K], or several."""
    return torch.gather(rows, 1, ids if ids.dim() == 2 else ids.unsqueeze(1)).view(ids.shape)


def _fuses_wrongly(x: Tensor, plan: Plan) -> bool:
    """Whether PyTorch's compiler is at work for a CPU on a tree that is no heap.

    There Inductor (2.13) fuses the gradients of a path and of a whole row, of the entropy say, into one loop, and the
    gradient is wrong. Without fusion (`max_fusion_size=1`) it is right. Whole rows alone are not fused so.
    """
    return is_compiling() and not plan.is_heap and x.device.type == "cpu"
