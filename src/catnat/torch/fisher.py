"""The paper's theory as functions: Fisher matrices of softmax, of catnat, of any head, and of the network below it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.func import functional_call, jacrev, vmap

from catnat.core.errors import check_nonnegative
from catnat.torch import _eager, _masks, _node
from catnat.torch._inputs import ParameterizationLike, prepare, prepare_mask


def fisher_diagonal(
    scores: Tensor, parameterization: ParameterizationLike = "natural", *, mask: Tensor | None = None, dim: int = -1
) -> Tensor:
    """The Fisher matrix of a catnat in its scores, which is diagonal: P(a_i) a'(s_i)^2 / (a (1-a)). O(K).

    This is Theorem 1 of the paper. With the natural activation the second factor is (pi/A)^2 wherever the score is
    inside its natural range (Corollary 1). Beyond, it is a (1-a) s^2, s the slope of the straight line; with ``tail=0``
    it is 0.

    Args:
        scores: K-1 wide along ``dim``.
        parameterization: as in `catnat.torch.log_catnat`.
        mask: allowed classes; prunes the tree. (A renormalised catnat has no diagonal Fisher matrix.)
        dim: axis of the scores.

    Example:
        >>> import torch, catnat.torch as ct
        >>> ct.fisher_diagonal(torch.zeros(3))
        tensor([0.2500, 0.1250, 0.1250])
    """
    x, plan, dtype = prepare(scores, parameterization, dim)
    mask = prepare_mask(mask, "prune", x, plan, dim)
    x = x.to(plan.center.dtype)
    information = _node.information(x, plan)
    if mask is not None:
        information = torch.where(_masks.both_live(mask, plan, x.dtype), information, 0.0)
    reached = _eager.descend(*_masks.branches(x, plan, mask), plan)[1]
    diagonal = (reached.exp() * information).to(dtype)
    return diagonal if dim in (-1, scores.dim() - 1) else diagonal.movedim(-1, dim)


def natural_gradient(
    scores: Tensor,
    parameterization: ParameterizationLike = "natural",
    *,
    damping: float = 0.0,
    mask: Tensor | None = None,
    dim: int = -1,
) -> Tensor:
    """The scores themselves; on the way back, the gradient divided by (Fisher diagonal + damping).

    With ``damping=0`` this is the exact natural gradient in the scores (0 where the Fisher information is 0). Nodes
    deep in the tree are rarely reached, so their Fisher information is small and noise in their gradient is blown up:
    with noisy gradients start from ``damping=0.1``.

    Example:
        >>> import torch, catnat.torch as ct
        >>> scores = torch.zeros(3, requires_grad=True)
        >>> ct.log_catnat(ct.natural_gradient(scores))[0].backward()
        >>> scores.grad.round()
        tensor([-2., -4.,  0.])
    """
    damping = check_nonnegative("damping", damping)
    with torch.no_grad():
        divisor = fisher_diagonal(scores, parameterization, mask=mask, dim=dim) + damping
    return _Divide.apply(scores, divisor)


class _Divide(torch.autograd.Function):
    """Identity whose gradient is divided, and 0 where the divisor is."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, divisor: Tensor) -> Tensor:
        return scores.view_as(scores)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (divisor,) = ctx.saved_tensors
        return torch.where(divisor == 0, 0.0, gradient / torch.where(divisor == 0, 1.0, divisor)), None


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
    """The Fisher matrix of any head by automatic differentiation: sum over classes of p_k grad log p_k grad log p_k^T.

    Args:
        log_probs: maps one row of scores [S] to log-probabilities [K]; e.g. `torch.log_softmax` or `log_catnat`.
        scores: [..., S].

    Returns:
        [..., S, S].

    Example:
        >>> import torch, catnat.torch as ct
        >>> from catnat.torch.fisher import fisher_matrix
        >>> fisher_matrix(ct.log_catnat, torch.zeros(2)).diagonal()
        tensor([0.2500, 0.1667])
    """

    def of_row(row: Tensor) -> Tensor:
        gradients = jacrev(log_probs)(row)  # [K, S]
        # a class of probability 0 weighs nothing, even where its log has no gradient
        p = log_probs(row).exp().unsqueeze(-1)
        return torch.where(p > 0, gradients, 0.0).T @ torch.where(p > 0, p * gradients, 0.0)

    rows = scores.reshape(-1, scores.shape[-1])
    return vmap(of_row)(rows).reshape(*scores.shape, scores.shape[-1])


