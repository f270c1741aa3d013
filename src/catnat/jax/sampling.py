"""Classes out of scores: drawn, drawn with all that a policy needs, and the likeliest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from catnat.core.errors import nan_scores
from catnat.core.parameterization import ParameterizationLike
from catnat.jax._compat import is_readable
from catnat.jax._dispatch import path_walk_for, walk_for
from catnat.jax._inputs import (
    check_batch,
    check_key,
    check_shape,
    prepare,
    prepare_linear,
    prepare_mask,
)
from catnat.jax._plan import Plan
from catnat.jax.functional import entropy, log_prob


def sample(
    key: Array,
    scores: Array,
    parameterization: ParameterizationLike,
    *,
    sample_shape: Sequence[int] = (),
    mask: Array | None = None,
    mask_mode: str = "renormalize",
) -> Array:
    """Draw classes by walking down the tree, a coin a node: O(log K) work a draw on a balanced tree.

    Args:
        key: the source of random numbers, as in `jax.random.categorical`.
        scores: [..., K-1].
        parameterization: as in `log_catnat`.
        sample_shape: leading shape of the draws.
        mask: as in `log_catnat`; a forbidden class is never drawn.
        mask_mode: as in `log_catnat`.

    Returns:
        int32 class ids of shape ``sample_shape + batch``. NaN scores are an error or, where values cannot be looked at
        (under `jax.jit`, or on an accelerator), give K, of which `log_prob` is NaN.

    Example:
        >>> import jax, jax.numpy as jnp, catnat.jax as cj
        >>> cj.sample(jax.random.key(0), jnp.zeros((5, 17)), 18, sample_shape=(2,)).shape
        (2, 5)
    """
    key = check_key(key)
    x, plan, _ = prepare(scores, parameterization)
    mask = prepare_mask(mask, mask_mode, x, plan)
    shape = check_shape("sample_shape", sample_shape)
    return _shaped(walk_for(plan).sample(key, x, mask, count=math.prod(shape), mask_mode=mask_mode), shape, plan)


def catnat_linear_sample(
    key: Array,
    weight: Array,
    bias: Array | None,
    x: Array,
    parameterization: ParameterizationLike,
    *,
    sample_shape: Sequence[int] = (),
) -> Array:
    """`sample` from the scores x @ weight.T + bias, of which only those on one path a draw are computed.

    Args:
        key: as in `sample`; up to rounding the same key draws the same classes.
        weight: [K-1, D], as in `catnat_linear_loss`.
        bias: [K-1] or None.
        x: [..., D].
        parameterization: as in `log_catnat`.
        sample_shape: leading shape of the draws.

    Returns:
        int32 class ids of shape ``sample_shape + batch``.

    Example:
        >>> import jax, jax.numpy as jnp, catnat.jax as cj
        >>> cj.catnat_linear_sample(jax.random.key(0), jnp.zeros((17, 4)), None, jnp.ones((5, 4)), 18).shape
        (5,)
    """
    key = check_key(key)
    weight, bias, x, plan, _ = prepare_linear(weight, bias, x, parameterization)
    shape = check_shape("sample_shape", sample_shape)
    return _shaped(path_walk_for(plan, weight, bias).sample(key, x, count=math.prod(shape)), shape, plan)


class Draw(NamedTuple):
    """What a policy needs of a step: class ids, their log-probabilities and the entropy of every row."""

    sample: Array
    log_prob: Array
    entropy: Array


def draw(
    key: Array | None,
    scores: Array,
    parameterization: ParameterizationLike,
    *,
    index: Array | None = None,
    mask: Array | None = None,
    mask_mode: str = "renormalize",
) -> Draw:
    """Draw a class a row, with its log p and the entropy of the row; all that a policy needs of a step.

    This is the head of a policy: draw while acting; while learning, pass the actions that were taken as ``index`` and
    get their log-probabilities and the entropies. Class ids carry no gradient.

    Args:
        key: the source of random numbers, as in `jax.random.categorical`; None where ``index`` is given.
        scores: [..., K-1].
        parameterization: as in `log_catnat`.
        index: class ids of the batch's shape, where they are not to be drawn.
        mask: as in `log_catnat`; a forbidden class is never drawn.
        mask_mode: as in `log_catnat`.

    Returns:
        ``sample`` (class ids), ``log_prob`` and ``entropy``, each of the batch's shape.

    Example:
        >>> import jax, jax.numpy as jnp, catnat.jax as cj
        >>> action, log_prob, entropy = cj.draw(jax.random.key(0), jnp.zeros((5, 3)), 4)
        >>> jnp.exp(log_prob).round(4)
        Array([0.25, 0.25, 0.25, 0.25, 0.25], dtype=float32)
    """
    masking: dict[str, Any] = {"mask": mask, "mask_mode": mask_mode}
    if index is None:
        index = sample(key, scores, parameterization, **masking)  # type: ignore[arg-type]
    else:
        x, _, _ = prepare(scores, parameterization)
        batch = x.shape[:-1] if mask is None else jnp.broadcast_shapes(x.shape[:-1], jnp.shape(mask)[:-1])
        check_batch("index", jnp.shape(index), batch)
    log_p = log_prob(scores, index, parameterization, **masking)
    return Draw(index, log_p, entropy(scores, parameterization, **masking))


def mode(
    scores: Array,
    parameterization: ParameterizationLike,
    *,
    mask: Array | None = None,
    mask_mode: str = "renormalize",
) -> Array:
    """The likeliest class of every row; the first one where several are.

    This looks at all classes: the likelier branch at every node need not lead to the likeliest class.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> cj.mode(cj.scores_from_probs(jnp.array([0.2, 0.5, 0.3]), 3), 3)
        Array(1, dtype=int32)
    """
    x, plan, _ = prepare(scores, parameterization)
    mask = prepare_mask(mask, mask_mode, x, plan)
    return known(walk_for(plan).mode(x, mask, mask_mode=mask_mode), plan.num_classes)


# -- shared parts ------------------------------------------------------------------------------------------------


def _shaped(drawn: Array, shape: tuple[int, ...], plan: Plan) -> Array:
    """Draws [..., count] with their own axes in front."""
    return jnp.moveaxis(known(drawn, plan.num_classes), -1, 0).reshape(*shape, *drawn.shape[:-1])


def known(drawn: Array, num_classes: int) -> Array:
    """Classes, or an error where one is K: its scores were NaN. Where that cannot be seen K stays: no class."""
    if is_readable(drawn) and (lost := np.asarray(drawn) == num_classes).any():
        raise nan_scores(np.argwhere(lost)[0].tolist())
    return drawn
