"""The studies: find every head's settings on seeds of their own, then train the best over many seeds.

`PolicySweep` searches by TPE, one run a job, each with a checkpoint of its own. `MinAtar` tries rates, all seeds of a
head side by side in one job. A study that was stopped goes on within a job.
"""

import math
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution

from catnat_lab import experiment, search
from catnat_lab.checkpoint import todays_names
from catnat_lab.errors import check, check_distinct, check_least, pick
from catnat_lab.experiment import Done, Experiment, Finished, Job, Outcome, RunContext, TimeIsUp
from catnat_lab.heads import parameterization_of, parts_of
from catnat_lab.rl.games import check_game, make_games
from catnat_lab.rl.ppo import PAPER_STEPS, Result, Settings, preset, train

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
    "max_grad_norm": FloatDistribution(0.1, 10.0, step=0.1),
}
FIRST_SEARCH_SEED = 10_000  # of MinAtar's search; its final seeds are 1, 2, ...


class GamesAndHeads(Experiment):
    """A study with a cell for every game and head of its plan."""

    @property
    def cells(self) -> dict[str, tuple[str, str]]:
        kind = self.note.removesuffix(" settings")
        return {f"{kind} {game} {head}": (game, head) for game in self.plan.games for head in self.plan.heads}


# -- the paper's sweep -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SweepPlan(experiment.Plan):
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


def sweep_plan(name: str) -> SweepPlan:
    smoke = SweepPlan(games=("CartPole-v1",), steps=2_000, trials=2, best=1, seeds=2)
    quick = SweepPlan(games=("CartPole-v1",), steps=50_000, trials=0, seeds=3)  # the defaults, to see them learn
    return pick(name, {"smoke": smoke, "quick": quick, "paper": SweepPlan()})


class Todays:
    """What a study has finished, by today's names of settings, whenever it was begun."""

    def __init__(self, done: Done) -> None:
        self.done, self.given_up = done, done.given_up

    def finished(self, cell: str, **match: Any) -> list[Finished]:
        return [replace(trial, config=todays_names(trial.config)) for trial in self.done.finished(cell, **match)]


@dataclass
class PolicySweep(GamesAndHeads):
    plan: SweepPlan
    threads: int = 0

    kind: ClassVar[str] = "catnat rl sweep"  # as published studies have it
    note: ClassVar[str] = "rl settings"
    growing: ClassVar[tuple[str, ...]] = ("games", "heads", "seeds")  # more trials of the search would choose others

    def left(self, done: Done) -> list[Job]:
        return super().left(Todays(done))

    def stages(self, done: Done) -> Iterator[list[Job]]:
        """The next trial of every cell's search; when all searches are done, the final seeds."""
        fixed, seeds = {"stage": "tpe", "seed": search.search_seeds(1)[0]}, range(1, self.plan.seeds + 1)
        tried = {name: done.finished(name, stage="tpe") for name in self.cells}
        searching = {name: trials for name, trials in tried.items() if len(trials) < self.plan.trials}
        yield [search.proposed(name, SPACE, fixed, trials) for name, trials in searching.items()]
        yield [
            Job(name, {"stage": "final", "rank": rank, "seed": seed, **chosen})
            for name in self.cells
            for rank, chosen in enumerate(self._chosen(tried[name]))
            for seed in seeds
        ]

    def _chosen(self, tried: list[Finished]) -> list[dict[str, Any]]:
        """The best configurations of the search; without one, the defaults."""
        best = sorted(tried, key=lambda trial: trial.value)[: self.plan.best]
        return [{name: trial.config[name] for name in SPACE} for trial in best] if self.plan.trials else [{}]

    def train(self, jobs: Sequence[Job], context: RunContext) -> Iterator[tuple[Job, Outcome]]:
        for job in jobs:
            if context.is_late:
                raise TimeIsUp
            own = replace(context, folder=context.folder / "runs" / run_name(job))
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


def settings_of(config: Mapping[str, Any], game: str, head: str, steps: int) -> Settings:
    chosen = {name: config[name] for name in SPACE if name in config}
    return replace(preset("paper", game), head=head, steps=steps, seed=int(config["seed"]), **chosen)


