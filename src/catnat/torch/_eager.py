"""The tree walked in plain tensor code: the reference on every device, and what compilers and transforms see.

Two linear maps are all there is. *Descend* sums what is written on the branches along every path; *ascend* sums what is
written on the classes below every branch. The balanced heap is walked level by level, since its levels are contiguous.
Any other tree is walked by pointer doubling: log2(depth) gathers, so that a chain of thousands of nodes is no loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from catnat.torch._node import log_branch, log_branches, probability
from catnat.torch._plan import Plan, at_nodes

# Trees deeper than this are sampled by tossing all coins at once instead of walking.
MAX_STEPS = 64

# -- the two maps ------------------------------------------------------------------------------------------------


def descend(left: Tensor, right: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """Sum along every path what stands on the branches.

    Args:
        left: [..., K-1] what stands on every node's left branch.
        right: [..., K-1] likewise on the right.
        plan: the tree.

    Returns:
        The sums down to every class [..., K] and down to every node [..., K-1].
    """
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
    return classes, torch.cat(nodes, -1)


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
    return descend(*log_branches(x, plan), plan)[0]


def log_path(x: Tensor, index: Tensor, plan: Plan) -> Tensor:
    """log p of classes from the scores on their paths alone.

    Args:
        x: [R, K-1] scores.
        index: [R] one class a row, or [R, M] several.
        plan: the tree and the activation.

    Returns:
        As ``index``.
    """
    if plan.num_classes == 1:
        return x.new_zeros(index.shape) + x.sum(-1).reshape(-1, *[1] * (index.dim() - 1))
    if plan.short_paths:
        return _log_short_path(x, index, plan)
    nodes, turns_right, on_path = _paths(index, plan)  # [R, (M,) depth]
    picked = torch.gather(x, 1, nodes.flatten(1)).view(nodes.shape)
    terms = log_branch(picked, turns_right, plan, nodes)
    return (terms if on_path is None else torch.where(on_path, terms, 0.0)).sum(-1)


def _log_short_path(x: Tensor, index: Tensor, plan: Plan) -> Tensor:
    """The same in few operations, with each step's sign and offset from a table by class."""
    single = index.dim() == 1
    flat = index if single else index.reshape(-1)
    _, signs, picked = pick_path(x, index, flat, plan)
    if not plan.even:
        picked = torch.where(signs != 0, picked, 0.0)
    if plan.natural is None:
        taken = picked * signs
        if plan.path_offsets is not None:
            taken = taken + _by_class(plan.path_offsets, flat)
        terms = F.logsigmoid(taken)
    else:
        least = plan.margin * plan.angle
        angles = path_angles(picked, signs, flat, plan)
        terms = F.hardtanh(angles, least, math.pi / 2 - least).sin().log()  # of log sin^2; the 2 is below
    if not plan.even:
        terms = torch.where(signs != 0, terms, 0.0)
    total = terms.sum(1)
    if plan.natural is not None:
        total = 2 * total
    return total if single else total.view(index.shape)


