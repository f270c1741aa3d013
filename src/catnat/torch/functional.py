"""The public functions: softmax's signatures, the tree's mathematics in the docstrings."""

from __future__ import annotations

import torch
from torch import Tensor

from catnat.core.errors import REDUCTIONS, advised, check_choice, check_share
from catnat.core.parameterization import ParameterizationLike
from catnat.torch import _eager, _inputs, _masks, _node
from catnat.torch._dispatch import plan_for, walk_for
from catnat.torch._inputs import prepare, prepare_mask, prepare_probs, prepare_walk, restore_dtype_and_dim

__all__ = [
    "catnat",
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
    scores: Tensor, parameterization: ParameterizationLike, *, mask: Tensor | None = None, dim: int = -1
) -> Tensor:
    """Log-probabilities of K classes from K-1 scores on a binary tree; in place of `torch.log_softmax`.

    log p_k is the sum, over the nodes i on the path to class k, of log a(s_i) for a right turn and log(1 - a(s_i)) for
    a left one.

    Args:
        scores: floating-point tensor, K-1 wide along ``dim``.
        parameterization: how many classes, or a `catnat.Parameterization` of them.
        mask: boolean, K wide along ``dim``, True where a class is allowed; broadcasts over the batch.
            Probabilities are those given that an allowed class comes up.
        dim: the axis of the scores, and of the classes in the result.

    Returns:
        Tensor of the scores' dtype, K wide along ``dim``.

    Example:
        >>> import torch, catnat.torch as ct
        >>> ct.log_catnat(torch.zeros(3), 4).exp()
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    walk, x, mask, dtype = prepare_walk(scores, parameterization, mask, dim)
    return restore_dtype_and_dim(walk.log_probs(x, mask), dtype, dim)


@advised
def catnat(
    scores: Tensor, parameterization: ParameterizationLike, *, mask: Tensor | None = None, dim: int = -1
) -> Tensor:
    """Probabilities of K classes from K-1 scores on a binary tree; in place of `torch.softmax`.

    p_k is the product, over the nodes i on the path to class k, of a(s_i) for a right turn and 1 - a(s_i) for a left
    one. Arguments as in `log_catnat`.

    Example:
        >>> import torch, catnat.torch as ct
        >>> ct.catnat(torch.zeros(2, 5), 6).shape
        torch.Size([2, 6])
    """
    walk, x, mask, dtype = prepare_walk(scores, parameterization, mask, dim)
    return restore_dtype_and_dim(walk.probs(x, mask), dtype, dim)


@advised
def log_prob(
    scores: Tensor, index: Tensor, parameterization: ParameterizationLike, *, mask: Tensor | None = None
) -> Tensor:
    """log p of given classes, from the scores on their paths alone: O(log K) work a class on a balanced tree.

    The shape of ``index`` broadcasts with the scores' batch (leading axes more are samples). A mask costs the whole
    row: which class is allowed is not written on one path.

    Example:
        >>> import torch, catnat.torch as ct
        >>> ct.log_prob(torch.zeros(5, 7), torch.tensor([0, 1, 2, 3, 7]), 8).exp()
        tensor([0.1250, 0.1250, 0.1250, 0.1250, 0.1250])
    """
    walk, x, mask, dtype = prepare_walk(scores, parameterization, mask)
    _inputs.check_integers(index, "index")
    if walk.plan.num_classes == 1:  # there is no path to look it up on
        _inputs.check_index(index, walk.plan)
    try:
        found = walk.log_prob(x, index, mask)
    except (IndexError, RuntimeError):  # a walk checks on the way what it looks up
        _inputs.check_index(index, walk.plan)  # and says which one it was
        raise
    return found if found.dtype == dtype else found.to(dtype)


@advised
def entropy(scores: Tensor, parameterization: ParameterizationLike, *, mask: Tensor | None = None) -> Tensor:
    """Entropy in nats: the sum over nodes of P(reaching the node) times the entropy of its coin.

    Finite, with a finite gradient, where a probability is 0.

    Example:
        >>> import torch, catnat.torch as ct
        >>> ct.entropy(torch.zeros(3), 4)  # log 4
        tensor(1.3863)
    """
    walk, x, mask, dtype = prepare_walk(scores, parameterization, mask)
    return walk.entropy(x, mask).to(dtype)


@advised
def kl_divergence(
    p_scores: Tensor, q_scores: Tensor, parameterization: ParameterizationLike, *, mask: Tensor | None = None
) -> Tensor:
    """KL(p || q) in nats: the sum over nodes of P(p reaches the node) times the KL of their coins.

    Both sides share the parameterization and the mask. For two different ones use `CatnatCategorical` and
    `torch.distributions.kl_divergence`.

    Example:
        >>> import torch, catnat.torch as ct
        >>> ct.kl_divergence(torch.zeros(3), torch.zeros(3), 4)
        tensor(0.)
    """
    p, plan, dtype = prepare(p_scores, parameterization)
    q, _, q_dtype = prepare(q_scores, parameterization)
    mask = prepare_mask(mask, p, plan)
    if q.dtype != p.dtype:
        p, q, plan = p.double(), q.double(), plan_for(parameterization, torch.float64, p)
    found = walk_for(plan, p, mask).kl_divergence(p, q, mask)
    return found.to(torch.promote_types(dtype, q_dtype))


@advised
def cross_entropy(
    scores: Tensor,
    target: Tensor,
    parameterization: ParameterizationLike,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    dim: int | None = None,
) -> Tensor:
    """- log p of the target class; in place of `torch.nn.functional.cross_entropy`.

    With class ids as targets and no smoothing only the targets' paths are touched.

    Args:
        scores: K-1 wide along ``dim``.
        target: class ids, shaped like the scores without ``dim``; or probabilities, K wide along ``dim``.
        parameterization: how many classes, or a `catnat.Parameterization` of them.
        weight: [K] weight of every class.
        ignore_index: a class id whose rows count for nothing.
        reduction: ``"mean"`` (weighted, over rows that count), ``"sum"`` or ``"none"``.
        label_smoothing: share of the target that is spread over all classes, in [0, 1].
        dim: axis of the scores, by default the last. torch's own loss for images has it at 1: pass ``dim=1`` there.

    Example:
        >>> import torch, catnat.torch as ct
        >>> ct.cross_entropy(torch.zeros(5, 3), torch.tensor([0, 1, 2, 3, 3]), 4)
        tensor(1.3863)
    """
    if reduction not in REDUCTIONS:
        check_choice("reduction", reduction, REDUCTIONS)
    if label_smoothing != 0:
        check_share("label_smoothing", label_smoothing)
    if not isinstance(target, Tensor):
        raise TypeError(f"target must be a torch.Tensor of class ids or of probabilities; got {type(target).__name__}")
    dim = _inputs.class_dim(scores, target, dim)
    x, plan, dtype = prepare(scores, parameterization, dim)
    walk, number = walk_for(plan, x), plan.center.dtype
    if weight is not None:
        _inputs.check_class_weights(weight, plan)
        weight = weight.to(number)
    if target.is_floating_point():
        probs = _inputs.check_target_probs(target, x, plan, dim).to(number)
        probs = probs * (1 - label_smoothing) + label_smoothing / plan.num_classes
        log_p = walk.log_probs(x).to(number)
        loss = -_eager.times_log(probs if weight is None else probs * weight, log_p).sum(-1)
        return _eager.reduced(loss, torch.ones_like(loss), reduction).to(dtype)
    _inputs.check_target_ids(target, x.shape[:-1])
    if label_smoothing == 0 and plan.num_classes > 1:
        try:
            return walk.loss(x, target, ignore_index, weight, reduction).to(dtype)
        except (IndexError, RuntimeError):  # a walk checks on the way what it looks up
            _inputs.check_index(target, plan, "target", ignore_index)  # and says which one it was
            raise
    _inputs.check_index(target, plan, "target", ignore_index)
    keep = target != ignore_index
    ids = torch.where(keep, target, 0).long()
    log_p = walk.log_probs(x).to(number)
    weight = log_p.new_ones(plan.num_classes) if weight is None else weight
    own = weight[ids]
    loss = -(1 - label_smoothing) * own * torch.gather(log_p, -1, ids.unsqueeze(-1)).squeeze(-1)
    # each class's part by itself: a sum of K large ones may be no number
    loss = loss - (log_p * (label_smoothing / plan.num_classes) * weight).sum(-1)
    return _eager.reduced(torch.where(keep, loss, 0.0), torch.where(keep, own, 0.0), reduction).to(dtype)


@advised
def scores_from_probs(probs: Tensor, parameterization: ParameterizationLike, *, dim: int = -1) -> Tensor:
    """Scores whose catnat is ``probs``: the inverse map.

    The probabilities need not sum to one. A node that is never reached gets the score 0. With the sigmoid a certain
    turn has an infinite score, as with every tail above 0; with ``tail=0`` every score is finite. No gradient goes
    through a certain turn.

    Example:
        >>> import torch, catnat.torch as ct
        >>> ct.catnat(ct.scores_from_probs(torch.tensor([0.1, 0.2, 0.7]), 3), 3)
        tensor([0.1000, 0.2000, 0.7000])
    """
    last, plan, dtype = prepare_probs(probs, parameterization, dim)
    left, right = _eager.ascend(last.to(plan.center.dtype), plan)
    return restore_dtype_and_dim(_node.score_of(_node.log_mass(left), _node.log_mass(right), plan), dtype, dim)


@advised
def scores_from_log_probs(log_probs: Tensor, parameterization: ParameterizationLike) -> Tensor:
    """Scores [..., K-1] whose log-probabilities are ``log_probs`` [..., K], which need not be normalised.

    Unlike `scores_from_probs` of their exponentials it keeps classes whose probability is no number of the dtype.
    """
    last, plan, dtype = prepare_probs(log_probs, parameterization, -1, argument="logits")
    top = last.detach().amax(-1, keepdim=True)  # taken off first: beside 1e9, log 2 would be lost
    masses = (last - torch.where(top.isfinite(), top, 0.0)).to(plan.center.dtype)
    certain = masses.new_zeros(plan.num_nodes)
    left, right, _ = _masks.log_masses(certain, certain, masses, plan)
    return _node.score_of(left, right, plan).to(dtype)


@advised
def reach(scores: Tensor, parameterization: ParameterizationLike, *, dim: int = -1) -> Tensor:
    """P(a_i): the probability of passing through every node, K-1 wide like the scores.

    Example:
        >>> import torch, catnat.torch as ct
        >>> ct.reach(torch.zeros(3), 4)
        tensor([1.0000, 0.5000, 0.5000])
    """
    x, plan, dtype = prepare(scores, parameterization, dim)
    return restore_dtype_and_dim(_eager.reach(x.to(plan.center.dtype), plan), dtype, dim)


@advised
def saturation(scores: Tensor, parameterization: ParameterizationLike, *, dim: int = -1) -> Tensor:
    """The share of nodes beyond the natural range, where the Fisher information falls off: a number in [0, 1].

    With a tail these nodes are on the straight lines, where they learn as the sigmoid does. With ``tail=0`` they sit on
    the floor and have no gradient. The sigmoid has no natural range, and no share beyond it.

    Example:
        >>> import torch, catnat.torch as ct
        >>> ct.saturation(torch.tensor([0.0, 1.0, 5.0, -9.0]), 5)
        tensor(0.5000)
    """
    x, plan, dtype = prepare(scores.detach() if isinstance(scores, Tensor) else scores, parameterization, dim)
    return _node.is_saturated(x.to(plan.center.dtype), plan).to(dtype).sum() / max(x.numel(), 1)
