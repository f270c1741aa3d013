"""The study: find every head's learning rate, then train its final seeds there.

On the searched cells a coarse grid of rates, widened while the best is at its end, then a refined one around the best;
every other cell takes the rates of the nearest searched one. All runs of a cell train as one stack. Each step follows
from what is done, so a study that was stopped goes on where it was.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby, product
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file

from catnat_lab import search
from catnat_lab.experiment import Done, Job, Outcome, RunContext
from catnat_lab.files import whole_file
from catnat_lab.vae import train as training
from catnat_lab.vae.data import Images, images_of
from catnat_lab.vae.digits import Digits
from catnat_lab.vae.presets import Settings, nearest

NOTE = "vae settings"
SOURCE = "vae digits"
CHECKPOINTS = "checkpoints"
SEARCH = ("searched", "search_seeds", "search_steps", "widen", "ratio")  # settings of the search alone
SHOWN = 10  # test images that are kept with a trained model, to show what it makes of them


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
