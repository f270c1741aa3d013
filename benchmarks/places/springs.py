"""Neural relational inference: five balls, and between every two a spring of one of four strengths, to be found.

An encoder sees a trajectory and draws every pair's kind; a decoder predicts the next step from the kinds.
"""

import torch
import torch.nn.functional as F
from torch import nn

import catnat.torch as ct

BALLS, KINDS, LENGTH, HIDDEN = 5, 4, 12, 64
FIRST, SECOND = torch.triu_indices(BALLS, BALLS, 1)  # the pairs
DEVIATION = 0.05  # that the decoder's predictions are taken to have


def simulated(count: int, seed: int) -> torch.Tensor:
    """[count, BALLS, LENGTH, 4] places and velocities, ten small steps apart."""
    stream = torch.Generator().manual_seed(seed)
    strength = torch.randint(KINDS, (count, len(FIRST)), generator=stream) / (KINDS - 1)
    pull = torch.zeros(count, BALLS, BALLS)
    pull[:, FIRST, SECOND] = pull[:, SECOND, FIRST] = strength
    place = torch.randn(count, BALLS, 2, generator=stream)
    speed = 0.5 * torch.randn(count, BALLS, 2, generator=stream)
    seen = []
    for step in range(10 * LENGTH):
        away = place.unsqueeze(1) - place.unsqueeze(2)  # [count, i, j, 2] from i to j
        speed = speed + 0.01 * (pull.unsqueeze(-1) * away).sum(2)
        place = place + 0.01 * speed
        if step % 10 == 0:
            seen.append(torch.cat((place, speed), -1))
    return torch.stack(seen, 2)


trained_on, validated_on, tested_on = simulated(4_000, 1), simulated(500, 2), simulated(1_000, 3)


def train(head: str, rate: float, seed: int, steps: int = 2_000):
    """Minus the bound a pair and trajectory, in nats, up to the Gaussian's constant."""
    torch.manual_seed(seed)
    ball = nn.Sequential(nn.Linear(4 * LENGTH, HIDDEN), nn.ELU(), nn.Linear(HIDDEN, HIDDEN), nn.ELU())
    pair = nn.Sequential(nn.Linear(2 * HIDDEN, HIDDEN), nn.ELU(), nn.Linear(HIDDEN, HIDDEN), nn.ELU())
    kind = ct.CategoricalLatent(HIDDEN, 1, KINDS, head=head, estimator="gumbel", tau=0.5)
    push = nn.Sequential(nn.Linear(8 + KINDS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN))
    move = nn.Sequential(nn.Linear(4 + HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 4))
    optimizer = torch.optim.Adam(nn.ModuleList([ball, pair, kind, push, move]).parameters(), rate)

    def loss(seen: torch.Tensor) -> torch.Tensor:
        known = ball(seen.flatten(2))
        drawn = kind(pair(torch.cat((known[:, FIRST] + known[:, SECOND], known[:, FIRST] * known[:, SECOND]), -1)))
        now = seen[:, :, :-1]
        kinds = drawn.z.expand(-1, -1, LENGTH - 1, -1)  # [batch, pairs, steps, KINDS]
        here, there = now[:, FIRST], now[:, SECOND]
        both = torch.cat((torch.cat((here, there, kinds), -1), torch.cat((there, here, kinds), -1)), 1)
        felt = torch.zeros(*now.shape[:3], HIDDEN).index_add_(1, torch.cat((FIRST, SECOND)), push(both))
        error = F.mse_loss(now + move(torch.cat((now, felt), -1)), seen[:, :, 1:], reduction="none").sum((1, 2, 3))
        return (error / (2 * DEVIATION**2) + drawn.loss().sum(1)).mean() / len(FIRST)

    for _ in range(steps):
        optimizer.zero_grad()
        loss(trained_on[torch.randint(len(trained_on), (64,))]).backward()
        optimizer.step()
    with torch.no_grad():
        return loss(validated_on).item(), loss(tested_on).item()
