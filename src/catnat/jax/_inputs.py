"""From what a user passes to what the walks take: checks, dtypes, axes and masks, in one place.

Shapes and dtypes are checked always, values only where they are at hand: under a transformation nothing can be raised,
and on an accelerator a look at the values would wait for it. There an index out of range gives NaN.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from catnat.core import errors
from catnat.core.errors import check_classes
from catnat.core.parameterization import ParameterizationLike
from catnat.jax._compat import is_readable
from catnat.jax._dispatch import plan_for
from catnat.jax._plan import Plan
from catnat.jax._walk import Walk
from catnat.jax._wide import LinearWalk

DTYPES = ("float16", "bfloat16", "float32", "float64")


def prepare(
    scores: Array,
    parameterization: ParameterizationLike,
    mask: Array | None = None,
    axis: int = -1,
) -> tuple[Walk, Array, Array | None, np.dtype]:
    """The walk, scores and mask with the classes' axis last and in a dtype to compute in; the dtype to answer in."""
    scores = check_floating(scores, "scores")
    x = at_least_single(to_last(scores, axis, "scores"))
    plan = plan_for(parameterization, np.dtype(x.dtype))
    if plan.num_nodes != x.shape[-1]:
        errors.check_width(plan.num_classes, x.shape[-1], scores.shape, axis, called="axis")
    return Walk(plan), x, prepare_mask(mask, x, plan, axis), np.dtype(scores.dtype)


def prepare_linear(
    weight: Array, bias: Array | None, x: Array, parameterization: ParameterizationLike
) -> tuple[LinearWalk, Array, np.dtype]:
    """The walk of a linear layer, its input, and the dtype to answer in."""
    weight, x = check_floating(weight, "weight"), check_floating(x, "x")
    dtype = jnp.promote_types(weight.dtype, x.dtype)
    if weight.ndim != 2 or x.shape[-1] != weight.shape[1]:
        wanted = f"[num_classes - 1, width of x = {x.shape[-1]}]: a row a node"
        raise ValueError(f"weight must have shape {wanted}; got {weight.shape}")
    if bias is not None:
        bias = check_floating(bias, "bias")
        dtype = jnp.promote_types(dtype, bias.dtype)
        if bias.shape != weight.shape[:1]:
            raise ValueError(f"bias must have one number a row of weight, shape {weight.shape[:1]}; got {bias.shape}")
    plan = plan_for(parameterization, np.dtype(jnp.promote_types(dtype, jnp.float32)))
    if plan.num_nodes != len(weight):
        wanted = f"num_classes - 1 = {plan.num_nodes} rows for {plan.num_classes} classes"
        raise ValueError(f"weight must have {wanted}; got shape {weight.shape}")
    return LinearWalk(weight, bias, plan), x, np.dtype(dtype)


def at_least_single(values: Array) -> Array:
    """Values in float32 or more: what is made of many terms wants the digits."""
    return values.astype(jnp.float32) if values.dtype.itemsize < 4 else values


def check_floating(values: Array, argument: str) -> Array:
    """``values`` as an array of JAX's, or raise unless they have an axis and a dtype that we compute in."""
    values = as_array(values, argument)
    if not jnp.issubdtype(values.dtype, jnp.floating):
        raise TypeError(f"{argument} must be floating point; got {values.dtype}")
    if values.dtype.name not in DTYPES:
        raise TypeError(f"{argument} must be {', '.join(DTYPES[:-1])} or {DTYPES[-1]}; got {values.dtype}")
    errors.check_axis("axis", -1, values.ndim, argument)
    return values


def as_array(values: Array, argument: str) -> Array:
    """An array of JAX's from one, from NumPy's or from what wraps one (flax's parameters); lists are refused."""
    if not isinstance(values, (jax.Array, np.ndarray, np.generic)) and not hasattr(values, "__jax_array__"):
        raise TypeError(f"{argument} must be a jax.Array or a numpy.ndarray; got {type(values).__name__}")
    return jnp.asarray(values)


