"""Graph structure learning, the paper's first table: recover a random graph from what a graph network makes of noise.

From the top: the settings, the data, the energy score and its gradient, the training of many runs as one program, how
they are evaluated, and the study, which finds every parameterization's rate and then trains its final seeds there.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from catnat_lab.errors import UserError, check, check_distinct, check_known, check_least
from catnat_lab.experiment import Done, Job, Outcome, Plan, RunContext, silent
from catnat_lab.heads import PAPER_HEADS, head, parameterization_of
from catnat_lab.search import RateSearch
from catnat_lab.stack import Stack, sorted_by_head

BASELINES = ("none", "moving-average", "leave-one-out")

# -- settings: smoke in seconds, quick in minutes on two cores, paper all of the table --------------------------------


@dataclass(frozen=True)
class Settings(Plan):
    thetas: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 0.9)
    heads: tuple[str, ...] = (*PAPER_HEADS, "catnat")
    rates: tuple[float, ...] = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # the coarse grid
    refined: int = 7  # rates around the best of the coarse grid
    ratio: float = 1.25  # between neighbours of the refined grid
    search_seeds: int = 6  # by whose mean rates are compared
    widen: int = 3  # rates that may be added beyond either end of the coarse grid, while the best one is at that end
    seeds: int = 10  # runs at the chosen rate
    communities: int = 4
    pairs: int = 10_000
    epochs: int = 40
    batch: int = 64
    graphs: int = 32
    choice_graphs: int = 256
    baseline: str = "leave-one-out"

    def __post_init__(self) -> None:
        _check_numbers("theta", self.thetas, lambda theta: 0 < theta < 1, "lie in (0, 1)")
        _check_numbers("rate", self.rates, lambda rate: 0 < rate <= 1e3, "be positive and at most 1000")
        for name in self.heads:
            parameterization_of(name, 2)  # for its check: an edge is there or not
        check_distinct(self, "heads")
        check_least(self, refined=0, widen=0, search_seeds=1, seeds=2, communities=1, pairs=20, epochs=1)
        check_least(self, batch=1, graphs=3, choice_graphs=3)
        check("ratio", [self.ratio], lambda ratio: 1 < ratio < math.inf, "be above 1")
        most = self.pairs - 2 * (self.pairs // 10)
        told = f"be at most the training pairs, 80% of pairs = {self.pairs}"
        check("batch", [self.batch], lambda batch: batch <= most, told)
        check_known("baseline", [self.baseline], BASELINES)


def _check_numbers(name: str, values: tuple[float, ...], good: Callable[[float], bool], expected: str) -> None:
    if not values:
        raise UserError(f"{name}s must hold at least one value; got none")
    check(name, values, good, expected)
    if len({f"{value:.3g}" for value in values}) < len(values):
        raise UserError(f"{name}s must differ in their first three digits; got {', '.join(map(str, values))}")


PAPER = Settings()
SMOKE = Settings(
    thetas=(0.5,), rates=(0.02, 0.1), refined=2, search_seeds=1, widen=1, seeds=2,
    communities=1, pairs=200, epochs=2, batch=32, graphs=8, choice_graphs=8,
)  # fmt: skip
QUICK = Settings(
    heads=("softmax", "catnat-sigmoid", "catnat-paper", "catnat"),  # as many as the paper has
    thetas=(0.5,), rates=(0.005, 0.01, 0.02, 0.05), refined=0, search_seeds=1, widen=2, seeds=4,
    pairs=4000, epochs=25, graphs=16, choice_graphs=64,
)  # fmt: skip
PRESETS = {"smoke": SMOKE, "quick": QUICK, "paper": PAPER}


# -- the data: y = A x W with A_ij ~ Bernoulli(theta*_ij), x ~ N(0, 1), drawn anew for every pair (x, y) --------------

COMMUNITY_NODES = 6
COMMUNITY_EDGES = ((0, 1), (1, 2), (3, 4), (1, 3), (2, 4), (4, 5), (0, 3), (1, 4), (3, 5))
FEATURES, OUTPUTS = 4, 2

# The squared norms of the columns of W by theta*. The paper's five datasets do not share W. The mean of the two follows
# from its optimal PP-MSE: theta* (1 - theta*) times the mean in-degree 4.25 times this, times 1 + 1/32, as the mean of
# M = 32 samples stands for the expectation. At 0.75 its optimal PP-MAE is 2% lower than equal columns can have, so
# there they differ.
PAPER_COLUMN_NORMS = {
    0.1: (1.559, 1.559),
    0.25: (1.582, 1.582),
    0.5: (2.247, 2.247),
    0.75: (2.135, 0.949),
    0.9: (1.549, 1.549),
}
OTHER_COLUMN_NORMS = (1.55, 1.55)


def true_edges(communities: int) -> Tensor:
    """Which entries of the adjacency matrix may be 1: [N, N], symmetric, self-loops included."""
    nodes = COMMUNITY_NODES * communities
    edges = torch.eye(nodes, dtype=torch.bool)
    for first in range(0, nodes, COMMUNITY_NODES):
        for i, j in COMMUNITY_EDGES:
            edges[first + i, first + j] = edges[first + j, first + i] = True
        if first:  # the last node of a community is joined to the first of the next
            edges[first - 1, first] = edges[first, first - 1] = True
    return edges


@dataclass(frozen=True, eq=False)
class Dataset:
    """One theta*: the truth, and pairs (x, y) split 80/10/10."""

    theta_star: float
    theta: Tensor  # [N, N]
    weight: Tensor  # [F, O]
    train: tuple[Tensor, Tensor]  # x [n, N, F], y [n, N, O]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def make_dataset(theta_star: float, *, communities: int, pairs: int, seed: int = 0) -> Dataset:
    """Draw a dataset, always on the CPU: the same one whatever it is used on."""
    generator = torch.Generator().manual_seed(seed)
    theta = true_edges(communities) * theta_star
    weight = glorot(generator)
    norms = torch.tensor(PAPER_COLUMN_NORMS.get(theta_star, OTHER_COLUMN_NORMS))
    weight = weight * (norms / weight.square().sum(0)).sqrt()
    nodes = theta.shape[0]
    x = torch.randn(pairs, nodes, FEATURES, generator=generator)
    graphs = (torch.rand(pairs, nodes, nodes, generator=generator) < theta).float()
    y = graphs @ x @ weight
    held = pairs // 10
    parts = zip(*(tensor.split([pairs - 2 * held, held, held]) for tensor in (x, y)), strict=True)
    return Dataset(theta_star, theta, weight, *parts)


def glorot(generator: torch.Generator) -> Tensor:
    """Initial weights [F, O], Glorot-uniform."""
    bound = (6 / (FEATURES + OUTPUTS)) ** 0.5
    return (2 * torch.rand(FEATURES, OUTPUTS, generator=generator) - 1) * bound


# -- the energy score of sampled predictions, and the score-function gradient of its expectation ----------------------
#
#     ES = E ||f(A) - y|| - 1/2 E ||f(A) - f(A')||,    A, A' independent from P_theta
#
# Everything has a leading axis R of independent runs that train side by side. Within a run M graphs are drawn a step
# and serve the whole batch, so the gradient needs a weight a graph, not a weight a graph and datum. (The paper does not
# say whether its graphs are shared so.)

DECAY = 0.99  # of the moving average


def predict(graphs: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """y = A x W for graphs [R, M, N, N], inputs [R, b, N, F] and weights [R, F, O]: [R, b, M, N * O]."""
    runs, count, nodes, _ = graphs.shape
    batch, outputs = x.shape[1], weight.shape[-1]
    xw = (x.flatten(1, 2) @ weight).view(runs, batch, nodes, outputs)
    xw = xw.transpose(1, 2).reshape(runs, nodes, batch * outputs)
    y = graphs.reshape(runs, count * nodes, nodes) @ xw
    return y.view(runs, count, nodes, batch, outputs).permute(0, 3, 1, 2, 4).reshape(runs, batch, count, -1)


@dataclass(frozen=True)
class Energy:
    """What the M graphs of a step cost, averaged over the batch."""

    misses: Tensor  # [R, M] distance to the target
    spreads: Tensor  # [R, M, M] distance to each other, 0 on the diagonal

    def score(self) -> Tensor:
        """The energy score [R]: an unbiased estimate."""
        count = self.misses.shape[-1]
        return self.misses.mean(-1) - self.spreads.sum((-1, -2)) / (2 * count * (count - 1))


def energy(predictions: Tensor, target: Tensor) -> Energy:
    """Distances of predictions [R, b, M, D] to targets [R, b, D] and to each other."""
    errors = predictions - target.unsqueeze(2)
    squares = errors.square().sum(-1)  # [R, b, M]
    apart = squares.unsqueeze(-1) + squares.unsqueeze(-2) - 2 * _Gram.apply(errors)
    off_diagonal = 1 - torch.eye(errors.shape[2], dtype=errors.dtype, device=errors.device)
    # two equal graphs are at distance 0, where a root has no slope
    misses, spreads = (each.clamp(min=1e-8).sqrt().mean(1) for each in (squares, apart))
    return Energy(misses, spreads * off_diagonal)


class _Gram(torch.autograd.Function):
    """e e^T of every [M, D] block: no product takes a transposed view, which is slow on some CPUs."""

    @staticmethod
    def forward(ctx: Any, errors: Tensor) -> Tensor:
        ctx.save_for_backward(errors)
        return errors @ errors.mT.contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (errors,) = ctx.saved_tensors
        return (gradient + gradient.mT) @ errors


@dataclass
class Baseline:
    """What is taken off a graph's cost before it weighs that graph's score function; it must not depend on the graph.

    `leave-one-out` takes the mean cost of the others: for the first term over the other graphs, for the second over the
    pairs of others. `moving-average` takes the mean of former steps.
    """

    kind: str
    average: Tensor | None = None  # [R, 2]

    def weights(self, energy: Energy) -> Tensor:
        """The weight of every graph's score function [R, M]: sum_m w_m grad log P(A_m) estimates grad_theta ES.

        A graph stands in both places of the second term, which takes its one half away.
        """
        misses, spreads = energy.misses.detach(), energy.spreads.detach()
        count, rows, total = misses.shape[-1], spreads.sum(-1), spreads.sum((-1, -2)).unsqueeze(-1)
        if self.kind == "leave-one-out":
            of_miss = (misses.sum(-1, keepdim=True) - misses) / (count - 1)
            of_spread = (total - 2 * rows) / ((count - 1) * (count - 2))
        else:
            now = torch.cat((misses.mean(-1, keepdim=True), total / (count * (count - 1))), -1)
            before = torch.zeros_like(now) if self.average is None else self.average
            if self.kind == "moving-average":
                self.average = now if self.average is None else DECAY * before + (1 - DECAY) * now
            of_miss, of_spread = before.split(1, -1)
        return ((misses - of_miss) - (rows / (count - 1) - of_spread)) / count


def weighted_log_prob(weight: Tensor, graphs: Tensor, log_probs: Tensor) -> Tensor:
    """sum_m w_m log P(A_m) of every run [R], for graphs [R, M, E] of independent edges.

    ``log_probs`` [R, E, 2] holds log(1 - theta) and log(theta). The sum over graphs comes first: it leaves two numbers
    an edge. An edge of probability 0 is never drawn, and 0 times its infinite logarithm counts as 0.
    """
    on = (weight.unsqueeze(1) @ graphs).squeeze(1)  # [R, E]
    counts = torch.stack((weight.sum(-1, keepdim=True) - on, on), -1)
    drawn = log_probs > -torch.inf
    return torch.where(drawn, counts * torch.where(drawn, log_probs, 0.0), 0.0).sum((-1, -2))


# -- training: every tensor has a leading axis R of runs that differ in data, head, rate and seed ---------------------
#
# A run draws its random numbers from a stream of its own, so what it becomes does not depend on its neighbours: stacked
# training is training one by one, in a fraction of the time.

START = 0.1  # every theta starts uniform in (0, START)
CHUNK = 25  # steps for which random numbers are drawn at once; part of a run's stream, so a constant
WIDTH = 2  # the most scores that an edge has
CURVE = ("step", "train_es", "validation_es", "theta_mae")  # what is recorded after every epoch


@dataclass(frozen=True)
class Run:
    """One training run: on which data, by which head, at which rate, from which seed."""

    dataset: Dataset
    head: str
    rate: float
    seed: int


def begun(runs: Sequence[Run], device: torch.device, dtype: torch.dtype) -> Stack:
    """The first scores and weights of all runs: the same on every device, and the same graph whatever the head."""
    edges, starts = runs[0].dataset.theta.numel(), []
    for run in runs:
        stream, one = torch.Generator().manual_seed(run.seed), head(run.head, 2)
        theta = (START * torch.rand(edges, generator=stream)).to(dtype)
        scores = one.scores_from_probs(torch.stack((1 - theta, theta), -1))  # [E, width]
        padded = functional.pad(scores, (0, WIDTH - one.width))  # a catnat has one score an edge, and leaves the other
        starts.append(torch.cat((padded.flatten(), glorot(stream).to(dtype).flatten())))
    # not compiled: stacks come in many sizes, and torch's compiler keeps eight
    return Stack(runs, 2, torch.stack(starts), [(edges, WIDTH), (FEATURES, OUTPUTS)], device, compiled=False)


@torch.no_grad()
def learned(stack: Stack) -> tuple[Tensor, Tensor]:
    """The probability of every edge [R, E], and the weights."""
    scores, weight = stack.views()
    return stack.log_probs(scores)[..., 1].exp(), weight


class Data:
    """The data sets of R runs, each distinct one once, which of them is a run's own, and its random numbers."""

    def __init__(self, runs: Sequence[Run], device: torch.device, dtype: torch.dtype) -> None:
        distinct = list(dict.fromkeys(run.dataset for run in runs))
        self.own = torch.tensor([distinct.index(run.dataset) for run in runs], device=device)

        def stacked(*pairs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            x, y = (torch.stack(each).to(device, dtype) for each in zip(*pairs, strict=True))
            return x, y.flatten(-2)

        self.train = stacked(*(dataset.train for dataset in distinct))  # [T, n, N, F], [T, n, N * O]
        self.validation = stacked(*(dataset.validation for dataset in distinct))
        self.test = stacked(*(dataset.test for dataset in distinct))
        self.theta = torch.stack([run.dataset.theta.flatten() for run in runs]).to(device, dtype)  # [R, E]
        self.generators = [torch.Generator(device).manual_seed(run.seed) for run in runs]

    def uniforms(self, *shape: int) -> Tensor:
        """[R, *shape] in [0, 1)."""
        drawn = self.theta.new_empty(len(self.generators), *shape)
        for row, generator in zip(drawn, self.generators, strict=True):
            row.uniform_(generator=generator)
        return drawn

    def order(self, count: int) -> Tensor:
        """A random order of 0 .. count-1 for every run: [R, count]."""
        return torch.stack([torch.randperm(count, generator=g, device=g.device) for g in self.generators])


def matrices(graphs: Tensor) -> Tensor:
    """Edges [..., N * N] as adjacency matrices [..., N, N]."""
    nodes = math.isqrt(graphs.shape[-1])
    return graphs.unflatten(-1, (nodes, nodes))


@sorted_by_head
def train(
    runs: Sequence[Run],
    plan: Settings,
    device: torch.device | str = "cpu",
    *,
    dtype: torch.dtype = torch.float32,
    on_step: Callable[[int, int], None] = silent,
) -> list[Outcome]:
    """Train all runs side by side and evaluate them on their test sets, in the order they came.

    A value is the energy score on validation data, by which rates are chosen. A record has what was measured over
    training and the learned theta [N * N].
    """
    device = torch.device(device)
    data, stack, baseline = Data(runs, device, dtype), begun(runs, device, dtype), Baseline(plan.baseline)
    pairs, edges = data.train[0].shape[1], data.theta.shape[1]
    steps = pairs // plan.batch  # of an epoch
    curve, losses, step = [], torch.zeros(len(runs), device=device, dtype=dtype), 0
    for _ in range(plan.epochs):
        order = data.order(pairs)
        for batch in order[:, : steps * plan.batch].split(plan.batch, 1):
            if step % CHUNK == 0:
                uniforms = data.uniforms(CHUNK, plan.graphs, edges)
            scores, weight = stack.views()
            log_probs = stack.log_probs(scores)  # of no edge and an edge [R, E, 2]
            theta = log_probs.detach()[..., 1].exp()
            graphs = (uniforms[:, step % CHUNK] < theta.unsqueeze(1)).to(dtype)  # [R, M, E]
            x, y = (each[data.own.unsqueeze(1), batch] for each in data.train)
            found = energy(predict(matrices(graphs), x, weight), y)
            score = found.score()  # its own gradient reaches W alone; that of theta is the score function's
            stack.step((score + weighted_log_prob(baseline.weights(found), graphs, log_probs)).sum())
            stack.project(stack.views()[0].detach())
            losses += score.detach()
            step += 1
            on_step(step, plan.epochs * steps)
        held = evaluate(*learned(stack), data, data.validation, plan.graphs)
        point = (torch.full_like(losses, step), losses / steps, held["es"], held["theta_mae"])
        curve.append(torch.stack(point).cpu())
        losses.zero_()
    theta, weight = learned(stack)
    test = evaluate(theta, weight, data, data.test, plan.graphs)
    test["validation_es"] = evaluate(theta, weight, data, data.validation, plan.choice_graphs)["es"]
    curves = torch.stack(curve, -1)  # [4, R, epochs]
    outcomes = []
    for row in range(len(runs)):
        metrics = {key: float(value[row]) for key, value in test.items()}
        # a theta that is not a number draws no edges, and empty graphs have a finite score: look at all metrics
        value = metrics["validation_es"] if all(map(math.isfinite, metrics.values())) else math.inf
        recorded = dict(zip(CURVE, curves[:, row].tolist(), strict=True))
        outcomes.append(Outcome(value, metrics, {"curve": recorded, "theta": theta[row].tolist()}))
    return outcomes


# -- evaluation -------------------------------------------------------------------------------------------------------

TOGETHER = 64  # pairs that the same graphs predict; fresh ones for the next pairs, else all would share their luck


@torch.no_grad()
def evaluate(theta: Tensor, weight: Tensor, data: Data, pairs: tuple[Tensor, Tensor], graphs: int) -> dict[str, Tensor]:
    """The metrics of every run [R] on held-out pairs, from as many graphs drawn of its distribution.

    Energy score in both conventions, the errors of the mean and of the median prediction, and that of theta. The
    paper's tables hold twice its own formula of the energy score: `es_paper`. The median is torch's: of an even number
    of predictions the lower of the middle two.
    """
    total = dict.fromkeys(("es", "pp_mse", "pp_mae"), theta.new_zeros(len(theta)))
    for part in zip(*(each.split(TOGETHER, 1) for each in pairs), strict=True):
        x, y = (each[data.own] for each in part)
        drawn = (data.uniforms(graphs, theta.shape[1]) < theta.unsqueeze(1)).to(theta.dtype)
        predictions = predict(matrices(drawn), x, weight)  # [R, b, M, D]
        errors = {
            "es": energy(predictions, y).score(),
            "pp_mse": (predictions.mean(2) - y).square().mean((-1, -2)),
            "pp_mae": (predictions.median(2).values - y).abs().mean((-1, -2)),
        }
        total = {key: total[key] + x.shape[1] / pairs[0].shape[1] * value for key, value in errors.items()}
    return total | {"es_paper": 2 * total["es"], "theta_mae": (theta - data.theta).abs().mean(-1)}


def optimal(dataset: Dataset, seed: int, graphs: int, device: torch.device | str = "cpu") -> Outcome:
    """What the true model scores; no model has a lower expected energy score."""
    data = Data([Run(dataset, "softmax", 0.0, seed)], torch.device(device), torch.float32)
    weight = dataset.weight.to(device)[None]
    found = evaluate(data.theta, weight, data, data.test, graphs)
    found["validation_es"] = evaluate(data.theta, weight, data, data.validation, graphs)["es"]
    metrics = {key: float(value) for key, value in found.items()}
    return Outcome(metrics["es"], metrics, {})


# -- the study --------------------------------------------------------------------------------------------------------

NOTE = "gsl settings"
OPTIMAL = "optimal"


def study_name(theta: float, head: str) -> str:
    return f"gsl theta*={theta:g} {head}"


@dataclass
class GraphLearning(RateSearch):
    """For every theta* and head the best rate, and there the final seeds.

    The rates: a coarse grid, widened while the best one is at its end, and a refined grid around the best. The best has
    the lowest validation score, the mean over the search seeds. Each stage follows from what is done, so a study that
    was stopped goes on where it was.
    """

    plan: Settings
    datasets: dict[float, Dataset] = field(default_factory=dict, repr=False)  # drawn when they are needed

    kind: ClassVar[str] = "catnat gsl"
    note: ClassVar[str] = NOTE
    unsaid: ClassVar[dict[str, Any]] = {"search_seeds": 1}

    def __post_init__(self) -> None:
        every = product(self.plan.thetas, (*self.plan.heads, OPTIMAL))
        self.cells = {study_name(theta, head): (theta, head) for theta, head in every}

    def stages(self, done: Done) -> Iterator[list[Job]]:
        heads = [name for name, (_, head) in self.cells.items() if head != OPTIMAL]
        optimal = [name for name in self.cells if name not in heads]
        seeds = range(1, self.plan.seeds + 1)
        yield [Job(name, {"stage": OPTIMAL, "seed": seed}) for name in optimal for seed in seeds]
        yield self.coarse(heads)
        yield self.wider(done, heads)
        yield self.refined(done, heads)
        yield [job for name in heads for job in self.final(done, name, name)]

    def train(self, jobs: Sequence[Job], context: RunContext) -> Iterator[tuple[Job, Outcome]]:
        plan, device = self.plan, torch.device(context.device)
        for theta in {self.cells[job.cell][0] for job in jobs} - set(self.datasets):
            self.datasets[theta] = make_dataset(theta, communities=plan.communities, pairs=plan.pairs)
        runs = {}
        for job in jobs:
            theta, head = self.cells[job.cell]
            if head == OPTIMAL:
                yield job, optimal(self.datasets[theta], job.config["seed"], plan.graphs, device)
            else:
                runs[job] = Run(self.datasets[theta], head, job.config["rate"], job.config["seed"])
        if not runs:
            return
        stages = {job.config["stage"] for job in jobs}
        told = "final seeds" if stages == {"final"} else f"rates ({', '.join(sorted(stages))})"
        on_step = partial(context.progress, f"{told} ({len(runs)} side by side)")
        for job, outcome in zip(runs, train(list(runs.values()), plan, device, on_step=on_step), strict=True):
            curve = {key: [round(value, 5) for value in values] for key, values in outcome.record["curve"].items()}
            learned = [round(t, 5) for t in outcome.record["theta"]]
            # what the report draws: curves and, of a final run, the learned graph
            record = {"curve": curve} | ({"theta": learned} if job.config["stage"] == "final" else {})
            yield job, replace(outcome, record=record)
