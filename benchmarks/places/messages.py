"""A message game whose test is new meanings: 4 attributes of 10 values, said in 5 symbols of 24.

A tenth of all meanings is never seen in training. Who has a code for each attribute understands them all the same.
"""

import torch
import torch.nn.functional as F
from torch import nn

import catnat.torch as ct

ATTRIBUTES, VALUES, SYMBOLS, WORDS = 4, 10, 5, 24
every = torch.cartesian_prod(*[torch.arange(VALUES)] * ATTRIBUTES)
every = every[torch.randperm(len(every), generator=torch.Generator().manual_seed(0))]
seen, validated_on, tested_on = every[:8_500], every[8_500:9_000], every[9_000:]


def train(head: str, rate: float, seed: int, steps: int = 3_000):
    """The share of new meanings that come through whole, in per cent, when the sender says its likeliest words."""
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
    def understood(meanings: torch.Tensor) -> float:
        message = latent.decode(latent.argmax(features(meanings)))
        return 100 * (heard(message).argmax(-1) == meanings).all(-1).float().mean().item()

    for _ in range(steps):
        meanings = seen[torch.randint(len(seen), (128,))]
        loss = F.cross_entropy(heard(latent(features(meanings)).z).movedim(-1, 1), meanings)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return understood(validated_on), understood(tested_on)