def check_key(key: Array) -> Array:
    """``key`` as an array of JAX's, or raise unless it is one random key, typed or raw; NumPy may hold a raw one."""
    is_array = isinstance(key, (jax.Array, np.ndarray))
    is_typed = is_array and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not is_array or key.ndim != (not is_typed) or not (is_typed or key.dtype == np.uint32):
        came = f"{key.dtype} of shape {key.shape}" if is_array else type(key).__name__
        raise TypeError(f"key, the first argument, must be one random key, as jax.random.key(0) makes it; got {came}")
    return jnp.asarray(key)


def check_shape(argument: str, shape: object) -> tuple[int, ...]:
    """``shape`` as a tuple, or raise unless it is a sequence of whole numbers."""
    try:
        return tuple(operator.index(n) for n in shape)  # type: ignore[attr-defined]
    except TypeError:
        raise TypeError(f"{argument} must be a tuple of whole numbers, as (100,); got {shape!r}") from None


def check_mask(mask: Array) -> Array:
    """``mask`` as an array of JAX's, or raise unless it is a boolean array."""
    return check_kind("mask", mask, np.bool_, "a boolean array, True where a class is allowed")


def to_last(array: Array, axis: int, argument: str) -> Array:
    """``array`` with ``axis`` moved to the end."""
    errors.check_axis("axis", axis, array.ndim, argument)
    return array if axis in (-1, array.ndim - 1) else jnp.moveaxis(array, axis, -1)


def to_axis(last: Array, axis: int) -> Array:
    """``last`` with its last axis moved to ``axis``."""
    return last if axis in (-1, last.ndim - 1) else jnp.moveaxis(last, -1, axis)


def prepare_mask(mask: Array | None, x: Array, plan: Plan, axis: int = -1) -> Array | None:
    """The mask with its classes' axis last, checked against prepared scores ``x``."""
    if mask is None:
        return None
    mask = check_mask(mask)
    if mask.ndim not in (1, x.ndim) and axis not in (-1, x.ndim - 1):
        wanted = f"as many dimensions as the scores, {x.ndim}, or one, where axis is not the last"
        raise ValueError(f"mask must have {wanted}; got shape {mask.shape}")
    moved = mask if mask.ndim == 1 else to_last(mask, axis, "mask")
    check_classes("mask", plan.num_classes, moved.shape[-1], mask.shape)
    try:
        np.broadcast_shapes(moved.shape[:-1], x.shape[:-1])
    except ValueError:
        wanted = f"the scores' batch {x.shape[:-1]} with {plan.num_classes} classes"
        raise ValueError(f"mask must broadcast to {wanted}; got shape {mask.shape}") from None
    if is_readable(moved) and not (allowed := np.asarray(moved).any(-1)).all():
        raise errors.empty_mask_row(np.argwhere(~allowed)[0].tolist())
    return moved


def prepare_where(where: Array | None, x: Array, plan: Plan, axis: int) -> tuple[Array | None, Array | None]:
    """optax's one argument as the classes that are allowed or the rows that count."""
    if where is None:
        return None, None
    where = check_kind("where", as_array(where, "where"), np.bool_, "a boolean array")
    if where.ndim == x.ndim:
        return prepare_mask(where, x, plan, axis), None
    errors.check_batch("where", where.shape, x.shape[:-1])
    return None, where


def prepare_probs(
    probs: Array, parameterization: ParameterizationLike, axis: int, argument: str
) -> tuple[Walk, Array, np.dtype]:
    """The walk; probabilities, or their logarithms, with their classes' axis last, checked; the dtype to answer in."""
    probs = check_floating(probs, argument)
    x = at_least_single(to_last(probs, axis, argument))
    plan = plan_for(parameterization, np.dtype(x.dtype))
    check_classes(argument, plan.num_classes, x.shape[-1], probs.shape)
    if is_readable(x) and x.size:
        errors.check_masses(argument, np.asarray(x))
    return Walk(plan), x, np.dtype(probs.dtype)


