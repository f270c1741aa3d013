"""The paper's theory as functions: Fisher matrices of catnat, of softmax and of any head."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from catnat.core.errors import advised, check_nonnegative
from catnat.core.parameterization import ParameterizationLike
from catnat.torch import _eager, _node
from catnat.torch._inputs import prepare, restore_dtype_and_dim

__all__ = ["fisher_diagonal", "fisher_matrix", "natural_gradient", "softmax_fisher"]


@advised
def fisher_diagonal(scores: Tensor, parameterization: ParameterizationLike, *, dim: int = -1) -> Tensor:
    """The Fisher matrix of a catnat in its scores, which is diagonal: P(a_i) a'(s_i)^2 / (a (1-a)). O(K).

    This is Theorem 1 of the paper. With the natural activation the second factor is (pi/A)^2 wherever the score is
    inside its natural range (Corollary 1). Beyond, it is a (1-a) s^2, s the slope of the straight line; with ``tail=0``
    it is 0.

    Example:
        >>> import torch, catnat.torch as ct
        >>> ct.fisher_diagonal(torch.zeros(3), 4)
        tensor([0.2500, 0.1250, 0.1250])
    """
    x, plan, dtype = prepare(scores, parameterization, dim)
    x = x.to(plan.center.dtype)
    return restore_dtype_and_dim(_eager.reach(x, plan) * _node.information(x, plan), dtype, dim)


@advised
def natural_gradient(
    scores: Tensor, parameterization: ParameterizationLike, *, damping: float = 0.0, dim: int = -1
) -> Tensor:
    """The scores themselves; on the way back, the gradient divided by (Fisher diagonal + damping), a constant.

    With ``damping=0`` this is the exact natural gradient in the scores (0 where the Fisher information is 0). Nodes
    deep in the tree are rarely reached, so their Fisher information is small and noise in their gradient is blown up:
    with noisy gradients start from ``damping=0.1``.

    Example:
        >>> import torch, catnat.torch as ct
        >>> scores = torch.zeros(3, requires_grad=True)
        >>> ct.log_catnat(ct.natural_gradient(scores, 4), 4)[0].backward()
        >>> scores.grad.round()
        tensor([-2., -4.,  0.])
    """
    damping = check_nonnegative("damping", damping)
    with torch.no_grad():
        fixed = scores.detach() if isinstance(scores, Tensor) else scores  # which the next line refuses
        divisor = fisher_diagonal(fixed, parameterization, dim=dim) + damping
    # plain operations, open to every transform: scores - fixed is 0 in value and has the scores' derivative
    usable = (divisor != 0) & fixed.isfinite()
    return fixed + torch.where(usable, scores - fixed, 0.0) / torch.where(usable, divisor, 1.0)


# -- any head ----------------------------------------------------------------------------------------------------


def softmax_fisher(logits: Tensor) -> Tensor:
    """The Fisher matrix of softmax in its logits, diag(p) - p p^T: dense (Proposition 1 of the paper).

    Example:
        >>> import torch
        >>> from catnat.torch.fisher import softmax_fisher
        >>> softmax_fisher(torch.zeros(2))
        tensor([[ 0.2500, -0.2500],
                [-0.2500,  0.2500]])
    """
    p = torch.softmax(logits, -1)
    return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)


def fisher_matrix(log_probs: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    """The Fisher matrix [..., S, S] of any head by automatic differentiation: the mean of grad log p_k grad log p_k^T.

    ``log_probs`` maps a row of ``scores`` [..., S] to log-probabilities [K], as `torch.log_softmax` and `log_catnat`.

    Example:
        >>> import torch, catnat.torch as ct
        >>> ct.fisher_matrix(lambda scores: ct.log_catnat(scores, 3), torch.zeros(2)).diagonal()
        tensor([0.2500, 0.1667])
    """

    def of_row(row: Tensor) -> Tensor:
        gradients = jacrev(log_probs)(row)  # [K, S]
        # a class of probability 0 weighs nothing, even where its log has no gradient
        p = log_probs(row).exp().unsqueeze(-1)
        return torch.where(p > 0, gradients, 0.0).T @ torch.where(p > 0, p * gradients, 0.0)

    rows = scores.reshape(-1, scores.shape[-1])
    return vmap(of_row)(rows).reshape(*scores.shape, scores.shape[-1])
