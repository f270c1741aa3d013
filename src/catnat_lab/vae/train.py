"""Train many autoencoders as one program, on a GPU as one captured graph a step; stop whenever, and go on.

Runs of a stack share the code, the noise's stream and nothing else. The same stack on the same device gives the same
results, also if it was stopped and went on; on a GPU up to rounding, for some of its kernels are chosen by timing.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

import catnat.torch as ct
from catnat_lab import experiment
from catnat_lab.checkpoint import Checkpoint, random_streams, set_random_streams
from catnat_lab.devices import Repeated, forget_fused, fused, on_device, tensor_cores
from catnat_lab.errors import UserError
from catnat_lab.experiment import silent
from catnat_lab.heads import natural_reach
from catnat_lab.stack import sorted_by_head
from catnat_lab.vae.digits import Images, as_pixels
from catnat_lab.vae.model import NETWORKS, PIXELS, Autoencoders, cross_entropy, kl_from_uniform, one_hot

COOLING, COOLED_EVERY, COLDEST = 3e-5, 1000, 0.5  # temperature max(COLDEST, exp(-COOLING step)), every so many steps
BASELINES: dict[str, float | ct.LeaveOneOut] = {  # of the score function, from the cross-entropies [R, B] of a batch
    "constant": 125.0,  # the paper's: about what training begins to improve on
    "leave-one-out": ct.LeaveOneOut(dim=1),  # the mean over the batch's other images
}
SAVED_EVERY = 60.0  # seconds between checkpoints
CURVE_POINTS = 20  # of a run's curve, at most; evaluating all validation images takes as long as many steps
SEED = 20260501  # of the samples to evaluate by: they do not depend on how long a model was trained
ROOM = {"cuda": 1 << 27, "cpu": 1 << 22}  # pixels decoded at once
TOLD_EVERY = 25  # steps between two calls of on_step: on a GPU a step takes less than a bar's redrawing


@dataclass(frozen=True)
class Run:
    """One training run: on which data, by which head, at which rate, from which seed."""

    data: str
    head: str
    rate: float
    seed: int


@dataclass(frozen=True)
class Plan:
    """What all runs of a stack share."""

    network: str = "convolutional"
    variables: int = 20
    classes: int = 16
    optimizer: str = "adam"
    estimator: str = "gumbel"  # of the library's; "score-function" takes the baseline
    steps: int = 30_000
    batch: int = 100
    samples: int = 512  # of the posterior, to evaluate by on the test images; 0: not at all
    baseline: str = "constant"


@dataclass(frozen=True)
class Outcome(experiment.Outcome):
    """A value is minus the bound on validation data, by which rates are chosen. A record has the curves."""

    model: dict[str, Tensor]  # its parameters and buffers


class Trainer:
    """A stack with its data, and one step of training it."""

    def __init__(
        self, runs: Sequence[Run], plan: Plan, images: Images, variants: Sequence[str], device: torch.device
    ) -> None:
        self.plan, self.device = plan, device
        self.images = Images(*(tensor.to(device) for tensor in images))
        self.which = torch.tensor([list(variants).index(run.data) for run in runs], device=device)
        self.drawn = self.images.drawn[self.which]
        self.any_drawn = bool(self.drawn.any())
        count = self.images.train.shape[1]
        if plan.batch > count:
            raise UserError(f"batch must be at most the {count} training images; got {plan.batch}")
        self.batches = count // plan.batch
        with device:
            model = NETWORKS[plan.network](plan.variables, plan.classes)
        self.stack = Autoencoders(runs, model, device, optimizer=plan.optimizer)
        # in two parts: heads, between them, have kernels of their own, and noise its stream
        self.encode, self.bound = fused(self.stack.scores, device), fused(self.minus_bound, device)
        self.order = torch.zeros((len(runs), count), dtype=torch.int32, device=device)
        self.loss = torch.zeros(len(runs), device=device)  # summed since the last point of the curve
        self.within = torch.arange(plan.batch, device=device)
        self.repeated = Repeated(list(self.state().values()), device)

    def state(self) -> dict[str, Tensor]:
        return {**self.stack.state(), "order": self.order, "loss": self.loss}

    def step(self, done: int) -> None:
        if done % self.batches == 0:
            self.order.copy_(torch.rand(self.order.shape, device=self.device).argsort(1))
        self.repeated(self._step)

    def _step(self) -> None:
        x, views = self.batch(), self.stack.views()
        log_q = self.stack.log_probs(self.encode(x, views))  # [R, B, N, K]
        noise = -torch.empty_like(log_q).exponential_().log()  # Gumbel's
        bound = self.bound(x, views, log_q, noise)
        self.loss += bound.detach().mean(1)
        self.stack.step(bound.mean(1).sum())

    def batch(self) -> Tensor:
        """The step's images, [R, B, 784]."""
        start = self.stack.steps % self.batches * self.plan.batch
        rows = self.order.index_select(1, start + self.within).long()
        return as_pixels(self.images.train[self.which.unsqueeze(1), rows], self.drawn, self.any_drawn)

    def minus_bound(self, x: Tensor, views: list[Tensor], log_q: Tensor, noise: Tensor) -> Tensor:
        """Minus the evidence lower bound [R, B]; its gradient is the estimator's, of the KL the exact one."""
        z = ct.latents.ESTIMATORS[self.plan.estimator](log_q, temperature(self.stack.steps), noise=noise)
        spent = cross_entropy(self.stack.decode(z, views), x)
        if self.plan.estimator == "score-function":
            log_prob = log_q.gather(-1, z.argmax(-1, keepdim=True)).sum((-1, -2))
            spent = ct.score_function(spent, log_prob, BASELINES[self.plan.baseline])
        return spent + kl_from_uniform(log_q)

    def evaluated(self, images: Tensor, samples: int = 1) -> dict[str, Tensor]:
        """How good the stack is by now, by so many samples an image."""
        return evaluate(self.stack, images, self.which, self.drawn, samples)

    @torch.no_grad()
    def outside(self) -> dict[int, float]:
        """By run, the share of nodes outside the natural range on some validation images."""
        x = as_pixels(self.images.validation[self.which, :256], self.drawn, self.any_drawn)
        return outside_shares(self.stack, self.stack.scores(x, self.stack.views(), training=False))


