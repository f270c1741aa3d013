"""An ordinary classifier in plain PyTorch, of 8x8 digits: the last layer is swapped and nothing else.

Softmax is mostly a point or two ahead here; docs/choosing.md says where it is not.
Needs: pip install ".[torch]" scikit-learn
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import catnat.torch as ct

images, labels = map(torch.from_numpy, load_digits(return_X_y=True))
order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
images, labels = images[order].float() / 16, labels[order]
train, test = slice(0, 1200), slice(1200, None)


def accuracy(make_head):
    """Share of unseen digits that are named rightly, after 30 epochs of Adam at 1e-3."""
    torch.manual_seed(1)
    body = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU())
    model = torch.nn.Sequential(body, make_head(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(30):
        for x, target in DataLoader(TensorDataset(images[train], labels[train]), batch_size=32, shuffle=True):
            loss = F.cross_entropy(model(x), target)  # a CatnatLinear gives log-probabilities, so this line stays
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return (model(images[test]).argmax(-1) == labels[test]).float().mean()


print(f"accuracy: softmax {accuracy(torch.nn.Linear):.3f}, catnat {accuracy(ct.CatnatLinear):.3f}")
