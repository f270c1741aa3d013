"""The study: search every head's hyperparameters by TPE, train its best ones over many seeds, and read it all back.

Every trial is a run of its own, with a checkpoint of its own, so a study that was stopped goes on within a trial. Start
the command several times, on one machine or on many, and the processes share the trials.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from optuna.distributions import FloatDistribution, IntDistribution

from catnat_lab.errors import UserError
from catnat_lab.rl.catalogue import check_game
from catnat_lab.rl.settings import PAPER_STEPS, Settings, preset
from catnat_lab.rl.train import Result, train
from catnat_lab.store import Claim, Finished, Store, Study, work
from catnat_lab.trials import Range

NOTE = "rl settings"
PROVENANCE = "rl provenance"
MINATAR_NOTE = "minatar settings"  # of the other study, which needs JAX to be read
SEARCH_SEED = 0  # of the search's runs; the final seeds are 1, 2, ...
CURVE_POINTS = 100
GROWING = ("games", "heads", "seeds")  # what a study may go on with more of; more trials would choose others
PAPER_HEADS = ("softmax", "catnat-natural")
# the paper's ranges
SPACE: dict[str, Range] = {
    "rate": FloatDistribution(5e-5, 1e-2, log=True),
    "rollout": IntDistribution(32, 512, step=32),
    "epochs": IntDistribution(1, 15, step=2),
    "clip": FloatDistribution(0.01, 0.9),
    "entropy": FloatDistribution(0.0, 1.0),
    "envs": IntDistribution(8, 16, step=2),
    "minibatches": IntDistribution(2, 14, step=4),
    "gradient": FloatDistribution(0.1, 10.0, step=0.1),
}
Told = tuple[Claim, float, dict[str, float], dict[str, object]]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Plan:
    """All that decides a study's numbers."""

    games: tuple[str, ...] = ("Breakout", "Seaquest")
    heads: tuple[str, ...] = PAPER_HEADS
    steps: int = PAPER_STEPS
    trials: int = 160  # of the search, for every game and head; 0: the defaults are trained
    best: int = 10  # of them that are trained again
    seeds: int = 10

    def __post_init__(self) -> None:
        """Name what is wrong, before anything is written."""
        for name, values in (("games", self.games), ("heads", self.heads)):
            if not values or len(set(values)) < len(values):
                raise UserError(f"{name} must hold at least one value, each once; got {', '.join(values) or 'none'}")
        for name, low in (("steps", 1), ("trials", 0), ("best", 1), ("seeds", 1)):
            if getattr(self, name) < low:
                raise UserError(f"{name} must be at least {low}; got {getattr(self, name)}")
        for game in self.games:
            check_game(game)
            for head in self.heads:
                replace(preset("paper", game), head=head)  # for its checks


def plan_of(name: str) -> Plan:
    """smoke, quick or paper."""
    if name == "paper":
        return Plan()
    if name == "quick":  # the defaults, to see them learn
        return Plan(games=("CartPole-v1",), steps=50_000, trials=0, seeds=3)
    if name == "smoke":
        return Plan(games=("CartPole-v1",), steps=2_000, trials=2, best=1, seeds=2)
    raise UserError(f"preset must be one of smoke, quick, paper; got {name!r}")


class Stopped(Exception):
    """The time is up; what was begun has its checkpoint."""


