"""Train many runs as one program: every tensor has a leading axis R of runs that differ in data, head, rate and seed.

A run draws its random numbers from a stream of its own, so what it becomes does not depend on its neighbours: stacked
training is training one by one, in a fraction of the time.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from catnat_lab.experiment import Outcome, silent
from catnat_lab.gsl.data import Dataset, glorot
from catnat_lab.gsl.energy import Baseline, energy, predict, weighted_log_prob
from catnat_lab.gsl.presets import Settings
from catnat_lab.stack import by_head, sorted_by_head

START = 0.1  # every theta starts uniform in (0, START)
CHUNK = 25  # steps for which random numbers are drawn at once; part of a run's stream, so a constant
JUDGED = 64  # pairs that are judged by the same graphs; fresh ones for the next pairs, else all would share their luck
ADAM = (0.9, 0.999, 1e-8)


@dataclass(frozen=True)
class Run:
    """One training run: on which data, by which head, at which rate, from which seed."""

    dataset: Dataset
    head: str
    rate: float
    seed: int


class Stack:
    """Scores, weights and their Adam moments of R runs, sorted by head; each head sees its own slice."""

    def __init__(self, runs: Sequence[Run], device: torch.device, dtype: torch.dtype) -> None:
        slices = by_head([run.head for run in runs], 2)
        self.nodes = runs[0].dataset.theta.shape[0]
        # the start is drawn on the CPU, so that it is the same on every device
        streams = [torch.Generator().manual_seed(run.seed) for run in runs]
        starts = [START * torch.rand(self.nodes**2, generator=stream) for stream in streams]
        theta = torch.stack(starts).to(device, dtype)
        self.weight = torch.stack([glorot(stream) for stream in streams]).to(device, dtype).requires_grad_()
        probs = torch.stack((1 - theta, theta), -1)
        self.heads = [one for _, one in slices]
        self.scores = [one.scores_from_probs(probs[rows]).requires_grad_() for rows, one in slices]  # [r, E, width]
        self.parameters = [*self.scores, self.weight]
        rates = torch.tensor([run.rate for run in runs], device=device, dtype=dtype)
        sizes = [scores.shape[0] for scores in self.scores]
        self.rates = [rate.view(-1, 1, 1) for rate in (*rates.split(sizes), rates)]
        self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in self.parameters]
        self.steps = 0

    def log_probs(self) -> Tensor:
        """log(1 - theta) and log(theta) of every run [R, E, 2]."""
        return torch.cat([one.log_probs(scores) for one, scores in zip(self.heads, self.scores, strict=True)])

    @torch.no_grad()
    def theta(self) -> Tensor:
        """The learned probability of every edge [R, E]."""
        return self.log_probs()[..., 1].exp()

    @torch.no_grad()
    def descend(self, loss: Tensor) -> None:
        """One step of Adam, every run at its own rate. Runs share no parameters, so their summed loss serves all."""
        with torch.enable_grad():
            gradients = torch.autograd.grad(loss, self.parameters)
        self.steps += 1
        decay, square_decay, epsilon = ADAM
        correction, square_correction = 1 - decay**self.steps, 1 - square_decay**self.steps
        for p, gradient, rate, (mean, square) in zip(self.parameters, gradients, self.rates, self.moments, strict=True):
            mean.lerp_(gradient, 1 - decay)
            square.mul_(square_decay).addcmul_(gradient, gradient, value=1 - square_decay)
            p.sub_(rate * (mean / correction) / ((square / square_correction).sqrt() + epsilon))
        for one, scores in zip(self.heads, self.scores, strict=True):
            scores.copy_(one.project(scores))


class Streams:
    """Random numbers of R runs, each from a generator of its own."""

    def __init__(self, runs: Sequence[Run], device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self.generators = [torch.Generator(device).manual_seed(run.seed) for run in runs]

    def uniforms(self, *shape: int) -> Tensor:
        """[R, *shape] in [0, 1)."""
        drawn = torch.empty((len(self.generators), *shape), device=self.device, dtype=self.dtype)
        for row, generator in zip(drawn, self.generators, strict=True):
            row.uniform_(generator=generator)
        return drawn

    def order(self, count: int) -> Tensor:
        """A random order of 0 .. count-1 for every run: [R, count]."""
        return torch.stack([torch.randperm(count, generator=g, device=self.device) for g in self.generators])


@sorted_by_head
def train(
    runs: Sequence[Run],
    plan: Settings,
    device: torch.device | str = "cpu",
    *,
    dtype: torch.dtype = torch.float32,
    on_step: Callable[[int, int], None] = silent,
) -> list[Outcome]:
    """Train all runs side by side and judge them on their test sets, in the order they came.

    A value is the energy score on validation data, by which rates are chosen. A record has what was measured over
    training and the learned theta [N * N].
    """
    device = torch.device(device)
    data, stack = _Data(runs, device, dtype), Stack(runs, device, dtype)
    baseline = Baseline(plan.baseline)
    batches = data.train[0].shape[1] // plan.batch
    total = plan.epochs * batches
    curve: dict[str, list[Tensor]] = {"step": [], "train_es": [], "validation_es": [], "theta_mae": []}
    losses = torch.zeros(len(runs), device=device, dtype=dtype)
    for step in range(total):
        if step % batches == 0:
            rows = data.streams.order(data.train[0].shape[1])
        if step % CHUNK == 0:
            uniforms = data.streams.uniforms(CHUNK, plan.graphs, stack.nodes**2)
        log_probs = stack.log_probs()
        graphs = (uniforms[:, step % CHUNK] < log_probs.detach()[..., 1].exp().unsqueeze(1)).to(dtype)  # [R, M, E]
        start = step % batches * plan.batch
        batch = data.which.unsqueeze(1), rows[:, start : start + plan.batch]  # of every run's own data
        x, y = (pairs[batch] for pairs in data.train)
        found = energy(predict(graphs.unflatten(-1, (stack.nodes, stack.nodes)), x, stack.weight), y)
        score = found.score()
        stack.descend((score + weighted_log_prob(baseline.weights(found), graphs, log_probs)).sum())
        losses += score.detach()
        if (step + 1) % batches == 0:
            judged = judge(stack.theta(), stack.weight, data, data.validation, plan.graphs)
            for key, value in zip(curve, (step + 1, losses / batches, judged["es"], judged["theta_mae"]), strict=True):
                curve[key].append(torch.as_tensor(value, dtype=dtype).cpu().expand(len(runs)))
            losses.zero_()
        on_step(step + 1, total)
    theta = stack.theta()
    test = judge(theta, stack.weight, data, data.test, plan.graphs)
    test["validation_es"] = judge(theta, stack.weight, data, data.validation, plan.choice_graphs)["es"]
    curves = {key: torch.stack(values, -1) for key, values in curve.items() if values}  # [R, epochs]
    outcomes = []
    for row in range(len(runs)):
        metrics = {key: float(value[row]) for key, value in test.items()}
        # a theta that is not a number draws no edges, and empty graphs have a finite score: look at all metrics
        value = metrics["validation_es"] if all(map(math.isfinite, metrics.values())) else math.inf
        record = {"curve": {key: values[row].tolist() for key, values in curves.items()}, "theta": theta[row].tolist()}
        outcomes.append(Outcome(value, metrics, record))
    return outcomes


class _Data:
    """The data sets of R runs, each distinct one once, which of them is a run's own, and its random numbers."""

    def __init__(self, runs: Sequence[Run], device: torch.device, dtype: torch.dtype) -> None:
        distinct = list(dict.fromkeys(run.dataset for run in runs))
        self.which = torch.tensor([distinct.index(run.dataset) for run in runs], device=device)

        def stacked(*pairs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            x, y = (torch.stack(each).to(device, dtype) for each in zip(*pairs, strict=True))
            return x, y.flatten(-2)

        self.train = stacked(*(dataset.train for dataset in distinct))  # [T, n, N, F], [T, n, N * O]
        self.validation = stacked(*(dataset.validation for dataset in distinct))
        self.test = stacked(*(dataset.test for dataset in distinct))
        self.streams = Streams(runs, device, dtype)
        self.theta = torch.stack([run.dataset.theta.flatten() for run in runs]).to(device, dtype)  # [R, E]


@torch.no_grad()
def judge(theta: Tensor, weight: Tensor, data: _Data, pairs: tuple[Tensor, Tensor], graphs: int) -> dict[str, Tensor]:
    """The metrics of every run [R] on held-out pairs, from as many graphs drawn of its distribution.

    Energy score in both conventions, the errors of the mean and of the median prediction, and that of theta. The
    paper's tables hold twice its own formula of the energy score: `es_paper`. The median is torch's: of an even number
    of predictions the lower of the middle two.
    """
    nodes, count = pairs[0].shape[-2], pairs[0].shape[1]
    total = dict.fromkeys(("es", "pp_mse", "pp_mae"), theta.new_zeros(len(theta)))
    for part in zip(pairs[0].split(JUDGED, 1), pairs[1].split(JUDGED, 1), strict=True):
        x, y = (each[data.which] for each in part)
        drawn = (data.streams.uniforms(graphs, nodes**2) < theta.unsqueeze(1)).to(theta.dtype)
        predictions = predict(drawn.unflatten(-1, (nodes, nodes)), x, weight)  # [R, b, M, D]
        errors = {
            "es": energy(predictions, y).score(),
            "pp_mse": (predictions.mean(2) - y).square().mean((-1, -2)),
            "pp_mae": (predictions.median(2).values - y).abs().mean((-1, -2)),
        }
        total = {key: total[key] + x.shape[1] / count * value for key, value in errors.items()}
    return total | {"es_paper": 2 * total["es"], "theta_mae": (theta - data.theta).abs().mean(-1)}


def optimal(dataset: Dataset, seed: int, graphs: int, device: torch.device | str = "cpu") -> Outcome:
    """What the true model scores; no model has a lower expected energy score."""
    device, dtype, runs = torch.device(device), torch.float32, [Run(dataset, "softmax", 0.0, seed)]
    data, weight = _Data(runs, device, dtype), dataset.weight.to(device)[None]
    found = judge(data.theta, weight, data, data.test, graphs)
    found["validation_es"] = judge(data.theta, weight, data, data.validation, graphs)["es"]
    metrics = {key: float(value) for key, value in found.items()}
    return Outcome(metrics["es"], metrics, {})