def monte_carlo_fisher(distribution: Callable[[Tensor], Distribution], scores: Tensor, num_samples: int) -> Tensor:
    """An estimate of the Fisher matrix from draws: the mean of grad log p(x) grad log p(x)^T over x ~ p.

    For heads that are too large, or too strange, to sum over.

    Args:
        distribution: maps one row of scores [S] to a distribution with `sample` and `log_prob`.
        scores: [S].
        num_samples: how many draws.

    Returns:
        [S, S].

    Example:
        >>> import torch, catnat.torch as ct
        >>> from catnat.torch.fisher import monte_carlo_fisher
        >>> monte_carlo_fisher(ct.CatnatCategorical, torch.zeros(2), 1000).shape
        torch.Size([2, 2])
    """
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1; got {num_samples}")
    if scores.dim() != 1:
        raise ValueError(f"scores must be one row [S]; got shape {tuple(scores.shape)}")
    leaf = scores.detach().requires_grad_()
    drawn = distribution(leaf.detach()).sample((num_samples,))
    log_p = distribution(leaf).log_prob(drawn)
    if log_p.shape != (num_samples,):
        raise ValueError(
            f"distribution must give one log_prob a draw, shape {(num_samples,)}; got {tuple(log_p.shape)}"
        )
    total = scores.new_zeros(scores.shape[0], scores.shape[0])
    for first in range(0, num_samples, 256):  # so that memory stays linear in the draws
        rows = torch.arange(min(256, num_samples - first), device=log_p.device)
        chunk = log_p.new_zeros(rows.numel(), num_samples)
        chunk[rows, first + rows] = 1
        (gradients,) = torch.autograd.grad(log_p, leaf, chunk, is_grads_batched=True, retain_graph=True)
        total += gradients.T @ gradients
    return total / num_samples


def network_fisher(network: torch.nn.Module, inputs: Tensor, score_fisher: Callable[[Tensor], Tensor]) -> Tensor:
    """The Fisher matrix in a network's parameters: the mean over inputs of J^T G(s) J (the paper's global FIM).

    A diagonal G leaves a sum of one outer product a score, with no cross terms between scores.

    Args:
        network: maps inputs [B, ...] to scores [B, S].
        inputs: a batch.
        score_fisher: the Fisher matrix in the scores [B, S, S], or its diagonal [B, S]; e.g. `fisher_diagonal` or
            `softmax_fisher`.

    Returns:
        [P, P], P the number of trainable parameters in the order of ``network.named_parameters()``.
    """
    parameters = {name: p.detach() for name, p in network.named_parameters() if p.requires_grad}

    def scores_of(values: dict[str, Tensor], row: Tensor) -> Tensor:
        return functional_call(network, values, (row.unsqueeze(0),)).squeeze(0)

    jacobians = vmap(jacrev(scores_of), (None, 0))(parameters, inputs)
    jacobian = torch.cat([j.flatten(2) for j in jacobians.values()], -1)  # [B, S, P]
    with torch.no_grad():
        information = score_fisher(network(inputs))
    if information.dim() == 2:  # a diagonal
        weighted = information.unsqueeze(-1) * jacobian
    else:
        weighted = information @ jacobian
    return torch.einsum("bsp,bsq->pq", jacobian, weighted) / inputs.shape[0]


def condition_number(matrix: Tensor, *, rtol: float | None = None) -> Tensor:
    """Largest by smallest eigenvalue of a Fisher matrix, on its support.

    Eigenvalues below ``rtol`` times the largest count as exact zeros (softmax always has one: shifting all logits
    changes nothing) and are left out.

    Args:
        matrix: [..., S, S] symmetric positive semi-definite, or one diagonal [S] as a vector (not a stack of them).
        rtol: what counts as zero; by default 10 S times the rounding error of the dtype.

    Example:
        >>> import torch
        >>> from catnat.torch.fisher import condition_number
        >>> condition_number(torch.tensor([4.0, 1.0, 2.0]))
        tensor(4.)
    """
    values = matrix if matrix.dim() == 1 else torch.linalg.eigvalsh(matrix)
    if rtol is None:
        rtol = 10 * matrix.shape[-1] * torch.finfo(matrix.dtype).eps
    largest = values.amax(-1, keepdim=True)
    smallest = torch.where(values > rtol * largest, values, torch.inf).amin(-1)
    return largest.squeeze(-1) / smallest
