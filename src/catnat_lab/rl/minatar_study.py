"""The study on MinAtar: a rate for every head by seeds of its own, then many seeds at that rate."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from catnat_lab.errors import UserError
from catnat_lab.experiment import Done, Experiment, Finished, Job, Outcome, Place, missing
from catnat_lab.rl.minatar import Outcome as Scores
from catnat_lab.rl.minatar import Settings, State, program
from catnat_lab.rl.sweep import MINATAR_NOTE
from catnat_lab.stopping import noted_stops

NOTE, PROVENANCE = MINATAR_NOTE, "minatar provenance"
FIRST_SEARCH_SEED = 10_000  # the final seeds are 1, 2, ...
SAVED_EVERY = 60.0  # seconds


@dataclass(frozen=True)
class Plan:
    """All that decides a study's numbers."""

    games: tuple[str, ...] = ("Breakout", "Seaquest")
    heads: tuple[str, ...] = ("softmax", "catnat-natural")
    steps: int = 10_000_000
    rates: tuple[float, ...] = (0.0002, 0.0004, 0.0008, 0.0015, 0.003, 0.006, 0.012, 0.025)
    search_steps: int = 3_000_000
    search_seeds: int = 8
    seeds: int = 64
    envs: int = 64  # copies of the game a seed

    def __post_init__(self) -> None:
        """Name what is wrong, before anything is written."""
        for name in ("games", "heads", "rates"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                told = ", ".join(map(str, values)) or "none"
                raise UserError(f"{name} must hold at least one value, each once; got {told}")
        for name in ("steps", "search_steps", "search_seeds", "envs"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1; got {getattr(self, name)}")
        if not 2 <= self.seeds < FIRST_SEARCH_SEED:
            raise UserError(f"seeds must be at least 2 and below {FIRST_SEARCH_SEED}; got {self.seeds}")
        for rate in self.rates:
            if not 0 < rate < 1e3:
                raise UserError(f"rates must be positive and below 1000; got {rate}")
        for game in self.games:
            for head in self.heads:
                Settings(game, head, envs=self.envs)  # for its checks


def plan_of(name: str) -> Plan:
    """smoke, quick or paper."""
    if name == "paper":
        return Plan()
    small = Plan(("Breakout",), steps=500_000, rates=(0.00125, 0.005), search_steps=200_000, search_seeds=2, seeds=4)
    if name == "quick":
        return small
    if name == "smoke":
        return replace(small, steps=4_096, search_steps=1_024, search_seeds=1, seeds=2, envs=8)
    raise UserError(f"preset must be one of smoke, quick, paper; got {name!r}")


@dataclass
class MinAtar(Experiment):
    """All games and heads."""

    plan: Plan

    kind: ClassVar[str] = "catnat rl minatar"  # as published studies have it
    note: ClassVar[str] = NOTE

    def __post_init__(self) -> None:
        self.cells = {study_name(game, head): (game, head) for game in self.plan.games for head in self.plan.heads}

    @property
    def settings(self) -> dict[str, Any]:
        """The plan."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self.plan).items()}

    def left(self, done: Done) -> Sequence[Job]:
        """All rates of every cell, then all seeds at the best one: a job trains its seeds at once."""
        rates = missing(done, [Job(name, {"stage": "rates"}) for name in self.cells])
        searched = [name for name in self.cells if done.finished(name, stage="rates")]  # else it was given up
        return rates or missing(done, [Job(name, self._final(done, name)) for name in searched])

    def _final(self, done: Done, name: str) -> dict[str, Any]:
        return {"stage": "final", "rate": best_rate(done.finished(name, stage="rates")[0])}

    def train(self, jobs: Sequence[Job], place: Place) -> Iterator[tuple[Job, Outcome]]:
        """One after the other."""
        for job in jobs:
            game, head = self.cells[job.cell]
            if job.config["stage"] == "rates":
                yield job, self._try_rates(game, head, place)
            else:
                yield job, self._try_seeds(game, head, job.config["rate"], place)

    def _try_rates(self, game: str, head: str, place: Place) -> Outcome:
        plan = self.plan
        seeds = [FIRST_SEARCH_SEED + i for _ in plan.rates for i in range(plan.search_seeds)]
        rates = [rate for rate in plan.rates for _ in range(plan.search_seeds)]
        scores = self._play(Settings(game, head, plan.search_steps, plan.envs), seeds, rates, "rates", place).scores()
        by_rate = np.array(scores).reshape(len(plan.rates), -1)
        found = {f"{rate:g}": [round(float(s), 3) for s in row] for rate, row in zip(plan.rates, by_rate, strict=True)}
        best = max((m for m in by_rate.mean(1) if math.isfinite(m)), default=math.nan)
        return Outcome(-float(best), {"score": float(best)}, {"by rate": found})

    def _try_seeds(self, game: str, head: str, rate: float, place: Place) -> Outcome:
        seeds = list(range(1, self.plan.seeds + 1))
        settings = Settings(game, head, self.plan.steps, self.plan.envs)
        outcome = self._play(settings, seeds, [rate] * len(seeds), "final seeds", place)
        scores = outcome.scores()
        record = {
            "scores": [round(s, 4) for s in scores],
            "curves": np.round(outcome.curves(), 3).tolist(),
            "outside": [round(share, 5) for share in outcome.share_outside()],
        }
        return Outcome(-float(np.mean(scores)), {"score": float(np.mean(scores))}, record)

    def _play(self, settings: Settings, seeds: list[int], rates: list[float], what: str, place: Place) -> Scores:
        """All seeds at once, in parts; from the checkpoint, where there is one."""
        training = program(settings)
        saved = Checkpoint(place.folder, settings, seeds, rates)
        state = training.begin(jnp.array(seeds))
        done, state, outcome = saved.load(state)
        if done:
            place.tell(f"going on from step {done * settings.batch:,}")
        at, doing = time.monotonic(), f"{settings.game} {settings.head}, {what} ({len(seeds)} side by side)"
        with noted_stops() as stop:
            while done < settings.updates:
                state, told = training.update(state, jnp.array(rates), settings.updates)
                outcome.add(done, told)
                done += 1
                last = stop.asked  # as it is now: what is asked for later finds its checkpoint after the next update
                if last or (time.monotonic() - at > SAVED_EVERY and done < settings.updates):
                    saved.save(done, state, outcome)
                    at = time.monotonic()
                place.progress(doing, done * settings.batch, settings.updates * settings.batch)
                if last:
                    raise KeyboardInterrupt
        saved.remove()
        return outcome


class Checkpoint:
    """A stack of seeds in one file of safetensors, which is renamed into place when it is complete."""

    def __init__(self, folder: Path, settings: Settings, seeds: list[int], rates: list[float]) -> None:
        self.shape = len(seeds), settings.updates
        stage = "final" if seeds[0] < FIRST_SEARCH_SEED else "rates"
        self.path = folder / f"checkpoint-{settings.game}-{settings.head}-{stage}.safetensors"
        self.key = json.dumps([settings.as_dict(), seeds, rates, jax.default_backend()], sort_keys=True)

    def save(self, done: int, state: State, outcome: Scores) -> None:
        """Write the state after so many updates."""
        arrays = {f"{i}": np.ascontiguousarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(f".{os.getpid()}.partial")
        save_file(arrays | vars(outcome), partial, metadata={"key": self.key, "done": f"{done}"})
        partial.replace(self.path)

    def load(self, begun: State) -> tuple[int, State, Scores]:
        """Updates done, the state, and the scores so far; as begun where there is no checkpoint of these runs."""
        nothing = Scores.nothing(*self.shape)
        if not self.path.exists():
            return 0, begun, nothing
        leaves, shape = jax.tree.flatten(begun)
        try:
            with safe_open(self.path, "np") as file:
                about = file.metadata()
                if about is None or about.get("key") != self.key:  # of other runs, which were finished or given up
                    return 0, begun, nothing
                arrays = [jnp.asarray(file.get_tensor(f"{i}")) for i in range(len(leaves))]
                outcome = Scores(**{name: file.get_tensor(name) for name in vars(nothing)})
        except (SafetensorError, OSError) as problem:
            raise UserError(f"{self.path} is not a whole checkpoint ({problem}); delete it to begin again") from None
        return int(about["done"]), jax.tree.unflatten(shape, arrays), outcome

    def remove(self) -> None:
        """The runs are finished."""
        self.path.unlink(missing_ok=True)


def study_name(game: str, head: str) -> str:
    """The name of one table cell's study."""
    return f"minatar {game} {head}"


def best_rate(searched: Finished) -> float:
    """The rate with the best mean score over its seeds; one that diverged is the worst."""
    means = {float(rate): float(np.mean(scores)) for rate, scores in searched.record["by rate"].items()}
    finite = {rate: mean for rate, mean in means.items() if math.isfinite(mean)}
    if not finite:
        raise UserError(f"no rate has led to a finished episode: {sorted(means)}; give more --search-steps")

    return max(finite, key=finite.__getitem__)
