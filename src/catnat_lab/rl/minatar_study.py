"""The study on MinAtar: a rate for every head by seeds of its own, then many seeds at that rate."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from catnat_lab import experiment
from catnat_lab.checkpoint import Checkpoint
from catnat_lab.errors import check, check_distinct, check_least, pick
from catnat_lab.experiment import Done, Finished, Job, Outcome, RunContext, TimeIsUp
from catnat_lab.rl.settings import MinAtarSettings as Settings
from catnat_lab.rl.sweep import GamesAndHeads
from catnat_lab.stopping import noted_stops

if TYPE_CHECKING:
    from catnat_lab.rl.minatar import Outcome as Scores

NOTE = "minatar settings"
FIRST_SEARCH_SEED = 10_000  # the final seeds are 1, 2, ...
SAVED_EVERY = 60.0  # seconds


@dataclass(frozen=True)
class Plan(experiment.Plan):
    games: tuple[str, ...] = ("Breakout", "Asterix", "Freeway", "SpaceInvaders", "Seaquest")  # the slowest last
    heads: tuple[str, ...] = ("softmax", "catnat-sigmoid", "catnat-paper", "catnat")
    steps: int = 10_000_000
    rates: tuple[float, ...] = (0.0008, 0.0015, 0.003, 0.006, 0.012)
    search_steps: int = 10_000_000  # as many as final: shorter runs may ask for rates too high
    search_seeds: int = 12
    seeds: int = 64
    envs: int = 64  # copies of the game a seed

    def __post_init__(self) -> None:
        check_distinct(self, "games", "heads", "rates")
        check_least(self, steps=1, search_steps=1, search_seeds=1, envs=1)
        told = f"be at least 2 and below {FIRST_SEARCH_SEED}"
        check("seeds", [self.seeds], lambda seeds: 2 <= seeds < FIRST_SEARCH_SEED, told)
        check("rates", self.rates, lambda rate: 0 < rate < 1e3, "be positive and below 1000")
        for game in self.games:
            for head in self.heads:
                Settings(game, head, envs=self.envs)  # for its checks


def plan_of(name: str) -> Plan:
    few = Plan(("Breakout",), ("softmax", "catnat"), rates=(0.00125, 0.005))
    quick = replace(few, steps=500_000, search_steps=200_000, search_seeds=2, seeds=4)
    smoke = replace(quick, steps=4_096, search_steps=1_024, search_seeds=1, seeds=2, envs=8)
    return pick(name, {"smoke": smoke, "quick": quick, "paper": Plan()})


@dataclass
class MinAtar(GamesAndHeads):
    """All games and heads. What trains is imported when it does: a report needs no JAX."""

    plan: Plan

    kind: ClassVar[str] = "catnat rl minatar"  # as published studies have it
    note: ClassVar[str] = NOTE
    unsaid: ClassVar[dict[str, Any]] = {"library": "pgx"}  # whose games older studies played

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
        for job in jobs:
            game, head = self.cells[job.cell]
            if job.config["stage"] == "rates":
                yield job, self._try_rates(game, head, context)
            else:
                yield job, self._try_seeds(game, head, job.config["rate"], context)

    def _try_rates(self, game: str, head: str, context: RunContext) -> Outcome:
        plan = self.plan
        seeds = [FIRST_SEARCH_SEED + i for _ in plan.rates for i in range(plan.search_seeds)]
        rates = [rate for rate in plan.rates for _ in range(plan.search_seeds)]
        scores = self._play(Settings(game, head, plan.search_steps, plan.envs), seeds, rates, "rates", context).scores()
        by_rate = np.array(scores).reshape(len(plan.rates), -1)
        found = {f"{rate:g}": [round(float(s), 3) for s in row] for rate, row in zip(plan.rates, by_rate, strict=True)}
        best = max((m for m in by_rate.mean(1) if math.isfinite(m)), default=math.nan)
        if math.isnan(best):
            context.tell(f"{game} {head}: no rate has led to a finished episode; it needs more --search-steps")
        return Outcome(-float(best), {"score": float(best)}, {"by rate": found})

    def _try_seeds(self, game: str, head: str, rate: float, context: RunContext) -> Outcome:
        seeds = list(range(1, self.plan.seeds + 1))
        settings = Settings(game, head, self.plan.steps, self.plan.envs)
        outcome = self._play(settings, seeds, [rate] * len(seeds), "final seeds", context)
        scores = outcome.scores()
        record = {
            "scores": [round(s, 4) for s in scores],
            "curves": np.round(outcome.curves(), 3).tolist(),
            "outside": [round(share, 5) for share in outcome.share_outside()],
        }
        return Outcome(-float(np.mean(scores)), {"score": float(np.mean(scores))}, record)

    def _play(self, settings: Settings, seeds: list[int], rates: list[float], what: str, context: RunContext) -> Scores:
        """All seeds at once, in parts; from the checkpoint, where there is one."""
        import jax
        import jax.numpy as jnp

        from catnat_lab.rl.minatar import Outcome, program

        jax.config.update("jax_compilation_cache_dir", str(context.folder / "compiled"))  # for the next start
        training = program(settings)
        begun = training.begin(jnp.array(seeds))
        scores, shape = Outcome.nothing(len(seeds), settings.updates), jax.tree.structure(begun)
        run = {"settings": settings.as_dict(), "seeds": seeds, "rates": rates, "device": jax.default_backend()}
        saved, done, state = Checkpoint.of(context.folder / "checkpoints", run), 0, begun
        before = saved.load(tensors_of(jax.tree.leaves(begun), scores))
        if before is not None:
            arrays = {name: value.numpy() for name, value in before.tensors.items()}
            scores = Outcome(**{name: arrays.pop(name) for name in vars(scores)})
            done, state = before.progress["done"], jax.tree.unflatten(shape, [jnp.array(x) for x in arrays.values()])
            context.tell(f"going on from step {done * settings.batch:,}")
        at, doing = time.monotonic(), f"{settings.game} {settings.head}, {what} ({len(seeds)} side by side)"
        with noted_stops() as stop:
            while done < settings.updates:
                state, told = training.update(state, jnp.array(rates), settings.updates)
                scores.add(done, told)
                done += 1
                late = context.is_late
                last = late or stop.asked  # as it is now: what is asked for later is seen after the next update
                if last or (time.monotonic() - at > SAVED_EVERY and done < settings.updates):
                    saved.save({"done": done}, tensors_of(jax.tree.leaves(state), scores))
                    at = time.monotonic()
                context.progress(doing, done * settings.batch, settings.updates * settings.batch)
                if last:
                    raise TimeIsUp if late else KeyboardInterrupt
        saved.path.unlink(missing_ok=True)
        return scores


def tensors_of(leaves: list[Any], scores: Scores) -> dict[str, torch.Tensor]:
    """The state and the scores so far, by name; the leaves of the state in their order."""
    arrays = {f"{i:04}": leaf for i, leaf in enumerate(leaves)} | vars(scores)
    return {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}


def best_rate(searched: Finished) -> float | None:
    """The rate with the best mean score over its seeds; one that diverged is the worst."""
    means = {float(rate): float(np.mean(scores)) for rate, scores in searched.record["by rate"].items()}
    finite = {rate: mean for rate, mean in means.items() if math.isfinite(mean)}
    return max(finite, key=finite.__getitem__, default=None)
