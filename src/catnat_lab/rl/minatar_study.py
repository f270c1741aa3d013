"""The study on MinAtar: a rate for every head by seeds of its own, then many seeds at that rate."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from catnat_lab.errors import UserError
from catnat_lab.rl.minatar import Outcome, Settings, State, program
from catnat_lab.rl.sweep import MINATAR_NOTE
from catnat_lab.stopping import noted_stops
from catnat_lab.store import Claim, Finished, Store, Study, work

NOTE, PROVENANCE = MINATAR_NOTE, "minatar provenance"
FIRST_SEARCH_SEED = 10_000  # the final seeds are 1, 2, ...
SAVED_EVERY = 60.0  # seconds
Told = tuple[Claim, float, dict[str, float], dict[str, object]]
Progress = Callable[[str, int, int], None]


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
class Sweep:
    """One study."""

    store: Store
    plan: Plan
    folder: Path  # of the checkpoint
    progress: Progress = lambda what, done, total: None
    tell: Callable[[str], None] = lambda text: None

    def __post_init__(self) -> None:
        now = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self.plan).items()}
        before = self.store.settle_note(NOTE, now)
        wrong = [f"{key} was {before.get(key)}, now {now[key]}" for key in now if before.get(key) != now[key]]
        if wrong:
            raise UserError(f"this study was begun with other settings: {'; '.join(wrong)}; give another --output")

    def run(self) -> None:
        """Everything that is not done yet; processes that are started with the same study share it cell by cell."""
        names = [(game, head) for game in self.plan.games for head in self.plan.heads]
        cells = {name: self.store.study(study_name(*name)) for name in names}
        for study in cells.values():
            study.plan([{"stage": "rates"}])
        self._work(cells)
        for study in cells.values():
            study.plan([{"stage": "final", "rate": best_rate(study.finished(stage="rates")[0])}])
        self._work(cells)

    def _work(self, cells: dict[tuple[str, str], Study]) -> None:
        places = {study.name: cell for cell, study in cells.items()}

        def trained(claims: list[Claim]) -> Iterator[Told]:
            for claim in claims:
                stage = self._rates if claim.config["stage"] == "rates" else self._final
                yield stage(claim, *places[claim.study])

        work(
            cells.values(), trained, batch=1, on_wait=lambda: self.tell("other processes train the last ones; waiting")
        )

    def _rates(self, claim: Claim, game: str, head: str) -> Told:
        plan = self.plan
        seeds = [FIRST_SEARCH_SEED + i for _ in plan.rates for i in range(plan.search_seeds)]
        rates = [rate for rate in plan.rates for _ in range(plan.search_seeds)]
        scores = self._train(Settings(game, head, plan.search_steps, plan.envs), seeds, rates, "rates").scores()
        by_rate = np.array(scores).reshape(len(plan.rates), -1)
        found = {f"{rate:g}": [round(float(s), 3) for s in row] for rate, row in zip(plan.rates, by_rate, strict=True)}
        best = max((m for m in by_rate.mean(1) if math.isfinite(m)), default=math.nan)
        return claim, -float(best), {"score": float(best)}, {"by rate": found}

    def _final(self, claim: Claim, game: str, head: str) -> Told:
        seeds = list(range(1, self.plan.seeds + 1))
        settings = Settings(game, head, self.plan.steps, self.plan.envs)
        outcome = self._train(settings, seeds, [claim.config["rate"]] * len(seeds), "final seeds")
        scores = outcome.scores()
        record = {
            "scores": [round(s, 4) for s in scores],
            "curves": np.round(outcome.curves(), 3).tolist(),
            "outside": [round(share, 5) for share in outcome.share_outside()],
        }
        return claim, -float(np.mean(scores)), {"score": float(np.mean(scores))}, record

    def _train(self, settings: Settings, seeds: list[int], rates: list[float], what: str) -> Outcome:
        """All seeds at once, in parts; from the checkpoint, where there is one."""
        training = program(settings)
        saved = Checkpoint(self.folder, settings, seeds, rates)
        state = training.begin(jnp.array(seeds))
        done, state, outcome = saved.load(state)
        if done:
            self.tell(f"going on from step {done * settings.batch:,}")
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
                self.progress(doing, done * settings.batch, settings.updates * settings.batch)
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

    def save(self, done: int, state: State, outcome: Outcome) -> None:
        """Write the state after so many updates."""
        arrays = {f"{i}": np.ascontiguousarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(f".{os.getpid()}.partial")
        save_file(arrays | vars(outcome), partial, metadata={"key": self.key, "done": f"{done}"})
        partial.replace(self.path)

    def load(self, begun: State) -> tuple[int, State, Outcome]:
        """Updates done, the state, and the scores so far; as begun where there is no checkpoint of these runs."""
        nothing = Outcome.nothing(*self.shape)
        if not self.path.exists():
            return 0, begun, nothing
        leaves, shape = jax.tree.flatten(begun)
        try:
            with safe_open(self.path, "np") as file:
                about = file.metadata()
                if about is None or about.get("key") != self.key:  # of other runs, which were finished or given up
                    return 0, begun, nothing
                arrays = [jnp.asarray(file.get_tensor(f"{i}")) for i in range(len(leaves))]
                outcome = Outcome(**{name: file.get_tensor(name) for name in vars(nothing)})
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
