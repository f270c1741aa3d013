"""The heads of the study: the library's, and two that part what catnat changes, its coordinates and its locality."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

import catnat
import catnat.torch as ct
from catnat_lab.heads import Head, head

HEADS = ("softmax", "catnat", "catnat-sigmoid", "hybrid", "haar")


@dataclass(frozen=True)
class Haar(Head):
    """The tree's coordinates under one softmax: a class's logit is its path's sum of half scores, minus to the left."""

    num_classes: int

    def log_probs(self, scores: Tensor) -> Tensor:
        return torch.log_softmax(scores @ _half_turns(self.num_classes, scores.device, scores.dtype), -1)


@dataclass(frozen=True)
class Hybrid(Head):
    """K-1 node scores and K class scores: a node's log-odds are its own plus what the classes' softmax would give it.

    With class scores of 0 it is catnat with the sigmoid, with node scores of 0 exactly softmax.
    """

    num_classes: int

    def log_probs(self, scores: Tensor) -> Tensor:
        pi = catnat.Parameterization(self.num_classes, "sigmoid")
        nodes, classes = scores[..., : self.num_classes - 1], scores[..., self.num_classes - 1 :]
        return ct.log_catnat(nodes + ct.scores_from_log_probs(classes, pi), pi)


def latent_head(name: str, num_classes: int) -> Head:
    if name == "haar":
        return Haar(name, num_classes - 1, num_classes)
    if name == "hybrid":
        return Hybrid(name, widest(num_classes), num_classes)
    return head(name, num_classes)


def widest(num_classes: int) -> int:
    """The most scores that any head takes: so many the encoders have, whatever their head."""
    return 2 * num_classes - 1


@cache
def _half_turns(num_classes: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """[K-1, K]: 1/2 where a class's path turns right at a node, -1/2 where it turns left, 0 where it does not pass."""
    found = torch.zeros(num_classes - 1, num_classes, dtype=dtype)
    tree = catnat.Tree.balanced(num_classes)
    for k in range(num_classes):
        for node, bit in tree.path(k):
            found[node - 1, k] = bit - 0.5
    return found.to(device)