@dataclass
class Sweep:
    """One study, on one device."""

    store: Store
    plan: Plan
    device: torch.device
    folder: Path  # of the runs
    threads: int = 0
    minutes: float | None = None
    progress: Progress = lambda what, done, total: None
    tell: Callable[[str], None] = lambda text: None

    def __post_init__(self) -> None:
        now = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self.plan).items()}
        before = self.store.settle_note(NOTE, now)
        wrong = [key for key in now if key not in GROWING and before.get(key) != now[key]]
        if wrong:
            told = "; ".join(f"{key} was {before.get(key)}, now {now[key]}" for key in wrong)
            raise UserError(f"this study was begun with other settings: {told}; give another --output")
        grown = {key: _larger(before[key], now[key]) if key in GROWING else now[key] for key in now}
        self.store.set_note(NOTE, grown)
        self.ends = None if self.minutes is None else time.monotonic() + 60 * self.minutes

    def study(self, game: str, head: str) -> Study:
        """Of one cell of the table."""
        return self.store.study(study_name(game, head))

    def run(self) -> None:
        """Everything that is not done yet, or as much of it as there is time for."""
        cells = {(game, head): self.study(game, head) for game in self.plan.games for head in self.plan.heads}
        places = {study.name: cell for cell, study in cells.items()}
        if self.plan.trials:
            for study in cells.values():
                study.search(SPACE, {"stage": "tpe", "seed": SEARCH_SEED}, self.plan.trials)
            self._work("search", cells.values(), places)
        for study in cells.values():
            for rank, chosen in enumerate(self._chosen(study)):
                study.plan(
                    {"stage": "final", "rank": rank, "seed": seed, **chosen} for seed in range(1, self.plan.seeds + 1)
                )
        self._work("final seeds", cells.values(), places)

    def _chosen(self, study: Study) -> list[dict[str, Any]]:
        """The best configurations of the search; without one, the defaults."""
        if not self.plan.trials:
            return [{}]
        tried = sorted(study.finished(stage="tpe"), key=lambda trial: trial.value)
        return [{name: trial.config[name] for name in SPACE} for trial in tried[: self.plan.best]]

    def _work(self, what: str, studies: Any, places: dict[str, tuple[str, str]]) -> None:
        def trained(claims: list[Claim]) -> Iterator[Told]:
            for claim in claims:
                game, head = places[claim.study]
                result = self._train(what, claim, settings_of(claim.config, game, head, self.plan.steps))
                score = result.score
                metrics = {"score": score, "episodes": float(len(result.episodes))}
                yield claim, -score, metrics, {"curve": curve_of(result)}
                if claim.config["stage"] != "final" or claim.config["rank"] > 0 or claim.config["seed"] > 1:
                    shutil.rmtree(self._place(claim), ignore_errors=True)  # one of each is kept, to be watched

        work(studies, trained, batch=1, on_wait=lambda: self.tell(f"{what}: other processes train them; waiting"))

    def _train(self, what: str, claim: Claim, settings: Settings) -> Result:
        left = None if self.ends is None else (self.ends - time.monotonic()) / 60
        if left is not None and left <= 0:
            raise Stopped
        result = train(
            settings,
            self._place(claim),
            self.device,
            threads=self.threads,
            minutes=left,
            tell=self.tell,
            on_update=lambda done, total, score: self.progress(
                f"{what}: {settings.game} {settings.head} {claim.number}, score {score:.1f}", done, total
            ),
        )
        if not result.finished:
            raise Stopped
        return result

    def _place(self, claim: Claim) -> Path:
        return self.folder / "runs" / f"{claim.study.replace(' ', '-')}-{claim.number}"


def study_name(game: str, head: str) -> str:
    """The name of one table cell's study."""
    return f"rl {game} {head}"


def settings_of(config: dict[str, Any], game: str, head: str, steps: int) -> Settings:
    """What a trial's configuration means."""
    chosen = {name: config[name] for name in SPACE if name in config}
    return replace(preset("paper", game), head=head, steps=steps, seed=int(config["seed"]), **chosen)


def curve_of(result: Result) -> dict[str, list[float]]:
    """The mean score of the episodes that ended in each part of training, and the step at which the part ends."""
    parts: list[list[float]] = [[] for _ in range(CURVE_POINTS)]
    for episode in result.episodes:
        parts[min(CURVE_POINTS - 1, (episode.step - 1) * CURVE_POINTS // result.steps)].append(episode.score)
    held = [(i, part) for i, part in enumerate(parts) if part]
    return {
        "step": [(i + 1) * result.steps / CURVE_POINTS for i, _ in held],
        "score": [round(sum(part) / len(part), 3) for _, part in held],
    }


def final_of(store: Store, game: str, head: str) -> list[Finished]:
    """The final runs of one cell, in the order of their seeds."""
    known = study_name(game, head)
    found = store.study(known, create=False).finished(stage="final") if known in store.names() else []
    return sorted(found, key=lambda trial: (trial.config["rank"], trial.config["seed"]))


def _larger(before: Any, now: Any) -> Any:
    return max(before, now) if isinstance(now, int) else list(dict.fromkeys([*before, *now]))
