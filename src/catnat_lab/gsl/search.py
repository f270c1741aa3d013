"""The study: find every parameterization's learning rate, train its final seeds there, and read the results back.

For every theta* and head: a coarse grid of rates, widened while the best one is at its end; a refined grid around the
best; then the final seeds at the rate with the lowest validation score of all, the mean over the search seeds. Each
step follows from what the store holds, so a study that was stopped goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from catnat_lab import rates
from catnat_lab.errors import UserError
from catnat_lab.gsl.data import Dataset, make_dataset
from catnat_lab.gsl.presets import Settings
from catnat_lab.gsl.train import Budget, Outcome, Run, optimal, train, value_of
from catnat_lab.store import Claim, Finished, Store, Study, work

NOTE = "gsl settings"
OPTIMAL = "optimal"
BEFORE = {"search_seeds": 1}  # settings of studies that do not say
Told = tuple[Claim, float, dict[str, float], dict[str, object]]
Progress = Callable[[str, int, int], None]  # what is done, steps done, steps in all


def study_name(theta: float, head: str) -> str:
    """The name of one table cell's study."""
    return f"gsl theta*={theta:g} {head}"


@dataclass
class Search:
    """One study of all cells, on one device."""

    store: Store
    settings: Settings
    device: torch.device
    stacked: int  # runs trained as one program at most
    progress: Progress = lambda what, done, total: None
    tell: Callable[[str], None] = lambda text: None

    def __post_init__(self) -> None:
        now = self.settings.as_dict()
        before = BEFORE | self.store.settle_note(NOTE, now)
        if before != now:
            changed = [f"{key} was {before.get(key)}, now {now[key]}" for key in now if before.get(key) != now[key]]
            raise UserError(f"this study was begun with other settings: {'; '.join(changed)}; give another --output")
        self.datasets: dict[float, Dataset] = {}
        self.trained = 0  # trials that this process has finished
        self.cells = [(theta, head) for theta in self.settings.thetas for head in self.settings.heads]

    def study(self, theta: float, head: str) -> Study:
        """The study of one cell."""
        return self.store.study(study_name(theta, head))

    def run(self) -> None:
        """Everything that is not done yet."""
        settings = self.settings
        seeds = range(1, settings.seeds + 1)
        studies = {(theta, OPTIMAL): self.study(theta, OPTIMAL) for theta in settings.thetas}
        for study in studies.values():
            study.plan({"stage": OPTIMAL, "seed": seed} for seed in seeds)
        self._work("optimal values", studies)
        if settings.search == "grid":
            self._search_grids()
        else:
            self._search_tpe()
        studies = {cell: self.study(*cell) for cell in self.cells}
        for cell, study in studies.items():
            rate = self.best_rate(*cell)
            study.plan({"stage": "final", "rate": rate, "seed": seed} for seed in seeds)
        self._work("final seeds", studies)

    def best_rate(self, theta: float, head: str, *stages: str) -> float:
        """The rate with the lowest mean validation score of these stages, or of all that search."""
        return rates.best_rate(self._tried(theta, head, *stages or ("coarse", "refined", "tpe")))

    def _tried(self, theta: float, head: str, *stages: str) -> list[Finished]:
        return [trial for stage in stages for trial in self.study(theta, head).finished(stage=stage)]

    def _search_grids(self) -> None:
        settings = self.settings
        self._grid("coarse rates", {cell: list(settings.rates) for cell in self.cells}, "coarse")
        while wider := {cell: further for cell in self.cells if (further := self._beyond(cell))}:
            self._grid("rates beyond the grid", wider, "coarse")
        # halves, because the power 0 is the coarse rate, which is known
        powers = [power - settings.refined // 2 + 0.5 for power in range(settings.refined)]
        refined = {cell: [self.best_rate(*cell, "coarse") * settings.ratio**p for p in powers] for cell in self.cells}
        self._grid("refined rates", refined, "refined")

    def _search_tpe(self) -> None:
        """TPE asks in batches of half the coarse grid, so that it learns from what it has seen."""
        settings = self.settings
        count, together = len(settings.rates) + settings.refined, max(1, len(settings.rates) // 2)
        studies = {cell: self.study(*cell) for cell in self.cells}
        for study in studies.values():
            space = {"rate": (min(settings.rates), max(settings.rates))}
            study.search(space, {"stage": "tpe", "seed": rates.search_seeds(1)[0]}, count, parallel=together)
        self._work("rates by TPE", studies)

    def _beyond(self, cell: tuple[float, str]) -> list[float]:
        """The next rate beyond that end of the grid where the best is; none if it is inside, or enough were added."""
        tried = list(rates.by_rate(self._tried(*cell, "coarse")))
        low, high = min(self.settings.rates), max(self.settings.rates)
        best = self.best_rate(*cell, "coarse")
        if best == tried[0] and sum(rate < low for rate in tried) < self.settings.widen:
            return [best / 2]
        if best == tried[-1] and sum(rate > high for rate in tried) < self.settings.widen:
            return [best * 2]
        return []

    def _grid(self, what: str, tried: dict[tuple[float, str], list[float]], stage: str) -> None:
        studies = {cell: self.study(*cell) for cell in tried}
        seeds = rates.search_seeds(self.settings.search_seeds)
        for cell, study in studies.items():
            rounded = [float(f"{rate:.3g}") for rate in tried[cell]]
            study.plan({"stage": stage, "rate": rate, "seed": seed} for rate in rounded for seed in seeds)
        self._work(what, studies)

    def _work(self, what: str, studies: dict[tuple[float, str], Study]) -> None:
        cells = {study.name: cell for cell, study in studies.items()}
        work(
            studies.values(),
            lambda claims: self._train(what, [(claim, *cells[claim.study]) for claim in claims]),
            batch=self.stacked,
            on_wait=lambda: self.tell(f"{what}: other processes train them; waiting"),
        )

    def _train(self, what: str, claims: list[tuple[Claim, float, str]]) -> Iterator[Told]:
        settings = self.settings
        for theta in settings.thetas:
            if theta not in self.datasets:
                self.datasets[theta] = make_dataset(theta, communities=settings.communities, pairs=settings.pairs)
        for claim, theta, head in claims:
            if head == OPTIMAL:
                outcome = optimal(self.datasets[theta], [claim.config["seed"]], settings.graphs, self.device)[0]
                yield claim, outcome.metrics["es"], outcome.metrics, {}
        claims = [(claim, theta, head) for claim, theta, head in claims if head != OPTIMAL]
        if not claims:
            return
        runs = [Run(self.datasets[theta], head, c.config["rate"], c.config["seed"]) for c, theta, head in claims]
        budget = Budget(settings.epochs, settings.batch, settings.graphs, settings.choice_graphs, settings.baseline)
        outcomes = train(
            runs,
            budget,
            self.device,
            on_step=lambda done, total: self.progress(f"{what} ({len(runs)} side by side)", done, total),
        )
        self.trained += len(claims)
        for (claim, _, _), outcome in zip(claims, outcomes, strict=True):
            yield claim, value_of(outcome), outcome.metrics, _record(claim, outcome)


def _record(claim: Claim, outcome: Outcome) -> dict[str, object]:
    """What the report draws: curves and, of a final run, the learned graph."""
    curve = {key: [round(value, 5) for value in values] for key, values in outcome.curve.items()}
    return {"curve": curve} | (
        {"theta": [round(t, 5) for t in outcome.theta]} if claim.config["stage"] == "final" else {}
    )
