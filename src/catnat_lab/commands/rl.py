"""`catnat rl` and `catnat rl watch`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path

from catnat_lab.commands.parts import Bars, command_line, device_of
from catnat_lab.errors import UserError
from catnat_lab.provenance import provenance
from catnat_lab.rl import settings as rl_settings


@dataclass(frozen=True)
class Rl:
    """PPO with any head as its policy. Stop it whenever you like: the same command goes on.

    `catnat rl watch` shows a trained policy play.
    """

    game: str = "Breakout"
    """An Atari game, such as Breakout or Seaquest, or one of gymnasium's with numbered actions, such as CartPole-v1."""
    head: str | None = None
    """The policy's: softmax, sparsemax, catnat-sigmoid, catnat-natural (by default), -exact, -reflect, -revive ..."""
    preset: str = "quick"
    """smoke (seconds), quick (100,000 steps) or paper (8 million)."""
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
        with Bars() as step:
            result = train(
                settings,
                folder,
                device,
                threads=self.threads,
                minutes=self.minutes,
                on_update=lambda done, total, score: step(f"{settings.game}, score {score:.1f}", done, total),
            )
        facts = provenance(command_line(), device) | {"settings": settings.as_dict()}
        (folder / "provenance.json").write_text(json.dumps(facts, indent=2) + "\n")
        print(f"{settings.game} by {settings.head}, seed {settings.seed}: {result.steps:,} steps, ", end="")
        print(f"{len(result.episodes)} episodes, score {result.score:.1f} (mean of the last 100)")
        if not result.finished:
            print(f"stopped after {self.minutes:g} minutes; the same command goes on", file=sys.stderr)
        print(f"curves: {folder}")


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
        if played.pictures:
            path = self.gif or self.output / "play.gif"
            write_gif(played.pictures, path)
            print(f"picture: {path}")
