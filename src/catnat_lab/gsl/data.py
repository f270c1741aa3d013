"""What is to be recovered: a random graph of communities, and what one graph convolution makes of noise on it.

y = A x W with A_ij ~ Bernoulli(theta*_ij), x ~ N(0, 1), drawn anew for every pair (x, y).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

COMMUNITY_NODES = 6
COMMUNITY_EDGES = ((0, 1), (1, 2), (3, 4), (1, 3), (2, 4), (4, 5), (0, 3), (1, 4), (3, 5))
FEATURES, OUTPUTS = 4, 2

# The squared norms of the columns of W by theta*. The paper's five datasets do not share W. The mean of the two follows
# from its optimal PP-MSE: theta* (1 - theta*) times the mean in-degree 4.25 times this, times 1 + 1/32, as the mean of
# M = 32 samples stands for the expectation. At 0.75 its optimal PP-MAE is 2% lower than equal columns can have, so
# there they differ.
PAPER_COLUMN_NORMS = {
    0.1: (1.559, 1.559),
    0.25: (1.582, 1.582),
    0.5: (2.247, 2.247),
    0.75: (2.135, 0.949),
    0.9: (1.549, 1.549),
}
OTHER_COLUMN_NORMS = (1.55, 1.55)


def true_edges(communities: int) -> Tensor:
    """Which entries of the adjacency matrix may be 1: [N, N], symmetric, self-loops included."""
    nodes = COMMUNITY_NODES * communities
    edges = torch.eye(nodes, dtype=torch.bool)
    for first in range(0, nodes, COMMUNITY_NODES):
        for i, j in COMMUNITY_EDGES:
            edges[first + i, first + j] = edges[first + j, first + i] = True
        if first:  # the last node of a community is joined to the first of the next
            edges[first - 1, first] = edges[first, first - 1] = True
    return edges


@dataclass(frozen=True, eq=False)
class Dataset:
    """One theta*: the truth, and pairs (x, y) split 80/10/10."""

    theta_star: float
    theta: Tensor  # [N, N]
    weight: Tensor  # [F, O]
    train: tuple[Tensor, Tensor]  # x [n, N, F], y [n, N, O]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def make_dataset(theta_star: float, *, communities: int, pairs: int, seed: int = 0) -> Dataset:
    """Draw a dataset, always on the CPU: the same one whatever it is used on."""
    generator = torch.Generator().manual_seed(seed)
    theta = true_edges(communities) * theta_star
    weight = glorot(generator)
    norms = torch.tensor(PAPER_COLUMN_NORMS.get(theta_star, OTHER_COLUMN_NORMS))
    weight = weight * (norms / weight.square().sum(0)).sqrt()
    nodes = theta.shape[0]
    x = torch.randn(pairs, nodes, FEATURES, generator=generator)
    graphs = (torch.rand(pairs, nodes, nodes, generator=generator) < theta).float()
    y = graphs @ x @ weight
    held = pairs // 10
    parts = zip(*(tensor.split([pairs - 2 * held, held, held]) for tensor in (x, y)), strict=True)
    return Dataset(theta_star, theta, weight, *parts)


def glorot(generator: torch.Generator) -> Tensor:
    """Initial weights [F, O], Glorot-uniform."""
    bound = (6 / (FEATURES + OUTPUTS)) ** 0.5
    return (2 * torch.rand(FEATURES, OUTPUTS, generator=generator) - 1) * bound
