"""log p of every class on a CPU in eager mode, with hand-written backward passes.

In eager mode every tensor operation costs a call and a pass over memory, so the plain walk is several times slower than
it need be. Here are the same values in as few operations as we could find, three ways by size (`results/` has the
measurements):

- *tiny* batches: a handful of built-in operations and one product with the path incidence matrix;
- *few classes*: the same product, with the elementwise part and its derivative written out;
- *the heap*: probabilities multiplied down the levels in place, one logarithm a class at the end. Where such a
  product would leave the range of the dtype, the plain walk in logarithms is taken instead.

Derivatives of higher order, function transforms, other devices and other trees go through `catnat.torch.eager`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from catnat.torch import eager
from catnat.torch.compat import in_forward_mode, is_plain, must_be_plain
from catnat.torch.plan import LEAST_PRODUCT, Plan

SMALL = 2048  # scores up to which calls cost more than arithmetic
LOG2_E = math.log2(math.e)
GRAIN = 32768  # elements from which torch spreads one operation over threads


def applies(x: Tensor, plan: Plan) -> bool:
    """Whether `log_classes` here may stand in for the plain walk, now and for this tensor."""
    return (
        plan.fusable
        and is_plain(x)
        and not in_forward_mode()
        # nothing may round the matrix products
        and not torch.is_autocast_enabled("cpu")
        and torch.get_float32_matmul_precision() == "highest"
        and x.numel() > 0
    )


def log_classes(x: Tensor, plan: Plan) -> Tensor:
    """log p of every class: [..., K-1] to [..., K]."""
    rows = x if x.dim() == 2 else x.reshape(-1, plan.num_nodes)
    small = x.numel() <= SMALL and plan.depth <= 8 and not plan.revives
    if not plan.has_incidence:
        classes = _Heap.apply(rows, plan)
    elif small and _all_finite(x.detach()):
        classes = _both(rows, plan)
    else:
        classes = _Incidence.apply(rows, plan)
    return classes if x.dim() == 2 else classes.reshape(*x.shape[:-1], plan.num_classes)


def _all_finite(x: Tensor) -> bool:
    """Whether a product with a matrix of zeros and ones is safe: infinity times 0 is NaN."""
    return math.isfinite(x.sum().item())  # an overflow of finite numbers only costs the shortcut


# -- small: built-in operations on both branches side by side ----------------------------------------------------


def _both(x: Tensor, plan: Plan) -> Tensor:
    both = torch.addmm(plan.both_offsets, x, plan.both_signs)  # [rows, 2K-2]
    if plan.natural is None:
        return F.logsigmoid(both) @ plan.both_incidence
    # hardtanh: a clamp whose backward is one kernel
    distances = F.hardtanh(both + plan.both_rests, plan.margin, plan.natural.amplitude - plan.margin)
    return (distances * plan.angle).sin().log() @ plan.both_incidence  # log sin^2: the 2 is in the matrix


# -- the elementwise part ----------------------------------------------------------------------------------------


def _is_above(x: Tensor, level: Tensor | float) -> Tensor:
    """1.0 where x > level, else 0.0: with lerp, a selection that does not branch."""
    return torch.gt(x, level, out=torch.empty_like(x))


def _tan(u: Tensor) -> Tensor:
    """tan on [0, pi/4]; in float32 by a Pade approximant (error 2e-8), twice as fast as the library's."""
    if u.dtype != torch.float32 or u.numel() <= SMALL:
        return u.tan()
    v = u * u
    numerator = (v - 105).mul_(v).add_(945).mul_(u)
    return numerator.div_(v.mul(15).sub_(420).mul_(v).add_(945))


class _Natural:
    """The natural activation at every score: what both directions need."""

    def __init__(self, x: Tensor, plan: Plan) -> None:
        to_upper = (plan.upper - x).add_(plan.upper_rest)
        to_lower = (x - plan.lower).sub_(plan.lower_rest)
        distance = torch.minimum(to_upper, to_lower)
        self.alive = _is_above(distance, plan.margin)
        self.tangent = _tan(distance.clamp_min_(plan.margin).mul_(plan.angle))
        self.upper = _is_above(to_lower, to_upper)  # whether the nearer end is the upper one, where a = 1

    def ratio(self) -> Tensor:
        """sqrt((1-a) / a)."""
        return self.tangent.reciprocal().lerp_(self.tangent, self.upper)