def temperature(step: Tensor) -> Tensor:
    refreshed = torch.div(step, COOLED_EVERY, rounding_mode="floor") * COOLED_EVERY
    return torch.exp(-COOLING * refreshed).clamp(min=COLDEST)


@sorted_by_head
def train(
    runs: Sequence[Run],
    plan: Plan,
    images: Images,
    variants: Sequence[str],
    device: torch.device | str = "cpu",
    *,
    saved: Checkpoint | None = None,
    on_step: Callable[[int, int], None] = silent,
) -> list[Outcome]:
    """Train all runs side by side and evaluate them, as ordered. With a checkpoint, a killed call goes on."""
    device = torch.device(device)
    forget_fused(device)
    torch.manual_seed(seed_of(plan, runs))
    trainer = Trainer(runs, plan, images, variants, device)
    curve: Curve = {"step": [], "train": [], "validation": [], "dead": []}
    done = 0
    before = None if saved is None else saved.load(trainer.state() | random_streams(device))
    if before is not None:
        for name, tensor in trainer.state().items():
            tensor.copy_(before.tensors[name])
        set_random_streams(before.tensors, device)
        done, curve = before.progress["done"], before.progress["curve"]
    every, at = plan.steps // min(CURVE_POINTS, max(1, plan.steps // 3)), time.monotonic()
    with tensor_cores(), on_device(device):
        for step in range(done, plan.steps):
            trainer.step(step)
            if (step + 1) % every == 0 or step + 1 == plan.steps:
                _add_point(curve, trainer, step + 1)
            if step == done or (step + 1) % TOLD_EVERY == 0 or step + 1 == plan.steps:
                on_step(step + 1, plan.steps)
            if saved is not None and time.monotonic() - at > SAVED_EVERY:
                saved.save({"done": step + 1, "curve": curve}, trainer.state() | random_streams(device))
                at = time.monotonic()
        metrics = {"validation": -trainer.evaluated(trainer.images.validation)["elbo"]}
        metrics |= trainer.evaluated(trainer.images.test, plan.samples) if plan.samples else {}
    outcomes = []
    for row in range(len(runs)):
        found = {key: float(value[row]) for key, value in metrics.items()}
        value = found["validation"] if math.isfinite(found["validation"]) else math.inf
        points = {key: [point[row] for point in points] for key, points in curve.items()}
        outcomes.append(Outcome(value, found, {"curve": points}, trainer.stack.run(row)))
    return outcomes


Curve = dict[str, list[list[float]]]  # by measure, by point, by run


def _add_point(curve: Curve, trainer: Trainer, step: int) -> None:
    runs = len(trainer.which)
    since = step - int(curve["step"][-1][0]) if curve["step"] else step
    outside = trainer.outside()
    curve["step"].append([float(step)] * runs)
    curve["train"].append([round(value, 4) for value in (trainer.loss / since).tolist()])
    bounds = trainer.evaluated(trainer.images.validation)["elbo"]
    curve["validation"].append([round(-value, 4) for value in bounds.tolist()])
    # stored as "dead" since all that is outside was; heads without a range have none
    curve["dead"].append([round(outside.get(row, 0.0), 5) for row in range(runs)])
    trainer.loss.zero_()


