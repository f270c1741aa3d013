"""Modules: the functions with their settings kept. No logic of their own, and nothing in their state_dict."""

from __future__ import annotations

import torch
from torch import Tensor

from catnat.core.errors import MASK_MODES, REDUCTIONS, check_choice, check_share
from catnat.core.parameterization import resolve
from catnat.torch import functional
from catnat.torch._inputs import ParameterizationLike


class Catnat(torch.nn.Module):
    """Probabilities of K classes from K-1 scores; in place of `torch.nn.Softmax`.

    Example:
        >>> import torch, catnat.torch as ct
        >>> head = torch.nn.Sequential(torch.nn.Linear(16, 10 - 1), ct.Catnat())
        >>> head(torch.zeros(2, 16)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self, parameterization: ParameterizationLike = "natural", dim: int = -1, *, mask_mode: str = "renormalize"
    ) -> None:
        super().__init__()
        check_choice("mask_mode", mask_mode, MASK_MODES)
        resolve(parameterization, 1)  # a wrong one is refused here, not at the first call
        self.parameterization = parameterization
        self.dim = dim
        self.mask_mode = mask_mode

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """[..., K-1] scores to [..., K] probabilities."""
        return functional.catnat(scores, self.parameterization, mask=mask, mask_mode=self.mask_mode, dim=self.dim)

    def extra_repr(self) -> str:
        """Settings for print()."""
        return f"{self.parameterization!r}, dim={self.dim}"


class LogCatnat(Catnat):
    """Log-probabilities of K classes from K-1 scores; in place of `torch.nn.LogSoftmax`."""

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """[..., K-1] scores to [..., K] log-probabilities."""
        return functional.log_catnat(scores, self.parameterization, mask=mask, mask_mode=self.mask_mode, dim=self.dim)


class CatnatCrossEntropyLoss(torch.nn.Module):
    """- log p of the target; in place of `torch.nn.CrossEntropyLoss`. Arguments as in `catnat.torch.cross_entropy`.

    Example:
        >>> import torch, catnat.torch as ct
        >>> loss = ct.CatnatCrossEntropyLoss(label_smoothing=0.1)
        >>> loss(torch.zeros(4, 9), torch.tensor([0, 3, 9, 9]))
        tensor(2.3026)
    """

    weight: Tensor | None

    def __init__(
        self,
        parameterization: ParameterizationLike = "natural",
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        dim: int = -1,
    ) -> None:
        super().__init__()
        check_choice("reduction", reduction, REDUCTIONS)
        check_share("label_smoothing", label_smoothing)
        resolve(parameterization, 1)
        self.parameterization = parameterization
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing
        self.dim = dim
        self.register_buffer("weight", weight)

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        """Loss of [..., K-1] scores against class ids or probabilities."""
        return functional.cross_entropy(
            scores,
            target,
            self.parameterization,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
            dim=self.dim,
        )

    def extra_repr(self) -> str:
        """Settings for print()."""
        return f"{self.parameterization!r}, reduction={self.reduction!r}"