def _natural_gradient(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
    """d/ds from what stands below every branch: (pi/A) (sqrt((1-a)/a) right - sqrt(a/(1-a)) left)."""
    ratio, alive = ctx.saved_tensors[1:]
    plan: Plan = ctx.plan
    gradient = (ratio * right).sub_(left / ratio).mul_(2 * plan.angle)
    return gradient if plan.revives else gradient.mul_(alive)  # revival has its gate where the scores come in


def _save(ctx: Any, plan: Plan, *tensors: Tensor) -> None:
    ctx.plan = plan
    ctx.save_for_backward(*tensors)


def plain_backward(function: Callable[[Tensor], Any], x: Tensor, gradient: Any) -> Tensor:
    """The backward pass of plain tensor code at ``x``, open to differentiation and to transforms.

    ``function`` returns a tensor or several, and so is ``gradient``.
    """
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # a view of our own: the user's hooks on x must see this gradient once, not twice
        x = x.view_as(x) if again else x.detach().requires_grad_()
        return torch.autograd.grad(function(x), x, gradient, create_graph=again)[0]


def _plain_backward(ctx: Any, gradient: Tensor) -> Tensor:
    return plain_backward(lambda x: eager.log_classes(x, ctx.plan), ctx.saved_tensors[0], gradient)


# -- few classes: sums along paths by matrix products ------------------------------------------------------------


class _Incidence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: Plan) -> Tensor:
        many = x.numel() > GRAIN
        if plan.natural is None:
            if not _all_finite(x):
                _save(ctx, plan, x)
                return eager.log_classes(x, plan)
            z = x - plan.center if plan.centered else x
        else:
            natural = _Natural(x, plan)
            ratio = natural.ratio()
            _save(ctx, plan, x, ratio, natural.alive)
            z = ratio.log().mul_(-2)
        log_right = z.clamp(max=0)
        log_left = log_right - z  # min(-z, 0), exactly
        if plan.natural is not None:
            tail = natural.tangent.square_().log1p_()
        elif many:  # e^-|z|: exp2 is the faster one where torch spreads it over threads
            odds = (log_left + log_right).mul_(LOG2_E).exp2_()
            tail = odds.log1p()
            _save(ctx, plan, x, z, odds)
        else:
            tail = (log_left + log_right).exp_().log1p_()
        log_right.sub_(tail)
        log_left.sub_(tail)
        if plan.natural is None and not many:  # fewer calls than by z and odds to get a and 1-a back
            _save(ctx, plan, x, log_left, log_right)
        return torch.mm(log_left, plan.incidence_left).addmm_(log_right, plan.incidence_right)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, *saved = ctx.saved_tensors
        if not saved or must_be_plain(gradient):
            return _plain_backward(ctx, gradient), None
        plan: Plan = ctx.plan
        left, right = torch.mm(gradient, plan.left_incidence), torch.mm(gradient, plan.right_incidence)
        if plan.natural is not None:
            return _natural_gradient(ctx, left, right), None
        if x.numel() <= GRAIN:
            log_left, log_right = saved
            not_a, a = log_left.exp(), log_right.exp()
        else:
            z, odds = saved
            big = (odds + 1).reciprocal_()
            small = odds * big
            above = _is_above(z, 0.0)
            a, not_a = torch.lerp(small, big, above), big.lerp_(small, above)
        return not_a.mul_(right).addcmul_(a, left, value=-1), None


# -- the heap: products down the levels --------------------------------------------------------------------------


class _Heap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: Plan) -> Tensor:
        if plan.natural is None:
            z = x - plan.center if plan.centered else x
            a, not_a = z.sigmoid(), z.neg().sigmoid_()
            _save(ctx, plan, x, a, not_a)
        else:
            natural = _Natural(x, plan)
            _save(ctx, plan, x, natural.ratio(), natural.alive)
            square = natural.tangent.square_()
            big = (square + 1).reciprocal_()
            small = square.mul_(big)
            a, not_a = torch.lerp(small, big, natural.upper), big.lerp_(small, natural.upper)
        classes = _multiply_down(not_a, a, plan)
        if not classes.amin() > LEAST_PRODUCT[x.dtype]:  # also NaN
            return eager.log_classes(x, plan)
        return classes.log()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        if must_be_plain(gradient):
            return _plain_backward(ctx, gradient), None
        left, right = _sum_up(gradient, ctx.plan)
        if ctx.plan.natural is not None:
            return _natural_gradient(ctx, left, right), None
        _, a, not_a = ctx.saved_tensors
        return (not_a * right).addcmul_(a, left, value=-1), None


def _heap_views(
    buffer: Tensor, plan: Plan
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...], Tensor]:
    """Views of a [rows, 2K] buffer by place: every level's nodes, their left and right children, and the classes."""
    sizes = plan.level_sizes
    *nodes, classes = buffer.split_with_sizes([1, *sizes, plan.num_classes], 1)
    lefts = buffer[:, 0::2].split_with_sizes([1, *sizes], 1)
    rights = buffer[:, 1::2].split_with_sizes([1, *sizes], 1)
    return tuple(nodes[1:]), lefts[1:], rights[1:], classes


def _multiply_down(left: Tensor, right: Tensor, plan: Plan) -> Tensor:
    buffer = left.new_empty(left.shape[0], 2 * plan.num_classes)
    nodes, lefts, rights, classes = _heap_views(buffer, plan)
    buffer[:, 1] = 1
    branches = zip(left.split_with_sizes(plan.level_sizes, 1), right.split_with_sizes(plan.level_sizes, 1), strict=True)
    for node, to_left, to_right, (on_left, on_right) in zip(nodes, lefts, rights, branches, strict=True):
        torch.mul(node, on_left, out=to_left)
        torch.mul(node, on_right, out=to_right)
    return classes


def _sum_up(values: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    buffer = values.new_empty(values.shape[0], 2 * plan.num_classes)
    nodes, lefts, rights, classes = _heap_views(buffer, plan)
    classes.copy_(values)
    for node, from_left, from_right in zip(reversed(nodes), reversed(lefts), reversed(rights), strict=True):
        torch.add(from_left, from_right, out=node)
    return buffer[:, 2::2], buffer[:, 3::2]
