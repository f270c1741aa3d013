"""A recurrent world model as in Dreamer: 16 straight-through variables of 16 classes, a learned prior, KL balance.

It learns from random play of CartPole, of which it sees the places and not the speeds, to predict what it will see.
"""

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import catnat.torch as ct

VARIABLES, CLASSES, LENGTH, SEEN = 16, 16, 10, 2


def played(steps: int, seed: int) -> torch.Tensor:
    """[pieces, LENGTH, SEEN + 1]: cart and pole, and the action that led there."""
    game, pieces, rows = gymnasium.make("CartPole-v1"), [], []
    game.reset(seed=seed)
    game.action_space.seed(seed)
    for _ in range(steps):
        action = game.action_space.sample()
        seen, _, ended, cut, _ = game.step(action)
        rows.append([seen[0], 5 * seen[2], action])
        if len(rows) == LENGTH or ended or cut:
            pieces += [rows] if len(rows) == LENGTH else []
            rows = []
        if ended or cut:
            game.reset()
    return torch.tensor(np.array(pieces), dtype=torch.float32)


trained_on, validated_on, tested_on = played(20_000, 0), played(4_000, 1), played(8_000, 2)


def train(head: str, rate: float, seed: int, steps: int = 1_000):
    """Error of what is seen, in units of a deviation of 0.05, and the KL between posterior and prior, a step."""
    torch.manual_seed(seed)
    settings = {"head": head, "estimator": "straight-through", "tau": 1.0, "unimix": 0.01}
    memory = nn.GRUCell(VARIABLES * CLASSES + 1, 128)
    prior, posterior = (ct.CategoricalLatent(n, VARIABLES, CLASSES, **settings) for n in (128, 128 + SEEN))
    decoder = nn.Sequential(nn.Linear(128 + VARIABLES * CLASSES, 128), nn.SiLU(), nn.Linear(128, SEEN))
    optimizer = torch.optim.Adam(nn.ModuleList([memory, prior, posterior, decoder]).parameters(), rate)

    def loss(pieces: torch.Tensor, balance: float | None) -> torch.Tensor:
        h, z, total = torch.zeros(len(pieces), 128), torch.zeros(len(pieces), VARIABLES * CLASSES), torch.zeros(())
        for seen, action in zip(pieces[..., :SEEN].unbind(1), pieces[..., SEEN:].unbind(1), strict=True):
            h = memory(torch.cat((z, action), -1), h)
            latent = posterior(torch.cat((h, seen), -1), prior.log_probs(h))
            z = latent.z.flatten(-2)
            error = F.mse_loss(decoder(torch.cat((h, z), -1)), seen, reduction="none").sum(-1) / (2 * 0.05**2)
            total = total + (error + latent.loss(balance=balance)).mean()
        return total / LENGTH

    for _ in range(steps):
        optimizer.zero_grad()
        loss(trained_on[torch.randint(len(trained_on), (32,))], 0.8).backward()
        optimizer.step()
    with torch.no_grad():
        return loss(validated_on, None).item(), loss(tested_on, None).item()
