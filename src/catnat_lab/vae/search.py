"""The study: find every head's learning rate, train its final seeds there, and read the results back.

On the searched cells a coarse grid of rates, then a refined one around its best; every other cell takes the rates of
the nearest searched one. All runs of a cell train as one stack. Each step follows from what the store holds, so a study
that was stopped goes on where it was.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from catnat_lab import rates
from catnat_lab.devices import on_device
from catnat_lab.errors import UserError
from catnat_lab.store import Claim, Store, Study, work
from catnat_lab.vae.data import Images, images_of
from catnat_lab.vae.digits import Digits
from catnat_lab.vae.presets import Settings, sizes
from catnat_lab.vae.stack import Run
from catnat_lab.vae.train import Checkpoint, Outcome, Plan, Trainer, train, value_of

NOTE = "vae settings"
SOURCE = "vae digits"
BEFORE = {"search_seeds": 1}  # settings of studies that do not say
CHECKPOINTS = "checkpoints"
TIMED = 20  # steps that tell what a study will take
GROWING = ("cells", "searched", "data", "heads", "seeds")  # settings that a study may go on with more of
SHOWN = 10  # test images that are kept with a trained model, to show what it makes of them
Told = tuple[Claim, float, dict[str, float], dict[str, object]]
Progress = Callable[[str, int, int], None]  # what is done, steps done, steps in all


def study_name(table: str, data: str, cell: str, head: str) -> str:
    """The name of one table cell's study."""
    return f"vae {table} {data} {cell} {head}"


