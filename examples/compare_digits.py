"""Does another last layer help in a classifier of 8x8 digits? `catnat compare` asks, and answers with its doubt.

catnat compare examples/compare_digits.py:train --better higher --rates 1e-3..1e-1 --jobs 2

Needs: pip install ".[lab]" scikit-learn
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

import catnat
import catnat.torch as ct

images, labels = map(torch.from_numpy, load_digits(return_X_y=True))
order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
images, labels = images[order].float() / 16, labels[order]
HEADS = {
    "softmax": lambda: torch.nn.Linear(64, 10),
    "natural": lambda: ct.CatnatLinear(64, catnat.Parameterization(10, "natural")),
    "sigmoid": lambda: ct.CatnatLinear(64, catnat.Parameterization(10, "sigmoid")),
}


def train(head, rate, seed, epochs=12):
    """Train on 1,000 digits; accuracy on 297 for the choice of the rate, and on the other 500."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), HEADS[head]())
    optimizer = torch.optim.Adam(model.parameters(), rate)

    def accuracy(part):
        return (model(images[part]).argmax(-1) == labels[part]).float().mean()

    for epoch in range(epochs):
        for batch in torch.randperm(1000).split(50):
            optimizer.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
        yield epoch, accuracy(slice(1000, 1297))
    return accuracy(slice(1000, 1297)), accuracy(slice(1297, None))
