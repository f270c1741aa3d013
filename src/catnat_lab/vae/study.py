"""What a study of the categorical VAE runs: its settings, `smoke`, `quick` and `paper`; and the study itself.

On the searched cells a coarse grid of rates, widened while the best is at its end, then a refined one around the best;
every other cell takes the rates of the nearest searched one. All runs of a cell train as one stack. Each step follows
from what is done, so a study that was stopped goes on where it was.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby, product
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file

from catnat_lab import experiment, search
from catnat_lab.errors import UserError, check, check_distinct, check_known, check_least, pick
from catnat_lab.experiment import Done, Job, Outcome, RunContext
from catnat_lab.files import whole_file
from catnat_lab.heads import PAPER_HEADS, parameterization_of
from catnat_lab.vae import train as training
from catnat_lab.vae.digits import VARIANTS, Digits, Images, images_of
from catnat_lab.vae.train import BASELINES, Plan

NOTE = "vae settings"
SOURCE = "vae digits"
CHECKPOINTS = "checkpoints"
SEARCH = ("searched", "search_seeds", "search_steps", "widen", "ratio")  # settings of the search alone
SHOWN = 10  # test images that are kept with a trained model, to show what it makes of them
TABLES = {  # the network, the optimizer and the gradient's estimator
    "adam": ("convolutional", "adam", "gumbel"),
    "sgd": ("convolutional", "sgd", "gumbel"),
    "mlp": ("dense", "adam", "score-function"),
}
PAPER_CELLS = ("10x8", "10x16", "10x32", "20x8", "20x16", "20x32", "30x8", "30x16", "30x32")
SEARCHED = ("10x8", "20x16", "30x32")  # the other cells are near one of these


@dataclass(frozen=True)
class Settings(experiment.Plan):
    table: str = "adam"
    cells: tuple[str, ...] = PAPER_CELLS  # variables x classes
    data: tuple[str, ...] = ("grey", "binary")
    heads: tuple[str, ...] = (*PAPER_HEADS, "catnat")
    rates: tuple[float, ...] = (0.0003, 0.001, 0.003, 0.01, 0.03)  # the coarse grid
    widen: int = 3  # rates that may be added beyond either end of the coarse grid, while the best one is at that end
    refined: int = 4  # rates around the best of the coarse grid
    ratio: float = 1.3  # between neighbours of the refined grid
    searched: tuple[str, ...] = SEARCHED  # cells with a search of their own; others take the nearest one's rates
    search_seeds: int = 2  # by whose mean rates are compared
    search_steps: int = 10_000
    seeds: int = 5  # runs at the chosen rate
    steps: int = 60_000
    batch: int = 100
    samples: int = 512  # of the posterior, to judge by
    baseline: str = "constant"  # of the score function

    def __post_init__(self) -> None:
        check_known("table", [self.table], TABLES)
        check_known("baseline", [self.baseline], BASELINES)
        if self.baseline != "constant" and TABLES[self.table][2] != "score-function":
            raise UserError(f"baseline goes with the table mlp alone; got {self.baseline!r} with {self.table}")
        for name in ("cells", "searched"):
            for cell in getattr(self, name):
                sizes(cell, name)
        check_distinct(self, "cells", "data", "heads", "rates")
        if not self.searched:
            raise UserError("searched must hold at least one cell; got none")
        for name, cell in product(self.heads, (*self.cells, *self.searched)):
            parameterization_of(name, sizes(cell)[1])  # for its check
        check("data", self.data, VARIANTS.__contains__, f"be of {', '.join(VARIANTS)}")
        check("rates", self.rates, lambda rate: 0 < rate <= 1e3, "be positive and at most 1000")
        check_least(self, refined=0, widen=0, search_seeds=1, search_steps=1, seeds=2, steps=1, batch=2, samples=1)
        check("refined", [self.refined], lambda n: n % 2 == 0, "be even, as many rates above the best as below")
        check("ratio", [self.ratio], lambda ratio: 1 < ratio < 1e3, "be above 1")

    @property
    def has_search(self) -> bool:
        return len(self.rates) > 1 or self.refined > 0

    def plan(self, cell: str, steps: int) -> Plan:
        network, optimizer, estimator = TABLES[self.table]
        plan = Plan(network, *sizes(cell), optimizer, estimator, steps, self.batch, self.samples)
        return replace(plan, baseline=self.baseline)


def sizes(cell: str, name: str = "cells") -> tuple[int, int]:
    """Variables and classes of a cell like "20x16"."""
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", cell)
    if found is None or int(found[2]) < 2:
        raise UserError(f"{name} must be VARIABLESxCLASSES, such as 20x16, with at least 1 and 2; got {cell!r}")
    return int(found[1]), int(found[2])


def nearest(cell: str, searched: Sequence[str]) -> str:
    """The searched cell whose rates a cell takes; of two as near the first."""

    def far(other: str) -> float:
        return sum(abs(math.log(its / ours)) for its, ours in zip(sizes(other), sizes(cell), strict=True))

    return min(searched, key=far)


EPOCH = 60_000 // 128  # steps of the second codebase's
PAPER = {
    "adam": Settings(),
    "sgd": Settings(
        table="sgd",
        rates=(0.0005, 0.0009, 0.0017, 0.003, 0.0055, 0.01, 0.018, 0.033),
        refined=0,
        search_steps=40_000,
        steps=200_000,
    ),
    "mlp": Settings(
        table="mlp",
        data=("bernoulli",),
        heads=("softmax", "catnat-sigmoid", "catnat-paper", "catnat"),
        rates=(0.0001, 0.00015, 0.00022, 0.00033, 0.0005),
        refined=0,
        batch=128,
        search_steps=500 * EPOCH,  # as many as final: shorter runs ask for rates too high
        steps=500 * EPOCH,
        samples=8,
    ),
}


def preset(name: str, table: str) -> Settings:
    paper = pick(table, PAPER, "table")
    one: dict[str, Any] = {"data": paper.data[:1], "seeds": 2}
    rate = {"adam": 0.002, "sgd": 0.01, "mlp": 0.0005}[table]
    few = tuple(head for head in paper.heads if head != "sparsemax")
    one_rate: dict[str, Any] = {"rates": (rate,), "widen": 0, "refined": 0}
    quick: dict[str, Any] = {"cells": ("10x8",), "searched": ("10x8",), "heads": few, **one_rate}
    smoke: dict[str, Any] = {"cells": ("4x4",), "searched": ("4x4",), "rates": (0.001, 0.003), "widen": 0, "refined": 2}
    short: dict[str, Any] = {"search_steps": 3000, "steps": 3000}  # at one rate: enough to see the heads' order
    presets = {
        "smoke": replace(paper, **one, **smoke, search_seeds=1, search_steps=3, steps=6, batch=20, samples=4),
        "quick": replace(paper, **one, **quick, **short, samples=16),
        "paper": paper,
    }
    return pick(name, presets)


# -- the study -------------------------------------------------------------------------------------------------------


def study_name(table: str, data: str, cell: str, head: str) -> str:
    return f"vae {table} {data} {cell} {head}"


@dataclass
class Autoencoders(search.RateSearch):
    plan: Settings
    digits: Digits = field(repr=False)

    kind: ClassVar[str] = "catnat vae"
    note: ClassVar[str] = NOTE
    growing: ClassVar[tuple[str, ...]] = ("cells", "searched", "data", "heads", "rates", "widen", "seeds")
    unsaid: ClassVar[dict[str, Any]] = {"search_seeds": 1, "baseline": "constant"}

    @cached_property
    def images(self) -> Images:
        return images_of(self.digits, self.plan.data, split_test=self.plan.table == "mlp")

    def settled(self, before: dict[str, Any]) -> dict[str, Any]:
        """Where there is no search, its settings decide nothing."""
        has_search = self.plan.has_search or len(before["rates"]) > 1 or before["refined"] > 0
        same = {} if has_search else {name: self.settings[name] for name in SEARCH}
        return super().settled(before | same)

    def stages(self, done: Done) -> Iterator[list[Job]]:
        plan, name = self.plan, partial(study_name, self.plan.table)
        searched = [name(plan.data[0], cell, head) for cell in plan.searched for head in plan.heads]
        if plan.has_search:
            yield self.coarse(searched)
            yield self.wider(done, searched)
            yield self.refined(done, searched)
        yield [
            job
            for cell, data, head in product(plan.cells, plan.data, plan.heads)
            for job in self.final(done, name(data, cell, head), name(plan.data[0], nearest(cell, plan.searched), head))
        ]

    def batches(self, jobs: Sequence[Job], size: int) -> list[list[Job]]:
        """Of one cell and length each."""
        alike = groupby(sorted(jobs, key=_kind), key=_kind)
        return [some for _, group in alike for some in super(Autoencoders, self).batches(list(group), size)]

    def train(self, jobs: Sequence[Job], context: RunContext) -> Iterator[tuple[Job, Outcome]]:
        cell, final = _kind(jobs[0])
        plan = self.plan.plan(cell, self.plan.steps if final else self.plan.search_steps)
        if not final:  # the test images have no part in the choice of a rate
            plan = replace(plan, samples=0)
        runs = []
        for job in jobs:
            _, _, data, _, head = job.cell.split(" ")
            runs.append(training.Run(data, head, job.config["rate"], job.config["seed"]))
        saved = training.checkpoint_of(context.folder / CHECKPOINTS, runs, plan, context.device)
        told = partial(context.progress, f"{cell} {'final seeds' if final else 'rates'} ({len(runs)} side by side)")
        outcomes = training.train(runs, plan, self.images, self.plan.data, context.device, saved=saved, on_step=told)
        for job, run, found in zip(jobs, runs, outcomes, strict=True):
            if final and job.config["seed"] == 1:
                self._keep(context.folder, job.cell, run, found)
            yield job, Outcome(found.value, found.metrics, found.record)
        saved.path.unlink(missing_ok=True)

    def _keep(self, folder: Path, name: str, run: training.Run, outcome: training.Outcome) -> None:
        """The first final model of every cell, with some test images, for pictures and for use elsewhere."""
        place = self.plan.data.index(run.data)
        test = self.images.test[place]
        images = test[torch.arange(SHOWN, device=test.device) % len(test)].cpu()
        with whole_file(folder / "models" / f"{name.replace(' ', '-')}.safetensors") as path:
            save_file({**outcome.model, "images": images}, path, metadata={"study": name})


def _kind(job: Job) -> tuple[str, bool]:
    """The size of a job's network, and whether it is trained to the end."""
    return job.cell.split(" ")[3], job.config["stage"] == "final"
