"""`catnat rl`, and what belongs to it: `catnat rl sweep`, `minatar` and `watch`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from catnat_lab.commands.parts import DATABASE, Bars, command_line, continued, device_of, run_study, say, show
from catnat_lab.errors import UserError
from catnat_lab.executors import begin
from catnat_lab.experiment import with_tuples
from catnat_lab.provenance import provenance
from catnat_lab.report import rl as rl_report
from catnat_lab.report import write
from catnat_lab.rl import settings as rl_settings
from catnat_lab.studies import Study


@dataclass(frozen=True)
class Rl:
    """PPO with any head as its policy. Stop it whenever you like: the same command goes on.

    `catnat rl sweep` searches hyperparameters, `catnat rl watch` shows a trained policy play, and `catnat rl minatar`
    trains many seeds at once on small games.
    """

    game: str = "Breakout"
    """An Atari game, such as Breakout or Seaquest, or one of gymnasium's with numbered actions, such as CartPole-v1."""
    head: str | None = None
    """The policy's: softmax, sparsemax, catnat, catnat-sigmoid, catnat-natural (by default), -exact, -reflect, ..."""
    preset: str = "quick"
    """smoke (seconds), quick (100,000 steps) or paper (8 million; of gymnasium's games 100,000)."""
    seed: int | None = None
    """Of the weights, the games and the draws; 1 by default."""
    output: Path | None = None
    """Folder of the checkpoint and the curves; by default runs/rl/GAME-HEAD-SEED."""
    device: str = "auto"
    """cpu, cuda, cuda:1 ...; auto takes a GPU where there is one."""
    threads: int = 0
    """Of the Atari games; 0: one a core."""
    minutes: float | None = None
    """Stop after so many, with a checkpoint."""
    steps: int | None = None
    """Of all copies of the game together; by default the preset's, as all that follows."""
    envs: int | None = None
    """Copies of the game."""
    rollout: int | None = None
    """Steps of every copy between two updates."""
    epochs: int | None = None
    """Passes over a rollout."""
    minibatches: int | None = None
    """Parts of a rollout, for one step of Adam each."""
    rate: float | None = None
    """Learning rate."""
    clip: float | None = None
    """Of the probability ratio."""
    entropy: float | None = None
    """Weight of the entropy."""
    gradient: float | None = None
    """Largest norm of a gradient."""

    def settings(self) -> rl_settings.Settings:
        """The preset with what was given instead of it."""
        names = [field.name for field in fields(rl_settings.Settings) if hasattr(self, field.name)]
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return replace(rl_settings.preset(self.preset, self.game), **given)

    def run(self) -> None:
        """Train to the end, and say what it came to."""
        from catnat_lab.rl.train import train

        if self.threads < 0:
            raise UserError(f"threads must not be negative; got {self.threads}")
        settings, device = self.settings(), device_of(self.device)
        folder = self.output or Path(f"runs/rl/{settings.game.replace('/', '-')}-{settings.head}-{settings.seed}")
        facts = provenance(command_line(), device) | {"settings": settings.as_dict()}
        note = cache(lambda: note_run(folder, facts))  # once
        with Bars() as step:

            def on_update(done: int, total: int, score: float) -> None:
                note()  # not before: a folder of another run is refused and stays as it is
                step(f"{settings.game}, score {score:.1f}", done, total)

            result = train(
                settings, folder, device, threads=self.threads, minutes=self.minutes, on_update=on_update, tell=say
            )
        print(f"{settings.game} by {settings.head}, seed {settings.seed}: {result.steps:,} steps, ", end="")
        ended = f"score {result.score:.1f} (mean of the last 100)" if result.episodes else "none has ended"
        print(f"{len(result.episodes)} episodes, {ended}")
        if result.diverged:
            note()
            say("it has diverged: its losses are no numbers any more; try a lower --rate")
        elif not result.finished:
            print(f"stopped after {self.minutes:g} minutes; the same command goes on", file=sys.stderr)
        print(f"curves: {folder}")


