"""The tree walked in plain tensor code: the judge on every device, and what compilers and transforms see.

Two linear maps are all there is. *Descend* sums what is written on the branches along every path; *ascend* sums what is
written on the classes below every branch. The balanced heap is walked level by level, since its levels are contiguous.
Any other tree is walked by pointer doubling: log2(depth) gathers, so that a chain of thousands of nodes is no loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from catnat.torch._compat import in_forward_mode, is_plain
from catnat.torch._node import log_branches, logit
from catnat.torch._plan import Plan

# Trees deeper than this are not walked coin by coin.
MAX_STEPS = 64

# -- the two maps ------------------------------------------------------------------------------------------------


def descend(left: Tensor, right: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """Sum along every path what stands on the branches [..., K-1]: down to every class [..., K] and every node."""
    if plan.num_classes == 1:
        return left.sum(-1, keepdim=True), left  # of nothing: 0, and still part of the graph
    if plan.is_heap:
        return _descend_heap(left, right, plan)
    branches = torch.stack((left, right), -1).flatten(-2)
    sums = F.pad(branches, (2, 0))  # [..., 2K] by place; the root and the place 0 above it add nothing
    for above in plan.jumps:
        sums = sums + sums[..., above]
    return sums[..., plan.class_places], sums[..., plan.node_places[1:]]


def _descend_heap(left: Tensor, right: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    here = torch.zeros_like(left[..., :1])  # the places of one level
    nodes, finished = [], None
    for low, high in plan.levels:
        width = high - low
        if here.shape[-1] > width:  # the last level: the places past its nodes are classes already
            here, finished = here[..., :width], here[..., width:]
        nodes.append(here)
        own = slice(low - 1, high - 1)
        here = torch.stack((here + left[..., own], here + right[..., own]), -1).flatten(-2)
    classes = here if finished is None else torch.cat((finished, here), -1)
    return classes if plan.order is None else classes[..., plan.order], torch.cat(nodes, -1)


def ascend(classes: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """Sum what stands on the classes below every branch: [..., K] to left and right sums, [..., K-1] each."""
    if plan.num_classes == 1:
        return classes[..., :0], classes[..., :0]
    if plan.is_heap:
        return _ascend_heap(classes, plan)
    sums = classes.new_zeros((*classes.shape[:-1], 2 * plan.num_classes))
    sums = sums.index_add(-1, plan.class_places, classes)
    for above in reversed(plan.jumps):
        sums = sums.index_add(-1, above, sums)
    return sums[..., 2::2], sums[..., 3::2]


def _ascend_heap(classes: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    if plan.class_of is not None:
        classes = classes[..., plan.class_of]
    low, high = plan.levels[-1]
    width = 2 * low - high  # classes that hang one level higher than the deepest
    finished, here = classes[..., :width], classes[..., width:]
    lefts, rights = [], []
    for low, high in reversed(plan.levels):
        left, right = here[..., 0::2], here[..., 1::2]
        lefts.append(left)
        rights.append(right)
        here = left + right
        if high < 2 * low:
            here = torch.cat((here, finished), -1)
    return torch.cat(lefts[::-1], -1), torch.cat(rights[::-1], -1)


# -- what the public functions are made of -----------------------------------------------------------------------


def log_classes(x: Tensor, plan: Plan) -> Tensor:
    """log p of every class: [..., K-1] to [..., K]."""
    return descend(*log_branches(logit(x, plan)), plan)[0]


def reach(x: Tensor, plan: Plan) -> Tensor:
    """The probability of passing through every node: [..., K-1]."""
    return descend(*log_branches(logit(x, plan)), plan)[1].exp()


def log_path(x: Tensor, index: Tensor, plan: Plan) -> Tensor:
    """log p of one class per row [R], or of several [R, M], from the scores [R, K-1] on their paths alone."""
    if plan.num_classes == 1:
        return x.new_zeros(index.shape) + x.sum(-1).reshape(-1, *[1] * (index.dim() - 1))
    nodes, turns_right, on_path = paths(index, plan)  # [R, (M,) depth]
    z = logit(torch.gather(x, 1, nodes.flatten(1)).view(nodes.shape), plan, nodes)
    terms = F.logsigmoid(torch.where(turns_right, z, -z))
    return (terms if on_path is None else torch.where(on_path, terms, 0.0)).sum(-1)


def joint_shape(index: Tensor, batch: torch.Size, called: str) -> torch.Size:
    """The shape that class ids have together with a batch of rows, which ``called`` names."""
    try:
        return torch.broadcast_shapes(index.shape, batch)
    except RuntimeError:
        raise ValueError(f"index must broadcast with {called}; got shape {tuple(index.shape)}") from None


def paths(index: Tensor, plan: Plan) -> tuple[Tensor, Tensor, Tensor | None]:
    """Zero-based nodes, turns and, where paths differ in length, which steps count: [..., depth] each."""
    if not plan.has_paths:  # there is no table: walk up from every class
        place, walked = plan.class_places.index_select(0, index.reshape(-1)).view(index.shape), []
        for _ in range(plan.depth):
            walked.append(place)
            place = plan.node_places[place >> 1].clamp(min=1)
        places = torch.stack(walked, -1)
        return ((places >> 1) - 1).clamp(min=0), (places & 1).bool(), places > 1
    if not plan.is_heap:
        assert plan.paths is not None
        steps = plan.paths.index_select(0, index.reshape(-1)).view((*index.shape, plan.depth))
        return (steps.abs() - 1).clamp(min=0), steps > 0, steps != 0
    # looked up, not added: a table refuses what is out of range, under transforms too
    places = plan.class_places.index_select(0, index.reshape(-1)).view(index.shape).unsqueeze(-1)
    nodes = places >> plan.shifts
    turns_right = ((places >> (plan.shifts - 1)) & 1).bool()
    return (nodes - 1).clamp(min=0), turns_right, None if plan.even else nodes > 0


def entropy(log_p: Tensor) -> Tensor:
    """Entropy in nats from the log-probabilities of all classes."""
    if is_plain(log_p) and not log_p.requires_grad and not in_forward_mode():  # the slope of entr is infinite at 0
        return torch.special.entr(log_p.exp()).sum(-1)
    return -times_log(log_p.exp(), log_p).sum(-1)


def times_log(weight: Tensor, log_p: Tensor) -> Tensor:
    """weight * log p, 0 where the weight is 0 whatever log p is."""
    return weight * torch.where(weight == 0, 0.0, log_p)


def p_log_ratio(log_p: Tensor, log_q: Tensor) -> Tensor:
    """p log(p / q) with value and gradient 0 at p = 0."""
    dead = log_p == -torch.inf
    alive = torch.where(dead, 0.0, log_p)
    return alive.exp() * torch.where(dead, 0.0, alive - log_q)


# -- sampling ----------------------------------------------------------------------------------------------------

LogitsAt = Callable[[Tensor], Tensor]  # z at zero-based nodes [..., M] of every row


def draw(
    logits_at: LogitsAt, shape: Sequence[int], plan: Plan, like: Tensor, generator: torch.Generator | None
) -> Tensor:
    """Draw classes [..., M], a coin per node of one path: it falls right where z exceeds a uniform's logit.

    Where a coin on the way is NaN the answer is K, which is no class. The tree is not deep.
    """
    place = torch.ones(tuple(shape), dtype=torch.int64, device=like.device)
    if plan.num_classes == 1:
        return torch.zeros_like(place)
    lost = torch.zeros_like(place, dtype=torch.bool)
    for step, threshold in enumerate(_uniforms((plan.depth, *shape), like, generator).logit()):
        node = place if plan.is_heap else plan.node_at[place]
        # some paths end early; in the heap only before the last step
        inside = None
        if not plan.even and (step == plan.depth - 1 or not plan.is_heap):
            inside = (node < plan.num_classes) & (node > 0)
            node = torch.where(inside, node, 1)
        z = logits_at(node - 1)
        below, is_lost = 2 * node + (z > threshold), z.isnan()
        place = below if inside is None else torch.where(inside, below, place)
        lost = lost | (is_lost if inside is None else inside & is_lost)
    return torch.where(lost, plan.num_classes, plan.class_at[place])


def draw_by_sums(log_p: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """Draw classes [..., M] by the sums of probabilities up to each: in a deep tree that is no longer than a path.

    A class of probability 0 is never drawn. Of a row with a NaN the answer is K, which is no class.
    """
    sums = log_p.double().exp().cumsum(-1)
    total = sums[..., -1:]
    # below the total, whatever is rounded: the first class whose sum is larger has a probability
    most = torch.nextafter(total, torch.zeros_like(total))
    uniforms = _uniforms((*log_p.shape[:-1], count), sums, generator)
    drawn = torch.searchsorted(sums, torch.minimum(uniforms * total, most), right=True)
    return torch.where(total.isnan(), log_p.shape[-1], drawn)


def _uniforms(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform numbers in [0, 1)."""
    # not generator=None: compilers take that word with sizes that are known only
    source = {} if generator is None else {"generator": generator}
    return torch.rand(tuple(shape), dtype=like.dtype, device=like.device, **source)  # type: ignore[call-overload]


def reduced(loss: Tensor, counted: Tensor, reduction: str) -> Tensor:
    """A loss for every row as the user wants it: ``counted`` is by how much every row counts."""
    if reduction == "none":
        return loss
    return loss.sum() / counted.sum() if reduction == "mean" else loss.sum()


def weighted(losses: Tensor, target: Tensor, ignored: int, weight: Tensor | None, reduction: str) -> Tensor:
    """The same where a row counts by its class's weight, and one of the class id ``ignored`` for nothing."""
    keep = target != ignored
    losses = torch.where(keep, losses, 0.0)
    if weight is None:
        return reduced(losses, keep, reduction)
    counted = torch.where(keep, weight[torch.where(keep, target, 0).long()], 0.0)
    return reduced(losses * counted, counted, reduction)
