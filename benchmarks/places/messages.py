"""A message game: a sender sees 6 attributes of 8 values and says 6 symbols of 16, a receiver names them."""

import torch
import torch.nn.functional as F
from torch import nn

import catnat.torch as ct

ATTRIBUTES, VALUES, SYMBOLS, WORDS = 6, 8, 6, 16


def train(head: str, rate: float, seed: int, steps: int = 3_000):
    """The share of meanings that come through whole, in per cent, when the sender says its likeliest words."""
    torch.manual_seed(seed)
    sender = nn.Sequential(nn.Linear(ATTRIBUTES * VALUES, 128), nn.ReLU())
    latent = ct.CategoricalLatent(128, SYMBOLS, WORDS, head=head, estimator="gumbel", tau=1.0)
    receiver = nn.Sequential(nn.Linear(SYMBOLS * WORDS, 128), nn.ReLU(), nn.Linear(128, ATTRIBUTES * VALUES))
    optimizer = torch.optim.Adam([*sender.parameters(), *latent.parameters(), *receiver.parameters()], rate)

    def features(meanings: torch.Tensor) -> torch.Tensor:
        return sender(F.one_hot(meanings, VALUES).float().flatten(-2))

    def heard(message: torch.Tensor) -> torch.Tensor:
        return receiver(message.flatten(-2)).unflatten(-1, (ATTRIBUTES, VALUES))

    @torch.no_grad()
    def understood() -> float:
        meanings = torch.randint(VALUES, (10_000, ATTRIBUTES))
        message = latent.decode(latent.argmax(features(meanings)))
        return 100 * (heard(message).argmax(-1) == meanings).all(-1).float().mean().item()

    for _ in range(steps):
        meanings = torch.randint(VALUES, (128, ATTRIBUTES))
        loss = F.cross_entropy(heard(latent(features(meanings)).z).movedim(-1, 1), meanings)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return understood(), understood()
