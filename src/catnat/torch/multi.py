"""Several independent catnats side by side, for actions with several parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.kl import register_kl

from catnat.core.errors import check_num_classes, check_width
from catnat.torch.distributions import CatnatCategorical, Shape
from catnat.torch._inputs import ParameterizationLike, check_mask, check_scores


class MultiCatnat(Distribution):
    """Independent catnats of different sizes side by side, for actions with several parts (`MultiDiscrete`).

    Args:
        scores: [..., sum of (n - 1)], the parts' scores one after the other.
        nvec: number of classes of every part.
        parameterization: the name (or value) of an activation for all parts, or one `Parameterization` a part.
        mask: [..., sum of n] allowed classes, the parts' one after the other.
        mask_mode: as in `CatnatCategorical`.
        validate_args: as in torch.

    Example:
        >>> import torch, catnat.torch as ct
        >>> action = ct.MultiCatnat(torch.zeros(7, 2 + 4), [3, 5]).sample()
        >>> action.shape
        torch.Size([7, 2])
    """

    arg_constraints = {"scores": constraints.real_vector}  # noqa: RUF012

    def __init__(
        self,
        scores: Tensor,
        nvec: Sequence[int],
        parameterization: ParameterizationLike | Sequence[ParameterizationLike] = "natural",
        *,
        mask: Tensor | None = None,
        mask_mode: str = "renormalize",
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(nvec, Iterable):
            raise TypeError(f"nvec must be a sequence of numbers of classes; got {nvec!r}")
        self.nvec = tuple(check_num_classes(n) for n in nvec)
        if not self.nvec:
            raise ValueError("nvec must name at least one part; got none")
        per_part = isinstance(parameterization, Sequence) and not isinstance(parameterization, str)
        kinds: list[Any] = list(parameterization) if per_part else [parameterization] * len(self.nvec)  # type: ignore
        if len(kinds) != len(self.nvec):
            raise ValueError(f"parameterization must name one a part: {len(self.nvec)}; got {len(kinds)}")
        check_scores(scores)
        check_width(sum(self.nvec) - len(self.nvec) + 1, scores.shape[-1], scores.shape)
        if mask is not None:
            check_mask(mask)
            if mask.shape[-1:] != (sum(self.nvec),):
                raise ValueError(f"mask must be sum(nvec) = {sum(self.nvec)} wide; got shape {tuple(mask.shape)}")
        masks = [None] * len(self.nvec) if mask is None else mask.split(self.nvec, -1)
        parts = scores.split([n - 1 for n in self.nvec], -1)
        self.parts = [
            CatnatCategorical(part, kind, mask=allowed, mask_mode=mask_mode, validate_args=validate_args)
            for part, kind, allowed in zip(parts, kinds, masks, strict=True)
        ]
        self.scores = scores
        super().__init__(self.parts[0].batch_shape, torch.Size([len(self.nvec)]), validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """Class ids, part by part."""
        parts = [constraints.integer_interval(0, n - 1) for n in self.nvec]
        return constraints.independent(constraints.cat(parts, -1, [1] * len(parts)), 1)

    @property
    def mode(self) -> Tensor:
        """The likeliest class of every part."""
        return torch.stack([part.mode for part in self.parts], -1)

    @property
    def deterministic_sample(self) -> Tensor:
        """The likeliest class of every part, under TorchRL's name."""
        return self.mode

    def expand(self, batch_shape: Shape, _instance: Any = None) -> MultiCatnat:
        """The same distribution over a larger batch."""
        new = self._get_checked_instance(MultiCatnat, _instance)
        new.nvec = self.nvec
        new.parts = [part.expand(batch_shape) for part in self.parts]
        new.scores = self.scores.expand((*torch.Size(batch_shape), -1))
        Distribution.__init__(new, torch.Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def sample(self, sample_shape: Shape = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw class ids [..., parts]."""
        return torch.stack([part.sample(sample_shape, generator=generator) for part in self.parts], -1)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p of class ids [..., parts], summed over the parts."""
        if self._validate_args:
            self._validate_sample(value)
        return torch.stack([part.log_prob(v) for part, v in zip(self.parts, value.unbind(-1), strict=True)], -1).sum(-1)

    def entropy(self) -> Tensor:
        """Entropy in nats, summed over the parts."""
        return torch.stack([part.entropy() for part in self.parts], -1).sum(-1)


@register_kl(MultiCatnat, MultiCatnat)
def _kl_multi_multi(p: MultiCatnat, q: MultiCatnat) -> Tensor:
    if p.nvec != q.nvec:
        raise ValueError(f"KL needs the same nvec on both sides; got {p.nvec} and {q.nvec}")
    parts = [torch.distributions.kl_divergence(a, b) for a, b in zip(p.parts, q.parts, strict=True)]
    return torch.stack(parts, -1).sum(-1)
