"""What every integration is held against: log-probabilities, entropy and modes by the float64 oracle."""

from __future__ import annotations

import numpy as np
import torch

import catnat
from catnat.core.parameterization import resolve
from catnat_lab import reference

Floats = np.ndarray
HUFFMAN = catnat.Parameterization(5, "sigmoid", tree=catnat.Tree.huffman([0.4, 0.3, 0.1, 0.1, 0.1]))
PARAMETERIZATIONS = [catnat.Parameterization(5, of) for of in ("natural", "sigmoid", "paper", catnat.Natural(0.01))]
PARAMETERIZATIONS.append(HUFFMAN)


def split(scores: torch.Tensor, nvec: list[int]) -> list[Floats]:
    """The scores of every part, in float64."""
    return [part.double().numpy() for part in scores.detach().split([n - 1 for n in nvec], -1)]


def log_prob(
    scores: torch.Tensor,
    nvec: list[int],
    actions: torch.Tensor,
    kinds: list | None = None,
    masks: torch.Tensor | None = None,
):
    """log p of actions [rows, parts], summed over the parts."""
    allowed = [None] * len(nvec) if masks is None else [m.numpy() for m in masks.split(nvec, -1)]
    parts = zip(split(scores, nvec), actions.long().T.numpy(), kinds or nvec, allowed, strict=True)
    return sum(reference.log_prob(s, a, resolve(kind), mask) for s, a, kind, mask in parts)


def entropy(scores: torch.Tensor, nvec: list[int], kinds: list | None = None, masks: torch.Tensor | None = None):
    """Entropy, summed over the parts."""
    allowed = [None] * len(nvec) if masks is None else [m.numpy() for m in masks.split(nvec, -1)]
    parts = zip(split(scores, nvec), kinds or nvec, allowed, strict=True)
    return sum(reference.entropy(s, resolve(kind), mask) for s, kind, mask in parts)


def random_masks(rows: int, nvec: list[int], generator: torch.Generator) -> torch.Tensor:
    """Masks of every part that allow each class with probability 0.4, and at least one."""
    parts = []
    for n in nvec:
        mask = torch.rand(rows, n, generator=generator) < 0.4
        mask[torch.arange(rows), torch.randint(n, (rows,), generator=generator)] = True
        parts.append(mask)
    return torch.cat(parts, -1)


def allowed(actions: torch.Tensor, masks: torch.Tensor, nvec: list[int]) -> torch.Tensor:
    """Whether every part of an action [rows, parts] is allowed."""
    parts = zip(masks.split(nvec, -1), actions.long().T, strict=True)
    return torch.stack([mask.gather(1, action[:, None])[:, 0] for mask, action in parts]).all(0)
