"""The public functions: JAX's own signatures, the tree's mathematics in the docstrings."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from catnat.core.errors import REDUCTIONS, check_choice, check_classes, check_share
from catnat.core.parameterization import ParameterizationLike
from catnat.jax import _dispatch, _eager
from catnat.jax._inputs import (
    as_array,
    check_batch,
    check_floating,
    check_index,
    check_label_ids,
    prepare,
    prepare_class_weight,
    prepare_linear,
    prepare_mask,
    prepare_probs,
    prepare_where,
    to_axis,
    to_last,
)
from catnat.jax._node import is_saturated, score_of


def log_catnat(
    scores: Array,
    parameterization: ParameterizationLike,
    *,
    mask: Array | None = None,
    mask_mode: str = "renormalize",
    axis: int = -1,
) -> Array:
    """Log-probabilities of K classes from K-1 scores on a binary tree; in place of `jax.nn.log_softmax`.

    log p_k is the sum, over the nodes i on the path to class k, of log a(s_i) for a right turn and log(1 - a(s_i)) for
    a left one.

    Args:
        scores: floating-point array, K-1 wide along ``axis``.
        parameterization: how many classes, or a `catnat.Parameterization` of them.
        mask: boolean, K wide along ``axis``, True where a class is allowed; broadcasts over the batch.
        mask_mode: ``"renormalize"`` divides by the mass of the allowed classes; ``"prune"`` sends the mass of a node to
            its live side.
        axis: the axis of the scores, and of the classes in the result.

    Returns:
        Array of the scores' dtype, K wide along ``axis``.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> jnp.exp(cj.log_catnat(jnp.zeros(3), 4)).round(4)
        Array([0.25, 0.25, 0.25, 0.25], dtype=float32)
    """
    x, plan, dtype = prepare(scores, parameterization, axis)
    mask = prepare_mask(mask, mask_mode, x, plan, axis)
    return to_axis(_dispatch.log_p(x, mask, plan=plan, mask_mode=mask_mode).astype(dtype), axis)


def catnat(
    scores: Array,
    parameterization: ParameterizationLike,
    *,
    mask: Array | None = None,
    mask_mode: str = "renormalize",
    axis: int = -1,
) -> Array:
    """Probabilities of K classes from K-1 scores on a binary tree; in place of `jax.nn.softmax`.

    p_k is the product, over the nodes i on the path to class k, of a(s_i) for a right turn and 1 - a(s_i) for a left
    one. Arguments as in `log_catnat`.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> cj.catnat(jnp.zeros((2, 5)), 6).shape
        (2, 6)
    """
    x, plan, dtype = prepare(scores, parameterization, axis)
    mask = prepare_mask(mask, mask_mode, x, plan, axis)
    return to_axis(jnp.exp(_dispatch.log_p(x, mask, plan=plan, mask_mode=mask_mode)).astype(dtype), axis)


def log_prob(
    scores: Array,
    index: Array,
    parameterization: ParameterizationLike,
    *,
    mask: Array | None = None,
    mask_mode: str = "renormalize",
) -> Array:
    """log p of given classes, from the scores on their paths alone: O(log K) work a class on a balanced tree.

    Args:
        scores: [..., K-1].
        index: class ids; their shape broadcasts with the scores' batch (extra leading axes are samples). One that is
            out of range is an error or, where values cannot be looked at (under `jax.jit`), gives NaN.
        parameterization: as in `log_catnat`.
        mask: as in `log_catnat`. A mask costs the whole row: which class is allowed is not written on one path.
        mask_mode: as in `log_catnat`.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> jnp.exp(cj.log_prob(jnp.zeros((3, 3)), jnp.array([0, 1, 3]), 4)).round(4)
        Array([0.25, 0.25, 0.25], dtype=float32)
    """
    x, plan, dtype = prepare(scores, parameterization)
    mask = prepare_mask(mask, mask_mode, x, plan)
    index = check_index(index, plan)
    return _dispatch.log_prob(x, index, mask, plan=plan, mask_mode=mask_mode).astype(dtype)


def entropy(
    scores: Array,
    parameterization: ParameterizationLike,
    *,
    mask: Array | None = None,
    mask_mode: str = "renormalize",
) -> Array:
    """Entropy in nats: the sum over nodes of P(reaching the node) times the entropy of its coin.

    Finite, with a finite gradient, where a probability is 0.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> float(cj.entropy(jnp.zeros(3), 4).round(4))  # log 4
        1.386299967765808
    """
    x, plan, dtype = prepare(scores, parameterization)
    mask = prepare_mask(mask, mask_mode, x, plan)
    return _dispatch.entropy(x, mask, plan=plan, mask_mode=mask_mode).astype(dtype)


def kl_divergence(
    p_scores: Array,
    q_scores: Array,
    parameterization: ParameterizationLike,
    *,
    mask: Array | None = None,
    mask_mode: str = "renormalize",
) -> Array:
    """KL(p || q) in nats: the sum over nodes of P(p reaches the node) times the KL of their coins.

    Both sides share the parameterization and the mask. For two different ones use `CatnatCategorical` and its
    `kl_divergence`.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> cj.kl_divergence(jnp.zeros(3), jnp.zeros(3), 4)
        Array(0., dtype=float32)
    """
    p_scores, q_scores = (check_floating(s, n) for s, n in ((p_scores, "p_scores"), (q_scores, "q_scores")))
    if q_scores.shape[-1] != p_scores.shape[-1]:
        raise ValueError(f"p_scores and q_scores must be equally wide; got {p_scores.shape} and {q_scores.shape}")
    dtype = jnp.promote_types(p_scores.dtype, q_scores.dtype)
    p, plan, _ = prepare(p_scores.astype(dtype), parameterization)
    q, _, _ = prepare(q_scores.astype(dtype), parameterization)
    mask = prepare_mask(mask, mask_mode, p, plan)
    return _dispatch.kl_divergence(p, q, mask, plan=plan, mask_mode=mask_mode).astype(dtype)


def cross_entropy(
    scores: Array,
    labels: Array,
    parameterization: ParameterizationLike,
    *,
    axis: int = -1,
    where: Array | None = None,
    weight: Array | None = None,
    ignore_index: int = -100,
    reduction: str = "none",
    label_smoothing: float = 0.0,
) -> Array:
    """- log p of the labels, row by row; in place of `optax.softmax_cross_entropy` and `..._with_integer_labels`.

    With class ids as labels and no smoothing only the labels' paths are touched.

    Args:
        scores: K-1 wide along ``axis``.
        labels: class ids, shaped like the scores without ``axis``; or probabilities, K wide along ``axis``.
        parameterization: as in `log_catnat`.
        axis: axis of the scores.
        where: what to include, as in optax: with as many dimensions as the scores, the classes that are allowed, K wide
            along ``axis``; with one less, the rows that count (the loss of others is 0).
        weight: [K] weight of every class.
        ignore_index: a class id whose rows count for nothing (optax has none).
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (weighted, over rows that count).
        label_smoothing: share of the label that is spread over all allowed classes, in [0, 1].

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> cj.cross_entropy(jnp.zeros((2, 3)), jnp.array([0, 3]), 4).round(4)
        Array([1.3863, 1.3863], dtype=float32)
    """
    check_choice("reduction", reduction, REDUCTIONS)
    check_share("label_smoothing", label_smoothing)
    x, plan, dtype = prepare(scores, parameterization, axis)
    labels = as_array(labels, "labels")
    batch = x.shape[:-1]
    mask, rows = prepare_where(where, x, plan, axis)
    if weight is not None:
        weight = prepare_class_weight(weight, plan, "weight")
    by_class = jnp.ones((), x.dtype) if weight is None else weight
    # the share of every class in what smoothing spreads
    share = 1 / plan.num_classes if mask is None else mask / mask.sum(-1, keepdims=True, dtype=x.dtype)
    if jnp.issubdtype(labels.dtype, jnp.floating):
        if labels.shape == batch:
            raise TypeError(f"labels must hold integers if they hold class ids; got {labels.dtype}")
        probs = to_last(labels, axis, "labels").astype(x.dtype)
        check_classes("labels", plan.num_classes, probs.shape[-1], labels.shape)
        check_batch("labels", probs.shape[:-1], batch)
        probs = (probs * (1 - label_smoothing) + label_smoothing * share) * by_class
        loss = -_dispatch.times_log(probs, _dispatch.log_p(x, mask, plan=plan, mask_mode="renormalize")).sum(-1)
        counted, keep = jnp.ones_like(loss), rows
    else:
        labels = check_label_ids(labels, batch)
        keep = labels != ignore_index if rows is None else rows & (labels != ignore_index)
        ids = jnp.where(keep, labels, 0)
        check_index(ids, plan, "labels")
        own = jnp.ones_like(x, shape=batch) if weight is None else weight[ids]
        counted = own
        loss = -_dispatch.times_log(own, _dispatch.log_prob(x, ids, mask, plan=plan, mask_mode="renormalize"))
        if label_smoothing:
            every = _dispatch.log_p(x, mask, plan=plan, mask_mode="renormalize")
            spread = -_dispatch.times_log(jnp.broadcast_to(share * by_class, every.shape), every).sum(-1)
            loss = (1 - label_smoothing) * loss + label_smoothing * spread
    return _reduce(loss, counted, keep, reduction).astype(dtype)


def _reduce(loss: Array, counted: Array, keep: Array | None, reduction: str) -> Array:
    """The losses of rows that are kept, 0 for others; their sum; or that divided by what they count for."""
    if keep is not None:
        loss, counted = jnp.where(keep, loss, 0), jnp.where(keep, counted, 0)
    if reduction == "none":
        return loss
    return loss.sum() / counted.sum() if reduction == "mean" else loss.sum()


def catnat_linear_loss(
    weight: Array,
    bias: Array | None,
    x: Array,
    labels: Array,
    parameterization: ParameterizationLike,
    *,
    class_weight: Array | None = None,
    ignore_index: int = -100,
    reduction: str = "none",
) -> Array:
    """`cross_entropy` of the scores x @ weight.T + bias, of which only those on the labels' paths are computed.

    For very many classes: a row costs about log2(K) inner products in place of K-1, and no array is K wide but the
    weight and its gradient. It may be differentiated in reverse mode, and then once more in any mode. To map it over
    rows, pass them all at once: under `jax.vmap` over x alone every row would have a gradient of the weight's size.

    Args:
        weight: [K-1, D], a row a node, as in `CatnatLinear`: what a path needs then lies together. Keep the transpose
            of a Flax kernel as the parameter; to transpose it at every step would cost more than the loss.
        bias: [K-1] or None.
        x: [..., D].
        labels: [...] class ids.
        parameterization: as in `log_catnat`.
        class_weight: [K] weight of every class.
        ignore_index: as in `cross_entropy`.
        reduction: as in `cross_entropy`.

    Returns:
        The loss of every row, or one number. 16-bit arguments are multiplied and added up in float32.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> weight, labels = jnp.zeros((999_999, 8)), jnp.array([0, 999_999])
        >>> cj.catnat_linear_loss(weight, None, jnp.ones((2, 8)), labels, 1_000_000).round(2)
        Array([13.82, 13.82], dtype=float32)
    """
    check_choice("reduction", reduction, REDUCTIONS)
    weight, bias, x, plan, dtype = prepare_linear(weight, bias, x, parameterization)
    labels = check_label_ids(labels, x.shape[:-1])
    keep = labels != ignore_index
    ids = check_index(jnp.where(keep, labels, 0), plan, "labels")
    if class_weight is None:
        own = jnp.ones(ids.shape, plan.dtype)
    else:
        own = prepare_class_weight(class_weight, plan, "class_weight")[ids]
    loss = -_dispatch.times_log(own, _dispatch.linear_log_prob(weight, bias, x, ids, plan=plan))
    return _reduce(loss, own, keep, reduction).astype(dtype)


def scores_from_probs(probs: Array, parameterization: ParameterizationLike, *, axis: int = -1) -> Array:
    """Scores whose catnat is ``probs``: the inverse map.

    The probabilities need not sum to one. A node that is never reached gets the score 0. A certain turn has an infinite
    score; only the paper's activation (``tail=0``) reaches it at a finite one.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> probs = jnp.array([0.1, 0.2, 0.7])
        >>> jnp.allclose(cj.catnat(cj.scores_from_probs(probs, 3), 3), probs)
        Array(True, dtype=bool)
    """
    last = prepare_probs(probs, parameterization, axis)
    # the plan for as many scores as these classes need
    x, plan, dtype = prepare(last[..., 1:], parameterization)
    left, right = _eager.ascend(last.astype(x.dtype), plan)
    return to_axis(score_of(left, right, plan).astype(dtype), axis)


def reach(scores: Array, parameterization: ParameterizationLike, *, mask: Array | None = None, axis: int = -1) -> Array:
    """P(a_i): the probability of passing through every node, K-1 wide like the scores.

    A mask prunes the tree (there is no reach of single coins in a renormalised one).

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> cj.reach(jnp.zeros(3), 4).round(4)
        Array([1. , 0.5, 0.5], dtype=float32)
    """
    x, plan, dtype = prepare(scores, parameterization, axis)
    mask = prepare_mask(mask, "prune", x, plan, axis)
    return to_axis(_dispatch.reach(x, mask, plan=plan).astype(dtype), axis)


def saturation(scores: Array, parameterization: ParameterizationLike, *, axis: int = -1) -> Array:
    """The share of nodes that are beyond the natural range: one number, to look at while training.

    There the slope no longer grows or, with the paper's activation (``tail=0``), the branch sits on its floor and
    learns nothing. It is 0 for the sigmoid and for activations that we know nothing of.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> cj.saturation(jnp.array([0.0, 1.0, -1.5, 3.0]), 5)
        Array(0.25, dtype=float32)
    """
    x, plan, dtype = prepare(scores, parameterization, axis)
    return (is_saturated(x, plan).sum() / max(x.size, 1)).astype(dtype)
