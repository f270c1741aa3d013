"""The study: search every head's hyperparameters by TPE, then train its best ones over many seeds.

Every trial is a run of its own, with a checkpoint of its own, so a study that was stopped goes on within a trial.
"""

import shutil
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution

from catnat_lab import experiment, search
from catnat_lab.errors import check_distinct, check_least, pick
from catnat_lab.experiment import Done, Experiment, Job, Outcome, Place, TimeIsUp
from catnat_lab.heads import parameterization_of, parts_of
from catnat_lab.rl.games import check_game, make_games
from catnat_lab.rl.settings import PAPER_STEPS, Settings, preset
from catnat_lab.rl.train import Result, train

NOTE = "rl settings"
CURVE_POINTS = 100
PAPER_HEADS = ("softmax", "catnat-paper")
# the paper's ranges
SPACE: dict[str, BaseDistribution] = {
    "rate": FloatDistribution(5e-5, 1e-2, log=True),
    "rollout": IntDistribution(32, 512, step=32),
    "epochs": IntDistribution(1, 15, step=2),
    "clip": FloatDistribution(0.01, 0.9),
    "entropy": FloatDistribution(0.0, 1.0),
    "envs": IntDistribution(8, 16, step=2),
    "minibatches": IntDistribution(2, 14, step=4),
    "gradient": FloatDistribution(0.1, 10.0, step=0.1),
}


@dataclass(frozen=True)
class Plan(experiment.Plan):
    games: tuple[str, ...] = ("Breakout", "Seaquest")
    heads: tuple[str, ...] = PAPER_HEADS
    steps: int = PAPER_STEPS
    trials: int = 160  # of the search, for every game and head; 0: the defaults are trained
    best: int = 10  # of them that are trained again
    seeds: int = 10

    def __post_init__(self) -> None:
        check_distinct(self, "games", "heads")
        check_least(self, steps=1, trials=0, best=1, seeds=1)
        for game in self.games:
            check_game(game)
            for head in self.heads:
                replace(preset("paper", game), head=head)  # for its checks
                if parts_of(head)[1]:
                    parameterization_of(head, make_games(game, 1).actions)


def plan_of(name: str) -> Plan:
    smoke = Plan(games=("CartPole-v1",), steps=2_000, trials=2, best=1, seeds=2)
    quick = Plan(games=("CartPole-v1",), steps=50_000, trials=0, seeds=3)  # the defaults, to see them learn
    return pick(name, {"smoke": smoke, "quick": quick, "paper": Plan()})


class GamesAndHeads(Experiment):
    """A study with a cell for every game and head of its plan."""

    @property
    def cells(self) -> dict[str, tuple[str, str]]:
        kind = self.note.removesuffix(" settings")
        return {f"{kind} {game} {head}": (game, head) for game in self.plan.games for head in self.plan.heads}


@dataclass
class PolicySweep(GamesAndHeads):
    plan: Plan
    threads: int = 0

    kind: ClassVar[str] = "catnat rl sweep"  # as published studies have it
    note: ClassVar[str] = NOTE
    growing: ClassVar[tuple[str, ...]] = ("games", "heads", "seeds")  # more trials of the search would choose others

    def stages(self, done: Done) -> Iterator[list[Job]]:
        """The next trial of every cell's search; when all searches are done, the final seeds."""
        fixed, seeds = {"stage": "tpe", "seed": search.search_seeds(1)[0]}, range(1, self.plan.seeds + 1)
        tried = {name: done.finished(name, stage="tpe") for name in self.cells}
        searching = {name: trials for name, trials in tried.items() if len(trials) < self.plan.trials}
        yield [search.proposed(name, SPACE, fixed, trials) for name, trials in searching.items()]
        yield [
            Job(name, {"stage": "final", "rank": rank, "seed": seed, **chosen})
            for name in self.cells
            for rank, chosen in enumerate(self._chosen(done, name))
            for seed in seeds
        ]

    def _chosen(self, done: Done, name: str) -> list[dict[str, Any]]:
        """The best configurations of the search; without one, the defaults."""
        if not self.plan.trials:
            return [{}]
        tried = sorted(done.finished(name, stage="tpe"), key=lambda trial: trial.value)
        return [{name: trial.config[name] for name in SPACE} for trial in tried[: self.plan.best]]

    def train(self, jobs: Sequence[Job], place: Place) -> Iterator[tuple[Job, Outcome]]:
        for job in jobs:
            if place.is_late:
                raise TimeIsUp
            own = replace(place, folder=place.folder / "runs" / run_name(job))
            settings = settings_of(job.config, *self.cells[job.cell], self.plan.steps)
            result = train(settings, own, self.threads, f"{job.config['stage']}: {settings.game} {settings.head}")
            if not result.finished:
                raise TimeIsUp
            metrics = {"score": result.score, "episodes": float(len(result.episodes))}
            yield job, Outcome(-result.score, metrics, {"curve": curve_of(result)})
            if job.config["stage"] != "final" or job.config["rank"] > 0 or job.config["seed"] > 1:
                shutil.rmtree(own.folder, ignore_errors=True)  # one of each is kept, to be watched


def run_name(job: Job) -> str:
    kind = job.config["stage"] if job.config["stage"] == "tpe" else f"{job.config['rank']}-{job.config['seed']}"
    return f"{job.cell.replace(' ', '-').replace('/', '-')}-{kind}-{zlib.crc32(job.key.encode()):08x}"


def settings_of(config: dict[str, Any], game: str, head: str, steps: int) -> Settings:
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
