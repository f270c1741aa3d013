"""The public functions: JAX's own signatures, the tree's mathematics in the docstrings."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from catnat.core.errors import REDUCTIONS, advised, check_choice, check_share
from catnat.core.parameterization import ParameterizationLike
from catnat.jax import _inputs
from catnat.jax._inputs import as_array, check_floating, prepare, prepare_class_weight, prepare_probs, to_axis

__all__ = [
    "catnat",
    "catnat_linear_loss",
    "cross_entropy",
    "entropy",
    "kl_divergence",
    "log_catnat",
    "log_prob",
    "reach",
    "saturation",
    "scores_from_log_probs",
    "scores_from_probs",
]


@advised
def log_catnat(
    scores: Array, parameterization: ParameterizationLike, *, mask: Array | None = None, axis: int = -1
) -> Array:
    """Log-probabilities of K classes from K-1 scores on a binary tree; in place of `jax.nn.log_softmax`.

    log p_k is the sum, over the nodes i on the path to class k, of log a(s_i) for a right turn and log(1 - a(s_i)) for
    a left one.

    Args:
        scores: floating-point array, K-1 wide along ``axis``.
        parameterization: how many classes, or a `catnat.Parameterization` of them.
        mask: boolean, K wide along ``axis``, True where a class is allowed; broadcasts over the batch. The
            probabilities are those given that an allowed class comes up.
        axis: the axis of the scores, and of the classes in the result.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> jnp.exp(cj.log_catnat(jnp.zeros(3), 4)).round(4)
        Array([0.25, 0.25, 0.25, 0.25], dtype=float32)
    """
    walk, x, mask, dtype = prepare(scores, parameterization, mask, axis)
    return to_axis(walk.log_probs(x, mask).astype(dtype), axis)


@advised
def catnat(
    scores: Array, parameterization: ParameterizationLike, *, mask: Array | None = None, axis: int = -1
) -> Array:
    """Probabilities of K classes from K-1 scores on a binary tree; in place of `jax.nn.softmax`.

    p_k is the product, over the nodes i on the path to class k, of a(s_i) for a right turn and 1 - a(s_i) for a left
    one. Arguments as in `log_catnat`.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> cj.catnat(jnp.zeros((2, 5)), 6).shape
        (2, 6)
    """
    walk, x, mask, dtype = prepare(scores, parameterization, mask, axis)
    return to_axis(walk.probs(x, mask).astype(dtype), axis)


@advised
def log_prob(
    scores: Array, index: Array, parameterization: ParameterizationLike, *, mask: Array | None = None
) -> Array:
    """log p of given classes, from the scores on their paths alone: O(log K) work a class on a balanced tree.

    The shape of the class ids, ``index``, broadcasts with the scores' batch (extra leading axes are samples). One that
    is out of range is an error or, where values cannot be looked at (under `jax.jit`), gives NaN. Other arguments as in
    `log_catnat`. A mask costs the whole row: which class is allowed is not written on one path.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> jnp.exp(cj.log_prob(jnp.zeros((3, 3)), jnp.array([0, 1, 3]), 4)).round(4)
        Array([0.25, 0.25, 0.25], dtype=float32)
    """
    walk, x, mask, dtype = prepare(scores, parameterization, mask)
    return walk.log_prob(x, _inputs.check_index(index, walk.plan), mask).astype(dtype)


@advised
def entropy(scores: Array, parameterization: ParameterizationLike, *, mask: Array | None = None) -> Array:
    """Entropy in nats: the sum over nodes of P(reaching the node) times the entropy of its coin.

    Finite, with a finite gradient, where a probability is 0.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> float(cj.entropy(jnp.zeros(3), 4).round(4))  # log 4
        1.386299967765808
    """
    walk, x, mask, dtype = prepare(scores, parameterization, mask)
    return walk.entropy(x, mask).astype(dtype)


@advised
def kl_divergence(
    p_scores: Array, q_scores: Array, parameterization: ParameterizationLike, *, mask: Array | None = None
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
    walk, p, mask, _ = prepare(p_scores.astype(dtype), parameterization, mask)
    q = _inputs.at_least_single(q_scores.astype(dtype))
    return walk.kl_divergence(p, q, mask).astype(dtype)


@advised
def cross_entropy(
    scores: Array,
    labels: Array,
    parameterization: ParameterizationLike,
    *,
    where: Array | None = None,
    weight: Array | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    axis: int | None = None,
) -> Array:
    """- log p of the labels; in place of `optax.softmax_cross_entropy` and `..._with_integer_labels`.

    With class ids as labels and no smoothing only the labels' paths are touched.

    Args:
        scores: K-1 wide along ``axis``.
        labels: class ids, shaped like the scores without ``axis``; or probabilities, K wide along ``axis``.
        parameterization: as in `log_catnat`.
        where: what to include, as in optax: with as many dimensions as the scores, the classes that are allowed, K wide
            along ``axis``; with one less, the rows that count (the loss of others is 0).
        weight: [K] weight of every class.
        ignore_index: a class id whose rows count for nothing (optax has none).
        reduction: ``"mean"`` (weighted, over rows that count), ``"sum"`` or, as in optax, ``"none"``.
        label_smoothing: share of the label that is spread over all allowed classes, in [0, 1].
        axis: axis of the scores, by default the last. Where it may as well be the second, as in PyTorch's loss for
            images, say which it is.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> cj.cross_entropy(jnp.zeros((2, 3)), jnp.array([0, 3]), 4).round(4)
        Array(1.3863, dtype=float32)
    """
    check_choice("reduction", reduction, REDUCTIONS)
    check_share("label_smoothing", label_smoothing)
    scores, labels = check_floating(scores, "scores"), as_array(labels, "labels")
    axis = _inputs.class_axis(scores, labels, axis)
    walk, x, _, dtype = prepare(scores, parameterization, axis=axis)
    mask, keep = _inputs.prepare_where(where, x, walk.plan, axis)
    weight = prepare_class_weight(weight, walk.plan, "weight")
    if jnp.issubdtype(labels.dtype, jnp.floating):
        labels = _inputs.check_label_probs(labels, x, walk.plan, axis)
    else:
        labels, keep = _inputs.check_label_ids(labels, x.shape[:-1], walk.plan, ignore_index, keep)
    settings = {"reduction": reduction, "label_smoothing": label_smoothing}
    return walk.loss(x, labels, keep, mask, weight, **settings).astype(dtype)


@advised
def catnat_linear_loss(
    weight: Array,
    bias: Array | None,
    x: Array,
    labels: Array,
    parameterization: ParameterizationLike,
    *,
    class_weight: Array | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Array:
    """`cross_entropy` of the scores x @ weight.T + bias, of which only those on the labels' paths are computed.

    For very many classes: a row costs about log2(K) inner products in place of K-1, and no array is K wide but the
    weight and its gradient. It may be differentiated in reverse mode, and then once more in any mode. To map it over
    rows, pass them all at once: under `jax.vmap` over x alone every row would have a gradient of the weight's size.

    The ``weight`` is [K-1, D], a row a node, as in `CatnatLinear`: what a path needs then lies together. Keep the
    transpose of a Flax kernel as the parameter; to transpose it at every step would cost more than the loss. With it go
    a ``bias`` [K-1] or None, ``x`` [..., D] and class ids [...]; ``class_weight`` is the ``weight`` of `cross_entropy`,
    and what is left is as there. 16-bit arguments are multiplied and added up in float32.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> weight, labels = jnp.zeros((999_999, 8)), jnp.array([0, 999_999])
        >>> cj.catnat_linear_loss(weight, None, jnp.ones((2, 8)), labels, 1_000_000).round(2)
        Array(13.82, dtype=float32)
    """
    check_choice("reduction", reduction, REDUCTIONS)
    walk, x, dtype = _inputs.prepare_linear(weight, bias, x, parameterization)
    labels, keep = _inputs.check_label_ids(as_array(labels, "labels"), x.shape[:-1], walk.plan, ignore_index)
    class_weight = prepare_class_weight(class_weight, walk.plan, "class_weight")
    return walk.loss(x, labels, keep, class_weight, reduction=reduction).astype(dtype)


@advised
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
    walk, x, dtype = prepare_probs(probs, parameterization, axis, "probs")
    return to_axis(walk.scores_of_probs(x).astype(dtype), axis)


@advised
def scores_from_log_probs(log_probs: Array, parameterization: ParameterizationLike) -> Array:
    """Scores [..., K-1] whose log-probabilities are ``log_probs`` [..., K], which need not be normalised.

    Unlike `scores_from_probs` of their exponentials it keeps classes whose probability is no number of the dtype.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> cj.log_catnat(cj.scores_from_log_probs(jnp.array([0.0, -200.0, -300.0]), 3), 3).round(2)
        Array([   0., -200., -300.], dtype=float32)
    """
    walk, x, dtype = prepare_probs(log_probs, parameterization, -1, "log_probs")
    return walk.scores_of_log_probs(x).astype(dtype)


@advised
def reach(scores: Array, parameterization: ParameterizationLike, *, axis: int = -1) -> Array:
    """P(a_i): the probability of passing through every node, K-1 wide like the scores.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> cj.reach(jnp.zeros(3), 4).round(4)
        Array([1. , 0.5, 0.5], dtype=float32)
    """
    walk, x, _, dtype = prepare(scores, parameterization, axis=axis)
    return to_axis(walk.reach(x).astype(dtype), axis)


@advised
def saturation(scores: Array, parameterization: ParameterizationLike, *, axis: int = -1) -> Array:
    """The share of nodes that are beyond the natural range: one number, to look at while training.

    There the slope no longer grows or, with the paper's activation (``tail=0``), the branch sits on its floor and
    learns nothing. It is 0 for the sigmoid and for activations that we know nothing of.

    Example:
        >>> import jax.numpy as jnp, catnat.jax as cj
        >>> cj.saturation(jnp.array([0.0, 1.0, -1.5, 3.0]), 5)
        Array(0.25, dtype=float32)
    """
    walk, x, _, dtype = prepare(scores, parameterization, axis=axis)
    return walk.saturation(x).astype(dtype)
