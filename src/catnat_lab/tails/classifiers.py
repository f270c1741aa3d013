"""Classifiers on MNIST: every run's parameters are a row of one matrix, so that all of them are one program."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from catnat_lab.adam import adam_step
from catnat_lab.devices import forget_fused, fused, tensor_cores
from catnat_lab.experiment import Outcome
from catnat_lab.heads import by_head, sorted_by_head
from catnat_lab.tails.tasks import Progress, Run, Task
from catnat_lab.vae.digits import Digits

CLASSES = 10
HELD_OUT = 12  # one training image in so many is for validation
JUDGED = 1000  # images at a time
RATES = {
    "Adam": (0.0001, 0.00022, 0.00046, 0.001, 0.0022, 0.0046, 0.01),
    "SGD": (0.01, 0.022, 0.046, 0.1, 0.22, 0.46, 1.0),
}


def network_of(kind: str) -> nn.Module:
    """Images [B, 784] to ten scores; a catnat reads the first nine."""
    if kind == "MLP":
        return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 8, 5, 2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 5, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 64),
        nn.ReLU(),
        nn.Linear(64, CLASSES),
    )


@dataclass(frozen=True, kw_only=True)
class Classifier(Task):
    digits: Digits
    labels: tuple[Tensor, Tensor]  # of the training and of the test images
    kind: str
    optimiser: str
    epochs: int = 10
    batch: int = 128
    measure: str = "error on the test images, per cent"
    tolerance: float = 0.5
    search_seeds: int = 3
    seeds: int = 5
    at_once: int = 320

    @classmethod
    def of(cls, digits: Digits, labels: tuple[Tensor, Tensor], kind: str, optimiser: str) -> Self:
        name = f"classifier, {kind}, {optimiser}"
        return cls(name=name, digits=digits, labels=labels, kind=kind, optimiser=optimiser, rates=RATES[optimiser])

    def train(self, runs: Sequence[Run], device: torch.device, progress: Progress) -> list[Outcome]:
        return _train(runs, self, device, progress)


@sorted_by_head
def _train(runs: Sequence[Run], task: Classifier, device: torch.device, progress: Progress) -> list[Outcome]:
    stack = _Stack(task, runs, device)
    with tensor_cores():
        stack.train(partial(progress, task.name))
        found = zip(stack.errors(stack.validation), stack.errors(stack.test), strict=True)
    return [Outcome(validation, {"test": test}, {}) for validation, test in found]


class _Stack:
    """Runs sorted by head, so that each head sees a slice of them."""

    def __init__(self, task: Classifier, runs: Sequence[Run], device: torch.device) -> None:
        self.task, self.device = task, device
        self.network = network_of(task.kind).to(device)
        shapes = {name: p.shape for name, p in self.network.named_parameters()}
        self.shapes, self.sizes = shapes, [shape.numel() for shape in shapes.values()]
        self.parameters = torch.stack([self._start(run.seed) for run in runs]).to(device).requires_grad_()
        self.mean, self.square = (torch.zeros_like(self.parameters, requires_grad=False) for _ in range(2))
        self.rates = torch.tensor([[run.rate] for run in runs], device=device)
        self.slices = by_head([run.head for run in runs], CLASSES)
        self.seeds = sorted({run.seed for run in runs})
        self.which = torch.tensor([self.seeds.index(run.seed) for run in runs], device=device)
        images = task.digits.train, task.digits.test
        train, test = ((x.to(device), y.to(device)) for x, y in zip(images, task.labels, strict=True))
        kept = len(train[0]) - len(train[0]) // HELD_OUT
        self.data = train[0][:kept], train[1][:kept]
        self.validation, self.test = (train[0][kept:], train[1][kept:]), test

    def _start(self, seed: int) -> Tensor:
        """PyTorch's own first weights, the same for every head and device."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.utils.parameters_to_vector(network_of(self.task.kind).parameters()).detach()

    def scores(self, parameters: Tensor, x: Tensor, shared: bool = False) -> Tensor:
        """[R, B, 10] of images [R, B, 784], or of the same [B, 784] for all runs."""
        parts = zip(self.shapes.items(), parameters.split(self.sizes, 1), strict=True)
        named = {name: part.unflatten(1, shape) for (name, shape), part in parts}
        return vmap(lambda p, x: functional_call(self.network, p, (x,)), in_dims=(0, None if shared else 0))(named, x)

    def log_probs(self, scores: Tensor) -> Tensor:
        return torch.cat([one.log_probs(scores[rows, :, : one.width]) for rows, one in self.slices])

    def train(self, on_step: Callable[[int, int], None]) -> None:
        """Every seed sees its own order of the images, and every head and rate the same one."""
        task, (x, y) = self.task, self.data
        steps = len(x) // task.batch
        streams = [np.random.default_rng(seed) for seed in self.seeds]
        done = torch.zeros((), device=self.device)
        forget_fused(self.device)
        step_of_adam = fused(adam_step, self.device)
        for epoch in range(task.epochs):
            orders = np.stack([stream.permutation(len(x))[: steps * task.batch] for stream in streams])
            rows = torch.from_numpy(orders).to(self.device).unflatten(1, (steps, task.batch))
            for step in range(steps):
                ids = rows[self.which, step]  # [R, B]
                scores = self.scores(self.parameters, x[ids].float() / 255)
                loss = -self.log_probs(scores).gather(-1, y[ids].unsqueeze(-1)).mean((1, 2)).sum()
                (gradient,) = torch.autograd.grad(loss, self.parameters)
                done += 1
                with torch.no_grad():
                    if task.optimiser == "Adam":
                        step_of_adam(self.parameters, gradient, self.mean, self.square, self.rates, done)
                    else:
                        self.parameters -= self.rates * gradient
                on_step(epoch * steps + step + 1, task.epochs * steps)

    @torch.no_grad()
    def errors(self, part: tuple[Tensor, Tensor]) -> list[float]:
        """Of every run, in per cent; NaN where its probabilities are."""
        wrong = torch.zeros(len(self.which), device=self.device)
        for x, y in zip(part[0].split(JUDGED), part[1].split(JUDGED), strict=True):
            log_p = self.log_probs(self.scores(self.parameters, x.float() / 255, shared=True))
            wrong += (log_p.argmax(-1) != y).sum(-1)
            wrong[log_p.isnan().any(-1).any(-1)] = math.nan
        return [float(share) for share in 100 * wrong / len(part[0])]