def checkpoint_of(folder: Path, runs: Sequence[Run], plan: Plan, device: torch.device | str = "cpu") -> Checkpoint:
    by_head = sorted(runs, key=lambda run: run.head)  # as they are trained
    run = {"plan": asdict(plan), "runs": [asdict(run) for run in by_head], "device": torch.device(device).type}
    return Checkpoint.of(folder, run)


def seed_of(plan: Plan, runs: Sequence[Run]) -> int:
    """Of the noise: another one for other cells, tables and neighbours."""
    text = json.dumps([plan.network, plan.optimizer, plan.variables, plan.classes, [asdict(run) for run in runs]])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


# -- how good trained autoencoders are: bounds on the log-likelihood of images they have not seen ---------------------


@torch.no_grad()
def evaluate(stack: Autoencoders, images: Tensor, which: Tensor, drawn: Tensor, samples: int) -> dict[str, Tensor]:
    """[R] means over images uint8 [D, n, 784], from so many samples of the posterior each.

    - nll: minus log of the mean importance weight p(x, z) / q(z | x), which no smaller number of samples lies below;
    - elbo: minus cross-entropy minus the exact KL from the uniform prior;
    - elbo_paper: entropy minus cross-entropy, the same without its constant N log K, as the paper's last table has it;
    - bce and kl: its two parts.
    """
    device, (runs, count) = images.device, (len(which), images.shape[1])
    variables, classes = stack.model.variables, stack.model.classes
    views = [view.detach() for view in stack.views()]
    decode = stack.decoder(views, as_matrices=device.type == "cuda")
    totals = {key: torch.zeros(runs, device=device) for key in ("nll", "bce", "kl")}
    room = max(1, ROOM[device.type] // (PIXELS * runs))
    block = min(count, max(1, room // min(samples, 16)))
    any_drawn = bool(drawn.any())
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(SEED)
        for start in range(0, count, block):
            x = as_pixels(images[which, start : start + block], drawn, any_drawn)
            log_q = stack.log_probs(stack.scores(x, views, training=False))
            here = x.shape[1]
            # a run that diverged must not stop the others: it draws from anything, and its results are NaN anyway
            probs = log_q.exp()
            probs = torch.where(probs.isnan().any(-1, keepdim=True), 1.0, probs).flatten(0, 2)
            best = torch.full((runs, here), -torch.inf, device=device)  # log of the sum of weights so far
            spent = torch.zeros_like(best)
            for done in range(0, samples, max(1, room // here)):
                some = min(max(1, room // here), samples - done)
                index = torch.multinomial(probs, some, replacement=True).view(runs, here, variables, some).mT
                found = cross_entropy(decode(one_hot(index, classes)), x.unsqueeze(2))  # [R, B, s]
                log_posterior = log_q.unsqueeze(2).expand(-1, -1, some, -1, -1).gather(-1, index.unsqueeze(-1))
                weights = -found - variables * math.log(classes) - log_posterior.sum((-1, -2))
                best = torch.logaddexp(best, weights.logsumexp(-1))
                spent += found.sum(-1)
            totals["nll"] -= (best - math.log(samples)).sum(1)
            totals["bce"] += spent.sum(1) / samples
            totals["kl"] += kl_from_uniform(log_q).sum(1)
    means = {key: value / count for key, value in totals.items()}
    means["elbo"] = -means["bce"] - means["kl"]
    return means | {"elbo_paper": means["elbo"] + variables * math.log(classes)}


@torch.no_grad()
def outside_shares(stack: Autoencoders, scores: Tensor) -> dict[int, float]:
    """By run, the share of nodes whose score is outside the natural range: where it is clipped, dead ones."""
    found: dict[int, float] = {}
    for rows, one in stack.heads:
        pi = getattr(one, "parameterization", None)
        reach = None if pi is None else natural_reach(pi.activation)
        if pi is None or reach is None:
            continue
        centers = torch.tensor(pi.centers, device=scores.device, dtype=scores.dtype)
        far = (scores[rows, ..., : one.width] - centers).abs()
        outside = torch.where(far.isnan(), far, (far >= reach).to(far.dtype)).mean((1, 2, 3))
        found |= dict(zip(range(rows.start, rows.stop), outside.tolist(), strict=True))
    return found
