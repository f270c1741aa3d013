"""From what a user passes to what the walks take: checks, dtypes, axes and masks, in one place."""

from __future__ import annotations

import operator

import torch
from torch import Tensor

from catnat.core import errors
from catnat.core.parameterization import ParameterizationLike
from catnat.torch._compat import assert_on_device, in_function_transform, is_plain
from catnat.torch._dispatch import plan_for, resolved, walk_for
from catnat.torch._plan import Plan
from catnat.torch._walk import Walk

INTEGERS = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def prepare(scores: Tensor, parameterization: ParameterizationLike, dim: int = -1) -> tuple[Tensor, Plan, torch.dtype]:
    """Scores with their classes' axis last, the plan to compute with, and the dtype to answer in.

    Scores of 16 bits may stay so: the walks compute in float32 all the same.
    """
    if not isinstance(scores, Tensor) or scores.dtype not in FLOATS or not scores.dim():
        check_scores(scores)
    x = scores if dim == -1 else to_last(scores, dim, "scores")
    width = operator.index(x.shape[-1])  # a number even where a compiler traces with symbolic shapes
    answer = scores.dtype
    sixteen_bits = answer is torch.float16 or answer is torch.bfloat16
    plan = plan_for(parameterization, torch.float32 if sixteen_bits else answer, x)
    if plan.num_nodes != width:
        errors.check_width(plan.num_classes, width, scores.shape, dim)
    if sixteen_bits and torch.is_autocast_enabled(scores.device.type):
        answer = torch.float32  # as torch.log_softmax on a GPU: losses want the digits
    if sixteen_bits and answer != scores.dtype:
        x = x.float()
    return x, plan, answer


def check_scores(scores: Tensor) -> None:
    """Raise unless ``scores`` is a floating-point tensor of at least one dimension."""
    if not isinstance(scores, Tensor):
        raise TypeError(f"scores must be a torch.Tensor; got {type(scores).__name__}")
    if scores.dtype not in FLOATS:
        names = ", ".join(str(kind).removeprefix("torch.") for kind in FLOATS)
        raise TypeError(f"scores must be floating point, one of {names}; got {scores.dtype}")
    errors.check_axis("dim", -1, scores.dim(), "scores")


def check_mask(mask: Tensor) -> None:
    """Raise unless ``mask`` is a boolean tensor."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        came = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"mask must be a boolean torch.Tensor, True where a class is allowed; got {came}")


def to_last(tensor: Tensor, dim: int, argument: str) -> Tensor:
    """``tensor`` with axis ``dim`` moved to the end."""
    errors.check_axis("dim", dim, tensor.dim(), argument)
    return tensor if dim in (-1, tensor.dim() - 1) else tensor.movedim(dim, -1)


def restore_dtype_and_dim(last: Tensor, dtype: torch.dtype, dim: int) -> Tensor:
    """The way back: a result whose classes are last, in the dtype and with the axes of what came."""
    if last.dtype != dtype:
        last = last.to(dtype)
    return last if dim == -1 or dim == last.dim() - 1 else last.movedim(-1, dim)


def prepare_mask(mask: Tensor | None, x: Tensor, plan: Plan, dim: int = -1) -> Tensor | None:
    """The mask with its classes' axis last, checked against prepared scores ``x``."""
    if mask is None:
        return None
    check_mask(mask)
    if mask.dim() not in (1, x.dim()) and dim not in (-1, x.dim() - 1):
        wanted = f"as many dimensions as the scores, {x.dim()}, or one, where dim is not the last"
        raise ValueError(f"mask must have {wanted}; got shape {tuple(mask.shape)}")
    moved = mask if mask.dim() == 1 else to_last(mask, dim, "mask")
    errors.check_classes("mask", plan.num_classes, int(moved.shape[-1]) if moved.dim() else 0, mask.shape)
    if moved.dim() > 1 and moved.shape[:-1] != x.shape[:-1]:
        try:
            torch.broadcast_shapes(moved.shape[:-1], x.shape[:-1])
        except RuntimeError:
            wanted = f"the scores' batch {tuple(x.shape[:-1])} with {plan.num_classes} classes"
            raise ValueError(f"mask must broadcast to {wanted}; got shape {tuple(mask.shape)}") from None
    if is_plain(moved):
        allowed = moved.any(-1)
        if moved.device.type != "cpu":
            assert_on_device(allowed.all())
        elif not allowed.all():
            raise errors.empty_mask_row((~allowed).nonzero()[0].tolist())
    return moved


def prepare_walk(
    scores: Tensor, parameterization: ParameterizationLike, mask: Tensor | None, dim: int = -1
) -> tuple[Walk, Tensor, Tensor | None, torch.dtype]:
    """The walk that answers, scores and mask with their classes' axis last, and the dtype to answer in."""
    x, plan, dtype = prepare(scores, parameterization, dim)
    mask = prepare_mask(mask, x, plan, dim)
    return walk_for(plan, x, mask), x, mask, dtype