def pick_path(x: Tensor, index: Tensor, classes: Tensor, plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
    """The steps to every class of ``index``, flat in ``classes``: nodes, signs and scores, [R * M, depth] each."""
    assert plan.path_nodes is not None and plan.path_signs is not None
    nodes, signs = plan.path_nodes.index_select(0, classes), plan.path_signs.index_select(0, classes)
    if index.dim() == 1:  # in eager mode even a view has its price
        return nodes, signs, torch.gather(x, 1, nodes)
    return nodes, signs, torch.gather(x, 1, nodes.view(x.shape[0], index.shape[1] * plan.depth)).view(signs.shape)


def path_angles(picked: Tensor, signs: Tensor, classes: Tensor, plan: Plan) -> Tensor:
    """For the natural activation: the angle between every score and the end where its branch has probability 0."""
    assert plan.path_offsets is not None and plan.path_rests is not None
    distances = torch.addcmul(_by_class(plan.path_offsets, classes), picked, signs)
    return torch.add(_by_class(plan.path_rests, classes), distances, alpha=plan.angle)


def _by_class(table: Tensor, classes: Tensor) -> Tensor:
    return table.index_select(0, classes) if table.dim() == 2 else table


def _paths(index: Tensor, plan: Plan) -> tuple[Tensor, Tensor, Tensor | None]:
    """Zero-based nodes, turns and, where paths differ in length, which steps count: [..., depth] each."""
    if plan.path_nodes is not None and plan.path_signs is not None:
        flat = index.reshape(-1)  # index_select: it refuses what is out of range
        nodes, signs = plan.path_nodes.index_select(0, flat), plan.path_signs.index_select(0, flat)
        nodes, signs = nodes.view(*index.shape, plan.depth), signs.view(*index.shape, plan.depth)
        return nodes, signs > 0, None if plan.even else signs != 0
    assert plan.is_heap  # other trees this large have no short paths
    places = (index + plan.num_classes).unsqueeze(-1)
    nodes = places >> plan.shifts
    turns_right = ((places >> (plan.shifts - 1)) & 1).bool()
    return (nodes - 1).clamp(min=0), turns_right, None if plan.even else nodes > 0


# -- sampling ----------------------------------------------------------------------------------------------------


class Coins:
    """How every node's coin falls: right where the right branch's probability exceeds a uniform number."""

    def __init__(self, right: Tensor) -> None:
        self.right = right  # [..., K-1]

    def mint(self, uniforms: Tensor) -> Tensor:
        """Uniforms in [0, 1) as what `toss` compares with; done once for all."""
        return uniforms

    def toss(self, minted: Tensor, nodes: Tensor | None) -> Tensor:
        """Which coins fall right: at zero-based nodes [..., M] of every row or, for None, at all [..., 1, K-1]."""
        return minted < row_values(self.right, nodes)


class ScoreCoins(Coins):
    """Coins by the scores themselves: a is monotone, so u < a(s) is asked as s - C > a^-1(u), with no a on the way."""

    def __init__(self, x: Tensor, plan: Plan) -> None:
        self.centered = plan.centered and plan.num_nodes > 64  # else shift the whole row at once
        super().__init__(x - plan.center if plan.centered and not self.centered else x)
        self.plan = plan

    def mint(self, uniforms: Tensor) -> Tensor:
        """a^-1 of the uniforms."""
        natural = self.plan.natural
        if natural is None:
            return torch.logit(uniforms)
        turns = (torch.atan2(uniforms.sqrt(), (1 - uniforms).sqrt()) - torch.pi / 4) / self.plan.angle
        turns = torch.where(uniforms < natural.floor, -torch.inf, turns)  # a is never less than its floor
        return torch.where(uniforms >= 1 - natural.floor, torch.inf, turns)

    def toss(self, minted: Tensor, nodes: Tensor | None) -> Tensor:
        """Which scores lie above."""
        x = row_values(self.right, nodes)
        if self.plan.natural is not None:
            x = x.clamp(torch.finfo(x.dtype).min, torch.finfo(x.dtype).max)  # an infinite score is on its floor too
        return (x - at_nodes(self.plan.center, nodes) if self.centered else x) > minted


def coins_of(x: Tensor, plan: Plan) -> Coins:
    """The coins of a row of scores, looked at only where the walk comes by."""
    if plan.natural is not None and plan.natural.saturation == "reflect":  # not monotone
        return Coins(probability(x, plan))
    return ScoreCoins(x, plan)


def row_values(values: Tensor, nodes: Tensor | None) -> Tensor:
    """Values [..., K-1] at zero-based nodes [..., M] of every row, or at all of them: [..., 1, K-1]."""
    return values.unsqueeze(-2) if nodes is None else torch.gather(values, -1, nodes)


def _uniforms(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform numbers in [0, 1)."""
    # not generator=None: compilers take that word with sizes that are known only
    source = {} if generator is None else {"generator": generator}
    return torch.rand(tuple(shape), dtype=like.dtype, device=like.device, **source)  # type: ignore[call-overload]


def draw(coins: Coins, shape: Sequence[int], plan: Plan, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw classes of the given shape [..., M]: toss a coin at every node of one path, from the root down."""
    if plan.num_classes == 1:
        return torch.zeros(tuple(shape), dtype=torch.int64, device=like.device)
    if plan.depth > MAX_STEPS:
        return _draw_deep(coins, shape, plan, like, generator)
    uniforms = _uniforms((plan.depth, *shape), like, generator)
    place = torch.ones(tuple(shape), dtype=torch.int64, device=like.device)
    for step, minted in enumerate(coins.mint(uniforms)):
        node = place if plan.is_heap else plan.node_at[place]
        # some paths end early; in the heap only before the last step
        inside = None
        if not plan.even and (step == plan.depth - 1 or not plan.is_heap):
            inside = (node < plan.num_classes) & (node > 0)
            node = torch.where(inside, node, 1)
        below = 2 * node + coins.toss(minted, node - 1)
        place = below if inside is None else torch.where(inside, below, place)
    return place - plan.num_classes if plan.is_heap else plan.class_at[place]


def _draw_deep(
    coins: Coins, shape: Sequence[int], plan: Plan, like: Tensor, generator: torch.Generator | None
) -> Tensor:
    """Toss every node's coin at once, then follow the arrows by pointer doubling: no loop over a long chain."""
    uniforms = _uniforms((*shape, plan.num_nodes), like, generator)
    right = coins.toss(coins.mint(uniforms), None).long()  # [..., M, K-1]
    below = 2 * torch.arange(1, plan.num_classes, device=like.device) + right
    arrow = torch.arange(2 * plan.num_classes, device=like.device).expand((*shape, -1)).clone()
    arrow[..., plan.node_places[1:]] = below  # a class points at itself
    for _ in range(plan.depth.bit_length()):
        arrow = torch.gather(arrow, -1, arrow)
    return plan.class_at[arrow[..., 1]]