@dataclass(frozen=True)
class RlSweep:
    """Search hyperparameters by TPE, then train the best over many seeds: the paper's table of reinforcement learning.

    Stop it whenever you like: the same command goes on.
    """

    preset: str = "quick"
    """smoke (seconds), quick (CartPole with default settings, no search, minutes) or paper (both games, 160 trials,
    then 10 x 10 runs)."""
    output: Path = Path("runs/rl-sweep")
    """Folder of the study's database and its runs."""
    storage: str | None = None
    """Database URL of the study; by default a SQLite file in the output folder."""
    device: str = "auto"
    """cpu, cuda, cuda:1 ...; auto takes a GPU where there is one."""
    on: str = "here"
    """Where runs are trained: here, processes:N, or on Ray: ray (of this machine) or ray:ADDRESS."""
    job_gpus: float = 1.0
    """What a run on Ray takes of a GPU, where it trains on one; 0.25 lets four share it."""
    threads: int = 0
    """Of the Atari games of one process; 0: one a core."""
    minutes: float | None = None
    """Stop after so many, with a checkpoint."""
    games: tuple[str, ...] | None = None
    """Atari games or gymnasium's; by default the preset's, as all that follows."""
    heads: tuple[str, ...] | None = None
    """The policies'."""
    steps: int | None = None
    """Of every run."""
    trials: int | None = None
    """Of the search, for every game and head; 0: no search, and the default settings are trained."""
    best: int | None = None
    """Configurations of the search that are trained over the seeds."""
    seeds: int | None = None
    """Final runs of each."""

    def run(self) -> None:
        """Train what is not trained yet, then say what there is."""
        from catnat_lab.rl import sweep

        if self.minutes is not None and not self.minutes > 0:
            raise UserError(f"minutes must be positive; got {self.minutes}")
        names = [field.name for field in fields(sweep.Plan)]
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        plan, device = replace(sweep.plan_of(self.preset), **given), device_of(self.device)
        with Study(self.storage or self.output / DATABASE, conduct=True, tell=say) as study:
            both = begin(sweep.PolicySweep(plan), study)  # they may be more than is asked for now
            experiment = sweep.PolicySweep(sweep.Plan(**with_tuples(both)), self.threads)
            note, on, minutes = sweep.PROVENANCE, (self.on, self.job_gpus), self.minutes
            run_study(experiment, study, self.output, device, batch=1, note=note, on=on, minutes=minutes)
            results = rl_report.load(study)
        show(rl_report.write_report, [rl_report.table_of(results)], results, self.output)


@dataclass(frozen=True)
class RlMinatar:
    """MinAtar in JAX: many seeds at once, for power that Atari's few seeds cannot have. It needs the extra minatar.

    Stop it whenever you like: the same command goes on.
    """

    preset: str = "quick"
    """smoke (seconds), quick (minutes on two cores) or paper (both games, 64 seeds of 10 million steps, on a GPU)."""
    output: Path = Path("runs/minatar")
    """Folder of the study's database, its checkpoint and its report."""
    storage: str | None = None
    """Database URL of the study; by default a SQLite file in the output folder."""
    games: tuple[str, ...] | None = None
    """Of Breakout and Seaquest; by default the preset's, as all that follows."""
    heads: tuple[str, ...] | None = None
    """The policies': softmax and the catnats."""
    steps: int | None = None
    """Of every final run."""
    rates: tuple[float, ...] | None = None
    """Learning rates that are tried."""
    search_steps: int | None = None
    """Of every run of the search."""
    search_seeds: int | None = None
    """Of every rate; they are none of the final ones."""
    seeds: int | None = None
    """Final runs of every game and head."""
    envs: int | None = None
    """Copies of the game a run."""

    def run(self) -> None:
        """Train what is not trained yet, then report."""
        try:
            import jax

            from catnat_lab.report import minatar as minatar_report
            from catnat_lab.rl import minatar_study
        except ImportError as missing:
            raise UserError(f'this needs the extra minatar, pip install "catnat[minatar]" ({missing})') from None
        names = [field.name for field in fields(minatar_study.Plan)]
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        plan = replace(minatar_study.plan_of(self.preset), **given)
        with Study(self.storage or self.output / DATABASE, conduct=True, tell=say) as study:
            jax.config.update("jax_compilation_cache_dir", str(self.output / "compiled"))  # for the next start
            experiment = minatar_study.MinAtar(plan)
            begin(experiment, study)
            facts = {"jax": jax.__version__, "jax on": str(jax.devices()[0])}
            note = minatar_study.PROVENANCE
            run_study(experiment, study, self.output, torch.device("cpu"), batch=1, note=note, facts=facts)
            results = minatar_report.load(study)
        show(minatar_report.write_report, [minatar_report.table_of(results)], results, self.output)


@dataclass(frozen=True)
class RlWatch:
    """Show a trained policy play one game: a GIF for Atari, and its score."""

    output: Path
    """Folder of the run."""
    gif: Path | None = None
    """Where to write the picture; by default play.gif in that folder."""
    seed: int = 12_345
    """Of the game and the draws."""
    greedy: bool = False
    """Take the likeliest action in place of a drawn one."""
    steps: int = 27_000
    """Stop after so many; a game of Atari has at most 27,000."""

    def run(self) -> None:
        """Play, and write the picture."""
        from catnat_lab.rl.watch import play, write_gif

        played = play(self.output, seed=self.seed, greedy=self.greedy, steps=self.steps)
        print(f"score {played.score:g} after {played.length} steps")
        if not played.pictures:
            print("no picture: only Atari's games have a screen")
        else:
            path = self.gif or self.output / "play.gif"
            write_gif(played.pictures, path)
            print(f"picture: {path}")


def note_run(folder: Path, facts: dict[str, Any]) -> None:
    """Write where a run comes from; of one that goes on, where it was begun and what is different now."""
    path = folder / "provenance.json"
    known = json.loads(path.read_text()) if path.exists() else facts
    write(path, json.dumps(continued(known, facts), indent=2) + "\n")