def prepare_probs(
    probs: Tensor, parameterization: ParameterizationLike, dim: int, *, argument: str = "probs"
) -> tuple[Tensor, Plan, torch.dtype]:
    """Probabilities, or logits, with their classes' axis last; and of their scores what `prepare` gives."""
    if not isinstance(probs, Tensor) or probs.is_complex():
        raise TypeError(f"{argument} must be a torch.Tensor of numbers; got {getattr(probs, 'dtype', type(probs))}")
    last = to_last(probs if probs.is_floating_point() else probs.to(torch.get_default_dtype()), dim, argument)
    if last.shape[-1] == 0:
        raise ValueError(f"{argument} must hold at least one class along dim {dim}; got shape {tuple(probs.shape)}")
    errors.check_classes(argument, resolved(parameterization).num_classes, last.shape[-1], probs.shape)
    if is_plain(last) and last.device.type == "cpu":
        errors.check_masses(argument, last.detach().double().numpy())
    return last, *prepare(last[..., 1:], parameterization)[1:]


def check_index(index: Tensor, plan: Plan, argument: str = "index", ignored: int | None = None) -> None:
    """Raise, or assert on the device, unless every class id is in range, or is the one to be ignored."""
    check_integers(index, argument)
    if index.numel() == 0:
        return
    ids = index if ignored is None else torch.where(index == ignored, 0, index)
    if is_plain(index) and index.device.type == "cpu":
        low, high = torch.aminmax(ids)
        errors.check_index_range(plan.num_classes, int(low), int(high), argument)
    elif not in_function_transform():
        assert_on_device(((ids >= 0) & (ids < plan.num_classes)).all())


def check_class_weights(weight: Tensor, plan: Plan) -> None:
    """Raise unless ``weight`` holds one number per class."""
    if not isinstance(weight, Tensor):
        raise TypeError(f"weight must be a torch.Tensor, one number per class; got {type(weight).__name__}")
    errors.check_classes("weight", plan.num_classes, weight.shape[0] if weight.dim() == 1 else 0, weight.shape)


def check_integers(index: Tensor, argument: str) -> None:
    """Raise unless ``index`` is a tensor of integers."""
    if not isinstance(index, Tensor) or index.dtype not in INTEGERS:
        came = index.dtype if isinstance(index, Tensor) else type(index).__name__
        raise TypeError(f"{argument} must be an integer torch.Tensor of class ids; got {came}")


def check_temperature(temperature: float | Tensor, argument: str = "temperature") -> float | Tensor:
    """A temperature, or raise unless it is finite and above zero."""
    if not isinstance(temperature, Tensor):
        return errors.check_positive(argument, temperature)
    usable = ((temperature > 0) & temperature.isfinite()).all()
    if temperature.device.type != "cpu":
        assert_on_device(usable)
    elif is_plain(temperature) and not usable:
        raise ValueError(f"{argument} must be finite and above 0; got {temperature.detach()}")
    return temperature


def class_dim(scores: Tensor, target: Tensor, dim: int | None) -> int:
    """The classes' axis of a loss; the last, unless said, and an error where it may be torch's."""
    if dim is not None or not isinstance(scores, Tensor) or scores.dim() < 3:
        return -1 if dim is None else dim
    if target.shape == scores.shape[:1] + scores.shape[2:] and not target.is_floating_point():
        choice = "dim=-1 or dim=1" if target.shape == scores.shape[:-1] else "dim=1"
        where = f"may be the second, as in torch.nn.functional.cross_entropy: say {choice}"
        came = f"scores of shape {tuple(scores.shape)} and a target of shape {tuple(target.shape)}"
        raise ValueError(f"dim must be given where the classes' axis {where}; got {came}")
    return -1


def check_target_ids(target: Tensor, batch: torch.Size) -> None:
    """Raise unless ``target`` holds one class id a row."""
    check_integers(target, "target")
    if target.shape != batch:
        wanted = f"one class id a row, shape {tuple(batch)}, or floating-point probabilities"
        raise ValueError(f"target must hold {wanted}; got {target.dtype} of shape {tuple(target.shape)}")


def check_target_probs(target: Tensor, x: Tensor, plan: Plan, dim: int) -> Tensor:
    """Probabilities with their classes' axis last, or raise unless they fit prepared scores ``x``."""
    if target.shape == x.shape[:-1]:
        raise TypeError(f"target must hold integers if it holds class ids; got {target.dtype}")
    probs = to_last(target, dim, "target")
    errors.check_classes("target", plan.num_classes, probs.shape[-1], target.shape)
    errors.check_batch("target", probs.shape[:-1], x.shape[:-1])
    return probs
