"""Does another head help in a Gumbel-softmax VAE of 8x8 digits? 8 latent variables of 8 classes each.

catnat compare examples/compare_vae.py:train --better lower --rates 1e-3..1e-1 --jobs 2

Needs: pip install ".[lab]" scikit-learn
"""

import math

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import catnat.torch as ct

images = torch.tensor(load_digits().data > 7, dtype=torch.float32)
images = images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))]
HEADS = {  # width, samples and log-probabilities
    "softmax": (8, lambda scores: F.gumbel_softmax(scores, tau=0.5, hard=True), lambda scores: scores.log_softmax(-1)),
    "natural": (7, lambda scores: ct.gumbel_softmax(scores, 8, tau=0.5, hard=True), lambda s: ct.log_catnat(s, 8)),
}


def train(head, rate, seed, steps=600):
    """The negative ELBO of unseen digits, in nats: of 297 for the choice of the rate, and of the other 500."""
    torch.manual_seed(seed)
    width, sample, log_probs = HEADS[head]
    encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8 * width), nn.Unflatten(1, (8, width)))
    decoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], rate)

    def loss(x):
        scores = encoder(x)
        log_q = log_probs(scores)
        kl = (log_q.exp() * (log_q + math.log(8))).sum((-1, -2))  # from the uniform prior
        return (F.binary_cross_entropy_with_logits(decoder(sample(scores)), x, reduction="none").sum(-1) + kl).mean()

    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss(images[torch.randint(1000, (100,))]).backward()
        optimizer.step()
        if step % 100 == 0:
            yield step, loss(images[1000:1297]).item()
    return loss(images[1000:1297]).item(), loss(images[1297:]).item()
