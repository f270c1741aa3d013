"""Classes out of scores: drawn, drawn with all that a policy needs, and the likeliest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from catnat.core.errors import advised, check_batch, nan_scores
from catnat.core.parameterization import ParameterizationLike
from catnat.jax._compat import is_readable
from catnat.jax._inputs import check_key, check_shape, prepare, prepare_linear
from catnat.jax._plan import Plan
from catnat.jax.functional import entropy, log_prob

__all__ = ["Draw", "catnat_linear_sample", "draw", "mode", "sample"]


@advised
def sample(
    key: Array,
    scores: Array,
    parameterization: ParameterizationLike,
    *,
    sample_shape: Sequence[int] = (),
    mask: Array | None = None,
) -> Array:
    """Draw classes by walking down the tree, a coin a node: O(log K) work a draw on a balanced tree.

    The key is as in `jax.random.categorical`, what the scores mean as in `log_catnat`. The class ids are int32 and of
    shape ``sample_shape + batch``. NaN scores are an error or, where values cannot be looked at (under `jax.jit`, or on
    an accelerator), give K, of which `log_prob` is NaN.

    Example:
        >>> import jax, jax.numpy as jnp, catnat.jax as cj
        >>> cj.sample(jax.random.key(0), jnp.zeros((5, 17)), 18, sample_shape=(2,)).shape
        (2, 5)
    """
    key = check_key(key)
    walk, x, mask, _ = prepare(scores, parameterization, mask)
    shape = check_shape("sample_shape", sample_shape)
    return _shaped(walk.sample(key, x, mask, count=math.prod(shape)), shape, walk.plan)


@advised
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

    ``weight``, ``bias`` and ``x`` are as in `catnat_linear_loss`. Up to rounding the same key draws the same classes.

    Example:
        >>> import jax, jax.numpy as jnp, catnat.jax as cj
        >>> cj.catnat_linear_sample(jax.random.key(0), jnp.zeros((17, 4)), None, jnp.ones((5, 4)), 18).shape
        (5,)
    """
    key = check_key(key)
    walk, x, _ = prepare_linear(weight, bias, x, parameterization)
    shape = check_shape("sample_shape", sample_shape)
    return _shaped(walk.sample(key, x, count=math.prod(shape)), shape, walk.plan)


class Draw(NamedTuple):
    """What a policy needs of a step: class ids, their log-probabilities and the entropy of every row."""

    sample: Array
    log_prob: Array
    entropy: Array


@advised
def draw(
    key: Array | None,
    scores: Array,
    parameterization: ParameterizationLike,
    *,
    index: Array | None = None,
    mask: Array | None = None,
) -> Draw:
    """Draw a class a row, with its log p and the entropy of the row; all that a policy needs of a step.

    This is the head of a policy: draw while acting; while learning, pass the actions that were taken as ``index`` (of
    the batch's shape; the key is None then) and get their log-probabilities and the entropies. Class ids carry no
    gradient. Other arguments as in `sample`.

    Example:
        >>> import jax, jax.numpy as jnp, catnat.jax as cj
        >>> action, log_prob, entropy = cj.draw(jax.random.key(0), jnp.zeros((5, 3)), 4)
        >>> jnp.exp(log_prob).round(4)
        Array([0.25, 0.25, 0.25, 0.25, 0.25], dtype=float32)
    """
    if index is None:
        index = sample(key, scores, parameterization, mask=mask)  # type: ignore[arg-type]
    of_rows = entropy(scores, parameterization, mask=mask)
    check_batch("index", jnp.shape(index), of_rows.shape)
    return Draw(index, log_prob(scores, index, parameterization, mask=mask), of_rows)


@advised
def mode(scores: Array, parameterization: ParameterizationLike, *, mask: Array | None = None) -> Array:
    """The likeliest class of every row; the first one where several are.

    This looks at all classes: the likelier branch at every node need not lead to the likeliest class.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> cj.mode(cj.scores_from_probs(jnp.array([0.2, 0.5, 0.3]), 3), 3)
        Array(1, dtype=int32)
    """
    walk, x, mask, _ = prepare(scores, parameterization, mask)
    return known(walk.mode(x, mask), walk.plan.num_classes)


def _shaped(drawn: Array, shape: tuple[int, ...], plan: Plan) -> Array:
    """Draws [..., count] with their own axes in front."""
    return jnp.moveaxis(known(drawn, plan.num_classes), -1, 0).reshape(*shape, *drawn.shape[:-1])


def known(drawn: Array, num_classes: int) -> Array:
    """Classes, or an error where one is K: its scores were NaN. Where that cannot be seen K stays: no class."""
    if is_readable(drawn) and (lost := np.asarray(drawn) == num_classes).any():
        raise nan_scores(np.argwhere(lost)[0].tolist())
    return drawn