@dataclass
class Search:
    """One study of all cells, on one device."""

    store: Store
    settings: Settings
    digits: Digits
    device: torch.device
    stacked: int  # runs trained as one program at most
    folder: Path  # of checkpoints and trained models
    progress: Progress = lambda what, done, total: None
    tell: Callable[[str], None] = lambda text: None

    def __post_init__(self) -> None:
        self.settings = self._settled()
        held = {"checksum": self.digits.checksum, "source": self.digits.source}
        before = self.store.settle_note(SOURCE, held)
        if before["checksum"] != held["checksum"]:
            raise UserError(f"this study was begun with other digits: {before['source']}; now {held['source']}")
        images = images_of(self.digits, self.settings.data, split_test=self.settings.table == "mlp")
        self.images: Images = images.to(self.device)
        self.trained = 0  # trials that this process has finished

    def _settled(self) -> Settings:
        """The study's settings: what it was begun with, grown by what is asked for now."""
        now = self.settings.as_dict()
        before = BEFORE | self.store.settle_note(NOTE, now)
        both = {key: _larger(now[key], before.get(key)) if key in GROWING else now[key] for key in now}
        wrong = [key for key in now if both[key] is None or (key not in GROWING and before.get(key) != now[key])]
        if wrong:
            told = "; ".join(f"{key} was {before.get(key)}, now {now[key]}" for key in wrong)
            raise UserError(
                f"this study was begun with other settings: {told}; give another --output "
                f"({', '.join(GROWING)} may grow at their end)"
            )
        if both != before:
            self.store.set_note(NOTE, both)
        settled: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in both.items()}
        return Settings(**settled)

    def study(self, data: str, cell: str, head: str) -> Study:
        """The study of one cell of the table."""
        return self.store.study(study_name(self.settings.table, data, cell, head))

    def cost(self) -> str:
        """In words: how many steps there are to take, and how long that may last here."""
        settings = self.settings
        tried = settings.search_seeds * (len(settings.rates) + settings.refined) if settings.has_search else 0
        searched = len(settings.searched) * len(settings.heads) * tried
        final = len(settings.cells) * len(settings.data) * len(settings.heads) * settings.seeds
        kept = self._finished("coarse", "refined"), self._finished("final")
        steps = max(0, searched - kept[0]) * settings.search_steps + max(0, final - kept[1]) * settings.steps
        told = f"{searched} runs to find rates and {final} final ones, of which {sum(kept)} are done"
        if steps == 0:
            return told
        runs = min(self.stacked, len(settings.data) * len(settings.heads) * settings.seeds)
        names = sorted(settings.heads[i % len(settings.heads)] for i in range(runs))
        stack = [Run(settings.data[0], name, 1e-5, seed) for seed, name in enumerate(names)]
        plan = settings.plan(settings.cells[0], settings.steps)
        trainer = Trainer(stack, plan, self.images, settings.data, self.device)
        with on_device(self.device):
            trainer.step(0)
            started = self._now()
            for step in range(1, TIMED + 1):
                trainer.step(step)
            speed = runs * TIMED / (self._now() - started)
        return (
            f"{told}; {steps:,} steps are left, at {speed:,.0f} steps/s ({runs} side by side) about "
            f"{_minutes(steps / speed)}, the judging not counted; what is done is kept"
        )

    def _finished(self, *stages: str) -> int:
        """How many trials are."""
        known = [name for name in self.store.names() if name.startswith(f"vae {self.settings.table} ")]
        return sum(len(self.store.study(name).finished(stage=stage)) for name in known for stage in stages)

    def run(self) -> None:
        """Everything that is not done yet."""
        settings = self.settings
        if settings.has_search:
            self._search()
        for cell in settings.cells:
            studies = [self.study(data, cell, head) for data in settings.data for head in settings.heads]
            chosen = [self.best_rate(cell, head) for _ in settings.data for head in settings.heads]
            for study, rate in zip(studies, chosen, strict=True):
                done = study.finished(stage="final")
                rate = done[0].config["rate"] if done else rate  # a search that grew later changes no line of a table
                study.plan({"stage": "final", "rate": rate, "seed": seed} for seed in range(1, settings.seeds + 1))
            self._work(f"{cell} final seeds", cell, studies)
        for left in (self.folder / CHECKPOINTS).glob("*"):  # of stacks that went on in other company
            left.unlink(missing_ok=True)

    def _search(self) -> None:
        settings = self.settings
        self._grid("coarse", {cell: dict.fromkeys(settings.heads, settings.rates) for cell in settings.searched})
        # halves, because the power 0 is the coarse rate, which is known
        powers = [power - settings.refined // 2 + 0.5 for power in range(settings.refined)]
        refined = {
            cell: {h: tuple(self._best(cell, h, "coarse") * settings.ratio**p for p in powers) for h in settings.heads}
            for cell in settings.searched
        }
        self._grid("refined", refined)

    def best_rate(self, cell: str, head: str) -> float:
        """The rate with the best validation bound, of this cell or of the nearest one that was searched."""
        if not self.settings.has_search:
            return self.settings.rates[0]
        n, k = sizes(cell)

        def far(other: str) -> float:
            return abs(math.log(sizes(other)[0] / n)) + abs(math.log(sizes(other)[1] / k))

        return self._best(min(self.settings.searched, key=far), head, "coarse", "refined")

    def _best(self, cell: str, head: str, *stages: str) -> float:
        study = self.study(self.settings.data[0], cell, head)
        return rates.best_rate(trial for stage in stages for trial in study.finished(stage=stage))

    def _grid(self, stage: str, grids: dict[str, dict[str, tuple[float, ...]]]) -> None:
        seeds = rates.search_seeds(self.settings.search_seeds)
        for cell, by_head in grids.items():
            studies = [self.study(self.settings.data[0], cell, head) for head in by_head]
            for study, tried in zip(studies, by_head.values(), strict=True):
                rounded = [float(f"{rate:.3g}") for rate in tried]
                study.plan({"stage": stage, "rate": rate, "seed": seed} for rate in rounded for seed in seeds)
            self._work(f"{cell} {stage} rates", cell, studies)

    def _plan(self, cell: str, final: bool) -> Plan:
        if final:
            return self.settings.plan(cell, self.settings.steps)
        # the test images have no part in the choice of a rate
        return replace(self.settings.plan(cell, self.settings.search_steps), samples=0)

    def _work(self, what: str, cell: str, studies: list[Study]) -> None:
        places = {study.name: study.name.split(" ") for study in studies}  # vae, table, data, cell, head

        def trained(claims: list[Claim]) -> Iterator[Told]:
            # a study that goes on may find final runs waiting while it looks for rates: each stage has its own length
            for final in (False, True):
                some = [claim for claim in claims if (claim.config["stage"] == "final") == final]
                if some:
                    yield from together(some, self._plan(cell, final))

        def together(claims: list[Claim], plan: Plan) -> Iterator[Told]:
            runs = [
                Run(places[claim.study][2], places[claim.study][4], claim.config["rate"], claim.config["seed"])
                for claim in claims
            ]
            saved = Checkpoint(self.folder / CHECKPOINTS, runs, plan)
            outcomes = train(
                runs,
                plan,
                self.images,
                self.settings.data,
                self.device,
                saved=saved,
                on_step=lambda done, total: self.progress(f"{what} ({len(runs)} side by side)", done, total),
            )
            self.trained += len(claims)
            for claim, run, outcome in zip(claims, runs, outcomes, strict=True):
                if claim.config["stage"] == "final" and claim.config["seed"] == 1:
                    self._keep(claim.study, run, outcome)
                yield claim, value_of(outcome), outcome.metrics, {"curve": outcome.curve}
            saved.remove()

        work(
            studies,
            trained,
            batch=self.stacked,
            on_wait=lambda: self.tell(f"{what}: other processes train them; waiting"),
        )

    def _keep(self, name: str, run: Run, outcome: Outcome) -> None:
        """The first final model of every cell, with some test images, for pictures and for use elsewhere."""
        place = self.settings.data.index(run.data)
        path = self.folder / "models" / f"{name.replace(' ', '-')}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        test = self.images.test[place]
        images = test[torch.arange(SHOWN, device=test.device) % len(test)].cpu()
        save_file({**outcome.model, "images": images}, partial, metadata={"study": name})
        partial.replace(path)

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def _larger(now: Any, before: Any) -> Any:
    """The larger of two settings of which one begins with the other, as the search is on the first; else None."""
    if isinstance(now, int):
        return max(now, before)
    small, large = sorted((list(now), list(before)), key=len)
    return large if large[: len(small)] == small else None


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"
