"""A recurrent world model of CartPole as in Dreamer: 32 latent variables of 32 classes, prior, KL balance, unimix.

It learns from random play to predict what it will see. Softmax and catnat share every setting.
Needs: pip install ".[torch]" gymnasium
"""

import sys

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import catnat.torch as ct

VARIABLES, CLASSES, LENGTH = 32, 32, 16
STEPS = int((sys.argv[1:] or [1_000])[0])


def play(steps, seed):
    """[episode pieces, LENGTH, 4 + 1] what was seen and the action that led there, of random play."""
    game, pieces, rows = gymnasium.make("CartPole-v1"), [], []
    seen, _ = game.reset(seed=seed)
    game.action_space.seed(seed)
    for _ in range(steps):
        action = game.action_space.sample()
        seen, _, ended, cut, _ = game.step(action)
        rows.append([*seen, action])
        if len(rows) == LENGTH or ended or cut:
            pieces += [rows] if len(rows) == LENGTH else []
            rows = []
        if ended or cut:
            game.reset()
    return torch.tensor(np.array(pieces), dtype=torch.float32)


def loss_of(head, train, test):
    """The unseen pieces' loss: squared error of what is seen, plus the KL between posterior and prior."""
    torch.manual_seed(0)
    settings = {"head": head, "estimator": "straight-through", "tau": 1.0, "unimix": 0.01}
    memory = nn.GRUCell(VARIABLES * CLASSES + 1, 128)
    prior, posterior = (ct.CategoricalLatent(n, VARIABLES, CLASSES, **settings) for n in (128, 128 + 4))
    decoder = nn.Sequential(nn.Linear(128 + VARIABLES * CLASSES, 128), nn.SiLU(), nn.Linear(128, 4))
    parts = nn.ModuleList([memory, prior, posterior, decoder])
    optimizer = torch.optim.Adam(parts.parameters(), 1e-3)

    def loss(pieces):
        h, z, total = torch.zeros(len(pieces), 128), torch.zeros(len(pieces), VARIABLES * CLASSES), 0.0
        for seen, action in zip(pieces[..., :4].unbind(1), pieces[..., 4:].unbind(1), strict=True):
            h = memory(torch.cat((z, action), -1), h)
            latent = posterior(torch.cat((h, seen), -1), prior.log_probs(h))
            z = latent.z.flatten(-2)
            error = F.mse_loss(decoder(torch.cat((h, z), -1)), seen, reduction="none").sum(-1)
            total = total + (error + latent.loss(0.1, free_nats=1.0, balance=0.8)).mean()
        return total / LENGTH

    for _ in range(STEPS):
        optimizer.zero_grad()
        loss(train[torch.randint(len(train), (32,))]).backward()
        optimizer.step()
    with torch.no_grad():
        return loss(test).item()


train, test = play(20_000, seed=0), play(4_000, seed=1)
for name, head in (("softmax", "softmax"), ("catnat", "natural")):
    print(f"{name}: loss of unseen play {loss_of(head, train, test):.3f}")
