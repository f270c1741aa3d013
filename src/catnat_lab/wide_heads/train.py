"""How good is a wide head? Small language models of source code, which differ in nothing but their heads.

From the top: the settings, the network, its training and evaluation, the study of all heads, and what a step costs.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from catnat_lab.devices import tensor_cores
from catnat_lab.errors import check_distinct, check_known, check_least
from catnat_lab.experiment import Done, Job, Outcome, Plan, RunContext, TimeIsUp
from catnat_lab.search import RateSearch
from catnat_lab.wide_heads.corpus import Corpus
from catnat_lab.wide_heads.heads import CLOSER, DEFAULTS, HEADS, REFITTED, RIVALS, SIGMOIDS, head_of, refit

# As older studies have them, of when the command was `catnat words`.
NOTE = "words settings"
CLOCK = "words clock"
TASKS = ("pieces", "words")
WARM_UP = 100  # steps in which the rate grows
POINTS = 12  # of a curve
REFIT_AT = 0.2  # of the steps


@dataclass(frozen=True)
class Settings(Plan):
    task: str
    classes: int = 32_768
    tokens: int = 14_000_000
    heads: tuple[str, ...] = HEADS
    rates: tuple[float, ...] = (0.001, 0.003, 0.01)
    search_steps: int = 1500  # as many as final: short runs ask for rates too high
    search_seeds: int = 1
    seeds: int = 3
    steps: int = 1500
    batch: int = 32
    length: int = 128
    width: int = 256
    layers: int = 4
    judged: int = 1 << 17  # tokens of validation and of test, at most
    glanced: int = 1 << 15  # tokens for a point of a curve

    def __post_init__(self) -> None:
        check_known("task", [self.task], TASKS)
        check_known("heads", self.heads, HEADS)
        check_distinct(self, "heads", "rates")
        check_least(self, search_steps=1, search_seeds=1, seeds=2, steps=POINTS, batch=1)


FULL = {
    "pieces": Settings("pieces"),
    "words": Settings(
        "words", classes=200_001, tokens=18_000_000, steps=800, search_steps=800,
        heads=(*RIVALS, *SIGMOIDS, DEFAULTS[-1], *CLOSER[:3]),
    ),
}  # fmt: skip
FEW: dict[str, Any] = {
    "classes": 512, "tokens": 30_000, "rates": (0.001, 0.01), "search_steps": 2, "seeds": 2, "steps": POINTS,
    "batch": 4, "length": 16, "width": 16, "layers": 1, "judged": 500, "glanced": 100,
}  # fmt: skip
PRESETS = {"full": FULL, "smoke": {task: Settings(task, **FEW) for task in TASKS}}


# -- the network ------------------------------------------------------------------------------------------------------


class Trunk(nn.Module):
    """A small transformer without its head."""

    def __init__(self, classes: int, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(classes, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        """[B, L] to features [B, L, width]."""
        places = torch.arange(ids.shape[1], device=ids.device)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        features: Tensor = self.layers(self.embedding(ids) + self.places(places), mask=mask, is_causal=True)
        return features


class Model(nn.Module):
    def __init__(self, head: str, plan: Settings, corpus: Corpus) -> None:
        super().__init__()
        self.trunk = Trunk(plan.classes, plan.width, plan.layers, plan.length)
        self.head = head_of(head, plan.width, corpus)

    def forward(self, ids: Tensor, target: Tensor) -> Tensor:
        """Mean nats per token."""
        found: Tensor = self.head.loss(self.trunk(ids).flatten(0, 1), target.flatten())  # type: ignore[operator]
        return found


# -- training and evaluation ------------------------------------------------------------------------------------------


def fit(
    model: Model, tokens: Tensor, plan: Settings, steps: int, rate: float, seed: int
) -> Iterator[tuple[int, torch.optim.Adam]]:
    """Train by Adam, and stop for a moment after every step; the rate warms up, then falls to nothing."""
    device, parameters = tokens.device, list(model.parameters())
    optimiser = torch.optim.Adam(parameters, rate, fused=device.type == "cuda")
    stream = torch.Generator().manual_seed(seed)
    within = torch.arange(plan.length + 1, device=device)
    for step in range(steps):
        starts = torch.randint(len(tokens) - plan.length, (plan.batch, 1), generator=stream).to(device)
        ids = tokens[starts + within].long()
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1, (step + 1) / WARM_UP) * (1 - step / steps)
        optimiser.zero_grad()
        model(ids[:, :-1], ids[:, 1:]).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        yield step + 1, optimiser


@torch.no_grad()
def evaluate(model: Model, tokens: Tensor, most: int, plan: Settings) -> float:
    """Mean nats per token over so many of them, at most."""
    count = min(len(tokens), most) // (plan.length + 1)
    rows = tokens[: count * (plan.length + 1)].view(count, plan.length + 1).long()
    model.head.eval()  # of the trunk nothing changes with it
    losses = [model(some[:, :-1], some[:, 1:]) * len(some) for some in rows.split(plan.batch)]
    model.head.train()
    return float(torch.stack(losses).sum() / len(rows))


# -- the study --------------------------------------------------------------------------------------------------------


def study_name(task: str, head: str) -> str:
    return f"words {task} {head}"


@dataclass
class WideHeads(RateSearch):
    """Every head's rate by runs of one seed, then its final seeds."""

    plan: Settings
    corpus: Corpus = field(repr=False)
    spent: dict[tuple[str, int], float] = field(default_factory=dict)  # seconds of a head's last run, by its steps

    kind: ClassVar[str] = "catnat wide-heads"
    note: ClassVar[str] = NOTE
    growing: ClassVar[tuple[str, ...]] = ("heads", "seeds")

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | {"corpus": self.corpus.checksum}

    def stages(self, done: Done) -> Iterator[list[Job]]:
        cells = [study_name(self.plan.task, head) for head in self.plan.heads]
        yield self.coarse(cells)
        searched = [cell for cell in cells if done.finished(cell)]  # a head may not fit at all
        final = [job for cell in searched for job in self.final(done, cell, cell)]
        yield sorted(final, key=lambda job: int(job.config["seed"]))  # where time is up all heads are as far

    def train(self, jobs: Sequence[Job], context: RunContext) -> Iterator[tuple[Job, Outcome]]:
        with tensor_cores(), torch.random.fork_rng():
            for job in jobs:
                yield job, self._train(job, context)

    def _train(self, job: Job, context: RunContext) -> Outcome:
        plan, head, final = self.plan, job.cell.split()[-1], job.config["stage"] == "final"
        steps, started = plan.steps if final else plan.search_steps, time.monotonic()
        if started + self.spent.get((head, steps), 0.0) >= context.ends:
            raise TimeIsUp
        train, validation, test = self.tokens(torch.device(context.device))
        model = self.model(head, job.config["seed"], train.device)
        curve: dict[str, list[float]] = {"step": [], "validation": []}
        points = {steps * k // POINTS for k in range(1, POINTS + 1)} if final else set()
        for step, optimiser in fit(model, train, plan, steps, job.config["rate"], job.config["seed"]):
            if head.endswith(REFITTED) and step == int(REFIT_AT * steps):
                refit(model.head, model.trunk.embedding.weight, optimiser)  # type: ignore[arg-type]
            if step in points:
                curve["step"].append(step)
                curve["validation"].append(evaluate(model, validation, plan.glanced, plan))
            context.progress(f"{plan.task}, {head}", step, steps)
        metrics = {"test": evaluate(model, test, plan.judged, plan)} if final else {}
        value = evaluate(model, validation, plan.judged, plan)
        self.spent[head, steps] = time.monotonic() - started
        return Outcome(value, metrics, {"curve": curve} if final else {})

    def tokens(self, device: torch.device) -> list[Tensor]:
        return [torch.from_numpy(part).to(device) for part in self.corpus.parts]

    def model(self, head: str, seed: int, device: torch.device) -> Model:
        """The trunks of a seed are the same with all heads."""
        torch.manual_seed(seed)
        with device:
            return Model(head, self.plan, self.corpus)


# -- what a step costs ------------------------------------------------------------------------------------------------

WARM, TIMED = 5, 30  # steps of a clock


def clock(experiment: WideHeads, device: torch.device) -> dict[str, dict[str, float]]:
    """Milliseconds of a whole step for every head, the median over interleaved rounds, and MiB at its peak.

    Runs of a study may share a GPU, so their own seconds would tell nothing.
    """
    plan, on_gpu, runs, peaks = experiment.plan, device.type == "cuda", {}, {}
    with tensor_cores(), torch.random.fork_rng():
        train = experiment.tokens(device)[0]
        for head in plan.heads:
            before = torch.cuda.memory_allocated(device) if on_gpu else 0
            torch.cuda.reset_peak_memory_stats(device) if on_gpu else None
            runs[head] = fit(experiment.model(head, 0, device), train, plan, WARM + TIMED, 1e-4, 0)
            for _ in range(WARM):
                next(runs[head])
            peaks[head] = (torch.cuda.max_memory_allocated(device) - before) / 2**20 if on_gpu else 0.0
        seconds: dict[str, list[float]] = {head: [] for head in runs}
        for _ in range(TIMED):
            for head, run in runs.items():
                started = time.perf_counter()
                next(run)
                torch.cuda.synchronize(device) if on_gpu else None
                seconds[head].append(time.perf_counter() - started)
    return {head: {"ms": 1000 * median(seconds[head]), "MiB": peaks[head]} for head in runs}


def whole_time(plan: Settings, clocked: dict[str, dict[str, float]]) -> float:
    """Seconds that all runs take one after the other, without judging."""
    steps = len(plan.rates) * plan.search_seeds * plan.search_steps + plan.seeds * plan.steps
    return steps * sum(clocked[head]["ms"] for head in plan.heads) / 1000