def curve_of(result: Result) -> dict[str, list[float]]:
    """The mean score of the episodes that ended in each part of training, and the step at which the part ends."""
    parts: dict[int, list[float]] = {}
    for episode in result.episodes:
        parts.setdefault((episode.step - 1) * CURVE_POINTS // result.steps, []).append(episode.score)
    ends = [(part + 1) * result.steps / CURVE_POINTS for part in parts]
    return {"step": ends, "score": [round(sum(some) / len(some), 3) for some in parts.values()]}


# -- MinAtar ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MinAtarPlan(experiment.Plan):
    games: tuple[str, ...] = ("Breakout", "Asterix", "Freeway", "SpaceInvaders", "Seaquest")  # the slowest last
    heads: tuple[str, ...] = ("softmax", "catnat-sigmoid", "catnat-paper", "catnat")
    steps: int = 10_000_000
    rates: tuple[float, ...] = (0.0008, 0.0015, 0.003, 0.006, 0.012)
    search_steps: int = 10_000_000  # as many as final: shorter runs may ask for rates too high
    search_seeds: int = 12
    seeds: int = 64
    envs: int = 64  # copies of the game a seed

    def __post_init__(self) -> None:
        from catnat_lab.rl.minatar import Settings  # which needs the extra; a report does without it

        check_distinct(self, "games", "heads", "rates")
        check_least(self, steps=1, search_steps=1, search_seeds=1, envs=1)
        told = f"be at least 2 and below {FIRST_SEARCH_SEED}"
        check("seeds", [self.seeds], lambda seeds: 2 <= seeds < FIRST_SEARCH_SEED, told)
        check("rates", self.rates, lambda rate: 0 < rate < 1e3, "be positive and below 1000")
        for game in self.games:
            for head in self.heads:
                Settings(game, head, envs=self.envs)  # for its checks


def minatar_plan(name: str) -> MinAtarPlan:
    few = MinAtarPlan(("Breakout",), ("softmax", "catnat"), rates=(0.00125, 0.005))
    quick = replace(few, steps=500_000, search_steps=200_000, search_seeds=2, seeds=4)
    smoke = replace(quick, steps=4_096, search_steps=1_024, search_seeds=1, seeds=2, envs=8)
    return pick(name, {"smoke": smoke, "quick": quick, "paper": MinAtarPlan()})


@dataclass
class MinAtar(GamesAndHeads):
    plan: MinAtarPlan

    kind: ClassVar[str] = "catnat rl minatar"  # as published studies have it
    note: ClassVar[str] = "minatar settings"

    @property
    def settings(self) -> dict[str, Any]:
        """The plan, and whose games they are: no study mixes two."""
        return {**super().settings, "library": "gymnax"}

    def stages(self, done: Done) -> Iterator[list[Job]]:
        """Game by game, so that a study that is stopped has whole ones: all rates, then all seeds at the best one.

        A single rate is not searched for.
        """
        for game in self.plan.games:
            names = [name for name, (played, _) in self.cells.items() if played == game]
            yield [Job(name, {"stage": "rates"}) for name in names if len(self.plan.rates) > 1]
            yield [job for name in names for job in self._final(done, name)]

    def _final(self, done: Done, name: str) -> list[Job]:
        """At the only rate, or the best; at none where the search was given up or no rate led to a finished episode."""
        found: Sequence[float | None] = self.plan.rates
        if len(found) > 1:
            found = [best_rate(searched) for searched in done.finished(name, stage="rates")]
        return [Job(name, {"stage": "final", "rate": rate}) for rate in found if rate is not None]

    def train(self, jobs: Sequence[Job], context: RunContext) -> Iterator[tuple[Job, Outcome]]:
        from catnat_lab.rl import minatar

        plan = self.plan
        for job in jobs:
            game, head = self.cells[job.cell]
            if job.config["stage"] == "rates":
                settings = minatar.Settings(game, head, plan.search_steps, plan.envs)
                seeds = [FIRST_SEARCH_SEED + i for _ in plan.rates for i in range(plan.search_seeds)]
                tried = [rate for rate in plan.rates for _ in range(plan.search_seeds)]
                scores = minatar.train(settings, seeds, tried, context, "rates").scores()
                rows = np.array(scores).reshape(len(plan.rates), -1)
                record: dict[str, Any] = {
                    "by rate": {f"{r:g}": np.round(row, 3).tolist() for r, row in zip(plan.rates, rows, strict=True)}
                }
                score = max((float(mean) for mean in rows.mean(1) if math.isfinite(mean)), default=math.nan)
                if math.isnan(score):
                    context.tell(f"{game} {head}: no rate has led to a finished episode; it needs more --search-steps")
            else:
                settings, seeds = minatar.Settings(game, head, plan.steps, plan.envs), list(range(1, plan.seeds + 1))
                found = minatar.train(settings, seeds, [job.config["rate"]] * len(seeds), context, "final seeds")
                score, record = float(np.mean(found.scores())), found.record()
            yield job, Outcome(-score, {"score": score}, record)


def best_rate(searched: Finished) -> float | None:
    """The rate with the best mean score over its seeds; one that diverged is the worst."""
    means = {float(rate): float(np.mean(scores)) for rate, scores in searched.record["by rate"].items()}
    finite = {rate: mean for rate, mean in means.items() if math.isfinite(mean)}
    return max(finite, key=finite.__getitem__, default=None)
