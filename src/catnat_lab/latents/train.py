"""Many runs of one size and estimator as one program, on a GPU as one captured graph a step.

A run does the same alone as in a stack: its first weights, the order of its images and its noise depend on its seed
and on the count of steps alone (up to the rounding of matrix products).
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from catnat_lab.devices import Repeated, forget_fused, fused, on_device, tensor_cores
from catnat_lab.heads import Head
from catnat_lab.latents.estimators import ESTIMATORS
from catnat_lab.latents.heads import latent_head, widest
from catnat_lab.latents.noise import gumbels
from catnat_lab.stack import adam_step
from catnat_lab.vae.layers import Network, linear, relu
from catnat_lab.vae.objective import cross_entropy, kl_from_uniform, one_hot

PIXELS = 784
CURVE_POINTS = 20
JUDGED_BY = 20260601  # the key of the noise that models are judged by
ROOM = {"cuda": 1 << 27, "cpu": 1 << 21}  # pixels decoded at once


@dataclass(frozen=True)
class Cell:
    """What all runs of a stack share."""

    variables: int
    classes: int
    estimator: str


@dataclass(frozen=True)
class Run:
    head: str
    rate: float
    temperature: float
    seed: int


@dataclass(frozen=True)
class Setting:
    """How long, how large, and how: ``precise`` does without TF32, ``plain`` captures and compiles nothing."""

    epochs: int
    batch: int = 100
    hidden: tuple[int, int] = (512, 256)
    samples: int = 4  # of the posterior, to judge by
    precise: bool = False
    plain: bool = False


class Stack:
    """R autoencoders, sorted by head, with their optimiser; and one step of training them."""

    def __init__(self, cell: Cell, runs: Sequence[Run], setting: Setting, images: Tensor, device: torch.device) -> None:
        self.cell, self.setting, self.images, self.device = cell, setting, images, device
        first, second = setting.hidden
        code, self.scores_wide = cell.variables * cell.classes, widest(cell.classes)
        out = cell.variables * self.scores_wide
        with device:
            self.encoder = Network(linear(PIXELS, first), relu(), linear(first, second), relu(), linear(second, out))
            self.decoder = Network(linear(code, second), relu(), linear(second, first), relu(), linear(first, PIXELS))
        self.heads = _counted(runs, cell.classes)
        specs = [*self.encoder.parameters, *self.decoder.parameters]
        self.shapes, self.sizes = [p.shape for p in specs], [p.size for p in specs]
        self.seeds = sorted({run.seed for run in runs})
        starts = {}
        for seed in self.seeds:  # drawn on the CPU, so that a seed starts the same on every device
            stream = torch.Generator().manual_seed((seed * 1009 + cell.variables) * 1009 + cell.classes)
            starts[seed] = torch.cat([p.bound * (2 * torch.rand(p.size, generator=stream) - 1) for p in specs])
        self.parameters = torch.stack([starts[run.seed] for run in runs]).to(device).requires_grad_()
        self.moments = [torch.zeros_like(self.parameters, requires_grad=False) for _ in range(2)]
        self.rates = torch.tensor([run.rate for run in runs], device=device).unsqueeze(1)
        self.temperatures = torch.tensor([run.temperature for run in runs], device=device)[:, None, None, None]
        self.which = torch.tensor([self.seeds.index(run.seed) for run in runs], device=device)
        self.keys = torch.tensor(self.seeds, device=device)
        self.taken = torch.zeros((), dtype=torch.int64, device=device)  # steps
        self.spent = torch.zeros(len(runs), device=device)  # bounds summed since the last point of the curve
        self.order = torch.zeros((len(self.seeds), len(images)), dtype=torch.int64, device=device)
        self.within = torch.arange(setting.batch, device=device)
        self.batches = len(images) // setting.batch
        self.adam_step = adam_step if setting.plain else fused(adam_step, device)
        changed = [self.parameters, *self.moments, self.taken, self.spent]
        # on what is no GPU a call is a call
        self.repeated = Repeated(changed, torch.device("cpu") if setting.plain else device)

    def step(self, done: int) -> None:
        if done % self.batches == 0:
            for row, seed in enumerate(self.seeds):
                stream = torch.Generator().manual_seed(seed * 100_003 + done // self.batches)
                self.order[row].copy_(torch.randperm(len(self.images), generator=stream))
        self.repeated(self._step)

    def _step(self) -> None:
        start = self.taken % self.batches * self.setting.batch
        rows = self.order.index_select(1, start + self.within)  # [S, B]
        x = (self.images[rows].float() / 255)[self.which]
        estimator = ESTIMATORS[self.cell.estimator]
        shape = (estimator.draws, self.setting.batch, self.cell.variables, self.cell.classes)
        noise = gumbels(self.keys, self.taken, shape)[self.which]
        views = self.views()
        log_q = self.log_probs(x, views)
        losses = estimator.loss(
            log_q, noise, self.temperatures, lambda z: cross_entropy(self.decode(z, views), x.unsqueeze(1))
        )
        bounds = losses + kl_from_uniform(log_q)
        (gradient,) = torch.autograd.grad(bounds.mean(1).sum(), self.parameters)
        with torch.no_grad():
            self.spent += bounds.detach().mean(1)
            self.taken += 1
            mean, square = self.moments
            self.adam_step(self.parameters, gradient, mean, square, self.rates, self.taken)

    def views(self) -> list[Tensor]:
        parts = self.parameters.split(self.sizes, 1)
        return [part.view(-1, *shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def log_probs(self, x: Tensor, views: list[Tensor]) -> Tensor:
        """log q [R, B, N, K] of images [R, B, 784]."""
        out = self.encoder(x, views[: len(self.encoder.parameters)], [], True)
        scores = out.unflatten(-1, (self.cell.variables, self.scores_wide)).split([count for count, _ in self.heads])
        # one split, whose gradient is one concatenation
        return torch.cat(
            [one.log_probs(own[..., : one.width]) for own, (_, one) in zip(scores, self.heads, strict=True)]
        )

    def decode(self, z: Tensor, views: list[Tensor]) -> Tensor:
        """Logits of the pixels [R, D, B, 784] from samples [R, D, B, N, K]."""
        flat = z.flatten(3).flatten(1, 2)
        return self.decoder(flat, views[len(self.encoder.parameters) :], [], True).unflatten(1, z.shape[1:3])

    @torch.no_grad()
    def judged(self, images: Tensor) -> dict[str, list[float]]:
        """Minus the bound on images uint8 [n, 784], and its two parts, the mean over them: a number a run."""
        runs, samples = len(self.which), self.setting.samples
        views = [view.detach() for view in self.views()]
        totals = torch.zeros(2, runs, dtype=torch.float64, device=self.device)
        block = max(1, ROOM[self.device.type] // (PIXELS * runs * samples))
        key = torch.tensor([JUDGED_BY], device=self.device)
        for start in range(0, len(images), block):
            some = images[start : start + block].float() / 255
            x = some.expand(runs, -1, -1)
            counts = torch.arange(start, start + len(some), device=self.device)
            noise = gumbels(key, counts, (samples, self.cell.variables, self.cell.classes)).transpose(0, 1)
            log_q = self.log_probs(x, views)
            drawn = one_hot((log_q.unsqueeze(1) + noise).argmax(-1), self.cell.classes)  # [R, D, B, N, K]
            totals[0] += cross_entropy(self.decode(drawn, views), x.unsqueeze(1)).mean(1).double().sum(1)
            totals[1] += kl_from_uniform(log_q).double().sum(1)
        bce, kl = (totals / len(images)).tolist()
        return {"bound": [a + b for a, b in zip(bce, kl, strict=True)], "bce": bce, "kl": kl}


def train(
    cell: Cell,
    runs: Sequence[Run],
    setting: Setting,
    images: Tensor,
    judged: dict[str, Tensor],
    device: torch.device,
) -> list[dict[str, float | str]]:
    """Train the runs side by side; by run, minus the bound on every named set of images, and the curve of training.

    ``images`` and what is judged are uint8 [n, 784] on the device. A run that diverged has NaN, and harms no other.
    """
    order = sorted(range(len(runs)), key=lambda i: runs[i].head)
    forget_fused(device)
    products = nullcontext() if setting.precise else tensor_cores()
    with products, on_device(device):
        stack = Stack(cell, [runs[i] for i in order], setting, images, device)
        steps = setting.epochs * stack.batches
        every = math.ceil(steps / CURVE_POINTS)
        curve: list[list[float]] = []
        for done in range(steps):
            stack.step(done)
            if (done + 1) % every == 0 or done + 1 == steps:
                curve.append((stack.spent / (done % every + 1)).tolist())
                stack.spent.zero_()
        found = {name: stack.judged(some) for name, some in judged.items()}
    outcomes: list[dict[str, float | str]] = [{} for _ in runs]
    for row, place in enumerate(order):
        for name, parts in found.items():
            outcomes[place][name] = parts["bound"][row]
            outcomes[place][f"{name} kl"] = parts["kl"][row]
        outcomes[place]["curve"] = " ".join(f"{point[row]:.3f}" for point in curve)
    return outcomes


def _counted(runs: Sequence[Run], classes: int) -> list[tuple[int, Head]]:
    """The heads, and how many runs each has."""
    names = [run.head for run in runs]
    if names != sorted(names):
        raise ValueError("runs must be sorted by head")
    return [(names.count(name), latent_head(name, classes)) for name in dict.fromkeys(names)]
