"""What samples of latent variables and their gradients are, in float64 by autograd: the judge of both backends."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import catnat

CLASSES = 5
UNEVEN = catnat.Parameterization(CLASSES, "natural", tree=catnat.Tree.from_nested([[3, [0, [4, 1]]], 2]))
HEADS: dict[str, Any] = {name: name for name in ("softmax", "natural", "sigmoid", "paper")} | {"uneven": UNEVEN}
ESTIMATORS = (
    "gumbel",
    "gumbel-relaxed",
    "gumbel-rao",
    "reinmax",
    "straight-through",
    "score-function",
)
TAU, INNER = 0.7, 10
PULL = np.random.default_rng(0).normal(size=(3 * CLASSES, 7))


def cost(z: Any, xp: Any) -> Any:
    """[...] of samples [..., variables, classes]: nothing that an estimator is exact for by luck."""
    pull = xp.asarray(PULL[: z.shape[-2] * z.shape[-1]], dtype=z.dtype)
    return xp.square(xp.tanh(z.reshape(*z.shape[:-2], -1) @ pull)).sum(-1)


def noise_of(name: str, shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Exponential variates in the order in which PyTorch's estimators draw them: of the sample, and inner ones."""
    first = torch.empty(shape, dtype=torch.float64).exponential_(generator=generator)
    return first, torch.empty((INNER, *shape), dtype=torch.float64).exponential_(generator=generator)


def log_probs(scores: Tensor, head: str) -> Tensor:
    """[..., classes] what a head makes of scores."""
    if head == "softmax":
        return scores.log_softmax(-1)
    pi = catnat.Parameterization(CLASSES, head) if isinstance(HEADS[head], str) else HEADS[head]
    odds = pi.activation.logit(scores - torch.tensor(pi.centers), torch)
    return _along_paths(odds, pi.tree)


def sample_and_soft(name: str, log_p: Tensor, noise: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """A sample, and what it has its gradient of."""
    first, inner = noise
    perturbed = log_p - first.log()
    z = F.one_hot(perturbed.argmax(-1), log_p.shape[-1]).double()
    p, fixed = log_p.exp().detach(), log_p.detach()
    if name == "straight-through":
        return z, (log_p / TAU).softmax(-1)
    if name == "gumbel":
        return z, (perturbed / TAU).softmax(-1)
    if name == "gumbel-relaxed":
        return (perturbed / TAU).softmax(-1), (perturbed / TAU).softmax(-1)
    if name == "gumbel-rao":
        # Paulus and others, 2021, (12): of the class drawn -log E, of the others -log(E / p + E of the class drawn)
        own = (inner * z).sum(-1, keepdim=True)
        given = -torch.where(z > 0, own, own + inner / p).log()
        return z, ((log_p + given - fixed) / TAU).softmax(-1).mean(0)
    if name == "reinmax":
        # Liu and others, 2023, algorithm 2: a sum of two straight-through gradients, at the middle and at p
        middle = ((z + (log_p / TAU).softmax(-1)) / 2).detach()
        return z, 2 * _linear(middle, log_p) - _linear(p, log_p) / 2
    return z, z


def expected_cost(log_p: Tensor) -> Tensor:
    """Of one row of variables, by enumeration."""
    variables, classes = log_p.shape
    every = torch.tensor(list(itertools.product(range(classes), repeat=variables)))
    z = F.one_hot(every, classes).double()
    return ((log_p * z).sum((-1, -2)).exp() * cost(z, torch)).sum()


def is_level(found: Any, expected: Any) -> bool:
    """Whether the mean of rows [draws, ...] is as expected, by a z-test of every entry."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    error = found.std(0) / np.sqrt(len(found))
    return bool((np.abs(found.mean(0) - expected) < 4.5 * error).all())


def _linear(p: Tensor, log_p: Tensor) -> Tensor:
    """With the gradient of a softmax that is p."""
    return p * (log_p - (p * log_p).sum(-1, keepdim=True))


def _along_paths(odds: Tensor, tree: catnat.Tree) -> Tensor:
    """[..., classes] the sum of the logs of the branches to a class."""
    branches = (-odds).sigmoid().log(), odds.sigmoid().log()
    of_class = [sum(branches[bit][..., node - 1] for node, bit in tree.path(k)) for k in range(CLASSES)]
    return torch.stack(of_class, -1)  # type: ignore[arg-type]