def prepare_class_weight(weight: Array | None, plan: Plan, argument: str) -> Array | None:
    """[K] a weight a class in the plan's dtype, checked."""
    if weight is None:
        return None
    weight = as_array(weight, argument)
    check_classes(argument, plan.num_classes, weight.shape[0] if weight.ndim == 1 else 0, weight.shape)
    return weight.astype(plan.dtype)


def check_index(index: Array, plan: Plan, argument: str = "index") -> Array:
    """``index`` as an array of JAX's; raise unless it holds integers and, where they are at hand, all in range."""
    index = check_integers(index, argument)
    if index.size and is_readable(index):
        values = np.asarray(index)
        errors.check_index_range(plan.num_classes, int(values.min()), int(values.max()), argument)
    return index


def check_integers(index: Array, argument: str) -> Array:
    """``index`` as an array of JAX's, or raise unless it holds integers.

    Of at least 32 bits: in fewer, the number of classes that it is compared with might have another value.
    """
    index = check_kind(argument, index, np.integer, "an integer array of class ids")
    return index.astype(jnp.int32) if index.dtype.itemsize < 4 else index


def check_kind(argument: str, values: Array, kind: Any, wanted: str) -> Array:
    """``values`` as an array of JAX's, or raise unless it is an array of numbers of this kind."""
    if not isinstance(values, (jax.Array, np.ndarray, np.generic)) or not jnp.issubdtype(values.dtype, kind):
        raise TypeError(f"{argument} must be {wanted}; got {getattr(values, 'dtype', type(values).__name__)}")
    return jnp.asarray(values)


def check_number(argument: str, value: Array | float, check: Callable[[str, float], float]) -> Array | float:
    """``value``, checked where it is at hand: it may be an array, one that changes inside a jitted step too."""
    if not isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return check(argument, value)
    if is_readable(value):
        for number in np.asarray(value, np.float64).ravel().tolist():
            check(argument, number)
    return value


def class_axis(scores: Array, labels: Array, axis: int | None) -> int:
    """The classes' axis of a loss; the last, unless said, and an error where it may as well be the second."""
    if axis is not None or scores.ndim < 3:
        return -1 if axis is None else axis
    fits = labels.shape == scores.shape[:-1] and not jnp.issubdtype(labels.dtype, jnp.floating)
    if fits and scores.shape[1] == scores.shape[-1]:
        where = "may be the last, as here, or the second, as in torch.nn.functional.cross_entropy: axis=-1 or axis=1"
        raise ValueError(f"axis must be given where the classes' axis {where}; got scores of shape {scores.shape}")
    return -1


def check_label_ids(
    labels: Array, batch: tuple[int, ...], plan: Plan, ignored: int, rows: Array | None = None
) -> tuple[Array, Array]:
    """Class ids, one a row, with 0 for those that are ignored; and which rows count."""
    labels = check_integers(labels, "labels")
    if labels.shape != batch:
        wanted = f"one class id a row, shape {batch}, or floating-point probabilities"
        hint = ". Where the classes' axis is not the last, say which it is: axis=1" if labels.ndim > 1 else ""
        raise ValueError(f"labels must hold {wanted}; got {labels.dtype} of shape {labels.shape}{hint}")
    keep = labels != ignored if rows is None else rows & (labels != ignored)
    return check_index(jnp.where(keep, labels, 0), plan, "labels"), keep


def check_label_probs(labels: Array, x: Array, plan: Plan, axis: int) -> Array:
    """Probabilities with their classes' axis last, or raise unless they fit prepared scores ``x``."""
    if labels.shape == x.shape[:-1]:
        raise TypeError(f"labels must hold integers if they hold class ids; got {labels.dtype}")
    probs = to_last(labels, axis, "labels")
    check_classes("labels", plan.num_classes, probs.shape[-1], labels.shape)
    errors.check_batch("labels", probs.shape[:-1], x.shape[:-1])
    return probs.astype(x.dtype)
