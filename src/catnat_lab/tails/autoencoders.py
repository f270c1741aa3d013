"""Categorical VAEs on MNIST: the convolutional one by straight-through samples, the dense one by the score function."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from catnat_lab.experiment import Outcome
from catnat_lab.tails import tasks
from catnat_lab.tails.tasks import Progress, Task
from catnat_lab.vae.data import Images, images_of
from catnat_lab.vae.digits import Digits
from catnat_lab.vae.stack import Run
from catnat_lab.vae.train import Plan, train, value_of


@dataclass(frozen=True, kw_only=True)
class Autoencoder(Task):
    plan: Plan
    images: Images
    data: str
    judged: str  # which measure on the test images is the result
    measure: str = "bound on the negative log-likelihood, nats"
    tolerance: float = 1.0
    search_seeds: int = 2
    seeds: int = 5
    at_once: int = 64

    def train(self, runs: Sequence[tasks.Run], device: torch.device, progress: Progress) -> list[Outcome]:
        own = [Run(self.data, *run) for run in runs]
        told = partial(progress, self.name)
        sign = -1 if self.judged.startswith("elbo") else 1
        outcomes = train(own, self.plan, self.images, (self.data,), device, on_step=told)
        return [Outcome(value_of(each), {"test": sign * each.metrics[self.judged]}, {}) for each in outcomes]


def convolutional(digits: Digits, steps: int = 20_000, samples: int = 64) -> Autoencoder:
    """20 variables of 16 classes, grey pixels, Adam."""
    return Autoencoder(
        name="VAE, convolutional, 20x16",
        plan=Plan("convolutional", 20, 16, "adam", "straight-through", steps, 100, samples),
        images=images_of(digits, ("grey",), False),
        data="grey",
        judged="nll",
        rates=(0.0003, 0.00065, 0.0014, 0.003, 0.0065, 0.014, 0.03),
    )


def dense(digits: Digits, steps: int = 40_000, samples: int = 1) -> Autoencoder:
    """10 variables of 8 classes, pixels drawn anew, Adam."""
    return Autoencoder(
        name="VAE, dense, 10x8",
        plan=Plan("dense", 10, 8, "adam", "score-function", steps, 128, samples),
        images=images_of(digits, ("bernoulli",), True),
        data="bernoulli",
        judged="elbo",
        rates=(0.00003, 0.000065, 0.00014, 0.0003, 0.00065, 0.0014, 0.003),
    )
