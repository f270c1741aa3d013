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

import catnat.torch as ct
from catnat_lab.devices import Repeated, forget_fused, on_device, tensor_cores
from catnat_lab.latents.heads import latent_head, widest
from catnat_lab.latents.noise import gumbels
from catnat_lab.stack import sorted_by_head
from catnat_lab.vae.model import PIXELS, Autoencoders, cross_entropy, dense, kl_from_uniform, one_hot

ESTIMATORS = {  # and how much noise each takes for an image
    "reinmax": 1,
    "gumbel-softmax": 1,
    "straight-through": 1,
    "gumbel-rao": 1 + 10,  # of the sample, and inner samples
    "score-function": 4,  # samples, each with the mean of the others' costs as its baseline
}
CURVE_POINTS = 20
EVALUATED_BY = 20260601  # the key of the noise that models are evaluated by
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
    samples: int = 4  # of the posterior, to evaluate by
    precise: bool = False
    plain: bool = False


class Trainer:
    """A stack of autoencoders with its images, and one step of training it."""

    def __init__(self, runs: Sequence[Run], cell: Cell, setting: Setting, images: Tensor, device: torch.device) -> None:
        self.cell, self.setting, self.images, self.device = cell, setting, images, device
        model = dense(cell.variables, cell.classes, setting.hidden, widest(cell.classes))
        self.stack = Autoencoders(runs, model, device, head_of=latent_head, compiled=not setting.plain)
        self.temperatures = torch.tensor([run.temperature for run in runs], device=device)[:, None, None, None]
        self.seeds = sorted({run.seed for run in runs})
        self.keys = torch.tensor(self.seeds, device=device)
        self.which = torch.tensor([self.seeds.index(run.seed) for run in runs], device=device)
        self.order = torch.zeros((len(self.seeds), len(images)), dtype=torch.int64, device=device)
        self.within = torch.arange(setting.batch, device=device)
        self.batches = len(images) // setting.batch
        self.spent = torch.zeros(len(runs), device=device)  # bounds summed since the last point of the curve
        # on what is no GPU a call is a call
        where = torch.device("cpu") if setting.plain else device
        self.repeated = Repeated([*self.stack.state().values(), self.spent], where)

    def step(self, done: int) -> None:
        if done % self.batches == 0:
            for row, seed in enumerate(self.seeds):
                stream = torch.Generator().manual_seed(seed * 100_003 + done // self.batches)
                self.order[row].copy_(torch.randperm(len(self.images), generator=stream))
        self.repeated(self._step)

    def _step(self) -> None:
        start = self.stack.steps % self.batches * self.setting.batch
        rows = self.order.index_select(1, start + self.within)  # [S, B]
        x = (self.images[rows].float() / 255)[self.which]
        shape = (ESTIMATORS[self.cell.estimator], self.setting.batch, self.cell.variables, self.cell.classes)
        noise = gumbels(self.keys, self.stack.steps, shape)[self.which]
        views = self.stack.views()
        log_q = self.stack.log_probs(self.stack.scores(x, views))  # [R, B, N, K]
        bound = self.cost(x, views, log_q, noise) + kl_from_uniform(log_q)
        self.spent += bound.detach().mean(1)
        self.stack.step(bound.mean(1).sum())

    def cost(self, x: Tensor, views: list[Tensor], log_q: Tensor, noise: Tensor) -> Tensor:
        """The cross-entropy [R, B] of samples; its gradient is the estimator's. Noise is [R, draws, B, N, K]."""
        if self.cell.estimator == "score-function":
            many = log_q.unsqueeze(1).expand_as(noise)
            z = ct.latents.ESTIMATORS["score-function"](many, noise=noise)
            costs = cross_entropy(self.stack.decode(z, views), x.unsqueeze(1))
            log_prob = many.gather(-1, z.argmax(-1, keepdim=True)).sum((-1, -2))
            return ct.score_function(costs, log_prob, ct.LeaveOneOut(dim=1)).mean(1)
        name = self.cell.estimator.removesuffix("-softmax")  # the library calls it gumbel
        own = noise.transpose(0, 1) if name == "gumbel-rao" else noise[:, 0]
        z = ct.latents.ESTIMATORS[name](log_q, self.temperatures, noise=own)
        return cross_entropy(self.stack.decode(z, views), x)

    @torch.no_grad()
    def evaluated(self, images: Tensor) -> dict[str, list[float]]:
        """Minus the bound on images uint8 [n, 784], and its two parts, the mean over them: a number a run."""
        runs, samples = len(self.which), self.setting.samples
        views = [view.detach() for view in self.stack.views()]
        totals = torch.zeros(2, runs, dtype=torch.float64, device=self.device)
        block = max(1, ROOM[self.device.type] // (PIXELS * runs * samples))
        key = torch.tensor([EVALUATED_BY], device=self.device)
        for start in range(0, len(images), block):
            some = images[start : start + block].float() / 255
            x = some.expand(runs, -1, -1)
            counts = torch.arange(start, start + len(some), device=self.device)
            noise = gumbels(key, counts, (samples, self.cell.variables, self.cell.classes)).transpose(0, 1)
            log_q = self.stack.log_probs(self.stack.scores(x, views))
            drawn = one_hot((log_q.unsqueeze(1) + noise).argmax(-1), self.cell.classes)  # [R, D, B, N, K]
            totals[0] += cross_entropy(self.stack.decode(drawn, views), x.unsqueeze(1)).mean(1).double().sum(1)
            totals[1] += kl_from_uniform(log_q).double().sum(1)
        bce, kl = (totals / len(images)).tolist()
        return {"bound": [a + b for a, b in zip(bce, kl, strict=True)], "bce": bce, "kl": kl}


@sorted_by_head
def train(
    runs: Sequence[Run],
    cell: Cell,
    setting: Setting,
    images: Tensor,
    held_out: dict[str, Tensor],
    device: torch.device,
) -> list[dict[str, float | str]]:
    """Train the runs side by side; by run, minus the bound on every named set of images, and the curve of training.

    ``images`` and what is held out are uint8 [n, 784] on the device. A run that diverged has NaN, and harms no other.
    """
    forget_fused(device)
    products = nullcontext() if setting.precise else tensor_cores()
    with products, on_device(device):
        trainer = Trainer(runs, cell, setting, images, device)
        steps = setting.epochs * trainer.batches
        every = math.ceil(steps / CURVE_POINTS)
        curve: list[list[float]] = []
        for done in range(steps):
            trainer.step(done)
            if (done + 1) % every == 0 or done + 1 == steps:
                curve.append((trainer.spent / (done % every + 1)).tolist())
                trainer.spent.zero_()
        found = {name: trainer.evaluated(some) for name, some in held_out.items()}
    outcomes: list[dict[str, float | str]] = []
    for row in range(len(runs)):
        bounds = {name: parts["bound"][row] for name, parts in found.items()}
        kls = {f"{name} kl": parts["kl"][row] for name, parts in found.items()}
        outcomes.append({**bounds, **kls, "curve": " ".join(f"{point[row]:.3f}" for point in curve)})
    return outcomes
