"""A mixture of 16 experts with a hard router: each input goes to one of them, and a load loss keeps all at work.

The task has 64 clusters, each with one of 16 functions of the place within it.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

import catnat.torch as ct

EXPERTS, CLUSTERS, INPUTS, OUTPUTS = 16, 64, 16, 4


def drawn(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[count, INPUTS] and [count, OUTPUTS]."""
    fixed, stream = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    centers = 2 * torch.randn(CLUSTERS, INPUTS, generator=fixed)
    turns = torch.randn(EXPERTS, INPUTS, OUTPUTS, generator=fixed) / 4
    cluster = torch.randint(CLUSTERS, (count,), generator=stream)
    inside = torch.randn(count, INPUTS, generator=stream)
    y = torch.einsum("ni,nio->no", inside, turns[cluster % EXPERTS]).sin()
    return centers[cluster] + inside, y + 0.05 * torch.randn(count, OUTPUTS, generator=stream)


trained_on, validated_on, tested_on = drawn(20_000, 1), drawn(2_000, 2), drawn(4_000, 3)


def train(head: str, rate: float, seed: int, steps: int = 3_000):
    """The squared error of inputs not seen, each by its likeliest expert."""
    torch.manual_seed(seed)
    gate = nn.Sequential(nn.Linear(INPUTS, 128), nn.ReLU())
    router = ct.CategoricalLatent(128, 1, EXPERTS, head=head, estimator="gumbel", tau=1.0)
    first = nn.Parameter(torch.randn(EXPERTS, INPUTS, 16) / math.sqrt(INPUTS))
    second = nn.Parameter(torch.randn(EXPERTS, 16, OUTPUTS) / 4)
    optimizer = torch.optim.Adam([*gate.parameters(), *router.parameters(), first, second], rate)

    def answered(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        every = torch.einsum("neh,eho->neo", torch.einsum("ni,eih->neh", x, first).relu(), second)
        return (z.transpose(1, 2) * every).sum(1)

    @torch.no_grad()
    def error(x: torch.Tensor, y: torch.Tensor) -> float:
        return F.mse_loss(answered(x, router.decode(router.argmax(gate(x)))), y).item()

    for _ in range(steps):
        rows = torch.randint(len(trained_on[0]), (256,))
        x, y = (part[rows] for part in trained_on)
        q = router(gate(x))
        share, chance = q.z.detach().mean((0, 1)), q.log_q.exp().mean((0, 1))
        load = EXPERTS * (share * chance).sum()  # 1 where all are used alike
        optimizer.zero_grad()
        (F.mse_loss(answered(x, q.z), y) + 0.01 * load).backward()
        optimizer.step()
    return error(*validated_on), error(*tested_on)
