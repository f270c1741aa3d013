"""One run from its start, or from where it was stopped, to its end: checkpoints, curves, and what it came to."""

from __future__ import annotations

import csv
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from catnat_lab.devices import on_device, one_thread, tensor_cores
from catnat_lab.errors import UserError
from catnat_lab.rl import checkpoint
from catnat_lab.rl.catalogue import make_games
from catnat_lab.rl.ppo import Episode, Learner
from catnat_lab.rl.settings import Settings
from catnat_lab.stopping import Stop, noted_stops

SAVED_EVERY = 120.0  # seconds between checkpoints
LAST = 100  # episodes that the final score is the mean of, as is usual for Atari
EPISODES = "episodes.csv"
OnUpdate = Callable[[int, int, float], None]  # steps done, steps in all, the mean score of the last episodes


@dataclass(frozen=True)
class Result:
    """What a run has come to."""

    episodes: list[Episode]
    steps: int
    finished: bool
    diverged: bool = False  # there are no more numbers to learn with; what it did before counts for nothing

    @property
    def score(self) -> float:
        """The mean score of the last episodes; NaN before the first has ended, and of a run that diverged."""
        last = [episode.score for episode in self.episodes[-LAST:]]
        return sum(last) / len(last) if last and not self.diverged else math.nan


def train(
    settings: Settings,
    folder: Path,
    device: torch.device,
    *,
    threads: int = 0,
    minutes: float | None = None,
    on_update: OnUpdate | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Result:
    """Train until the end or for so many minutes; the same call goes on, exactly as if it had not been stopped.

    Ctrl-C ends it after the present update, with a checkpoint.
    """
    if minutes is not None and not minutes > 0:
        raise UserError(f"minutes must be positive; got {minutes}")
    started = time.monotonic()
    games = make_games(settings.game, settings.envs, threads)
    with only_one(folder), noted_stops() as stop, on_device(device), tensor_cores(), one_thread(device):
        learner = Learner(settings, games, device)
        try:
            if checkpoint.resume(folder, learner):
                tell(f"going on from step {learner.updates * settings.batch:,}")
            return _train(learner, folder, started, minutes, on_update, stop)
        finally:
            learner.close()


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Two processes would write one run's files."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        raise UserError(f"another process trains the run in {folder}; give another --output") from None


def _train(
    learner: Learner, folder: Path, started: float, minutes: float | None, on_update: OnUpdate | None, stop: Stop
) -> Result:
    settings, before = learner.settings, learner.updates
    done = before * settings.batch
    with Curves(folder, done) as curves:
        began = saved = time.monotonic()
        while learner.updates < settings.updates:
            finished, measured = learner.update()
            done = learner.updates * settings.batch
            now = time.monotonic()
            speed = (learner.updates - before) * settings.batch / (now - began)
            curves.add(done, finished, measured | {"steps a second": speed})
            if not math.isfinite(measured["value loss"] + measured["gradient norm"]):
                return curves.result(done, finished=True, diverged=True)
            asked = stop.asked  # as it is now: what is asked for later finds its checkpoint after the next update
            late = asked or (minutes is not None and now - started > 60 * minutes)
            if now - saved > SAVED_EVERY or late or learner.updates == settings.updates:
                curves.flush()  # first: what the checkpoint counts as done must stand there
                checkpoint.save(folder, learner)
                saved = now
            if on_update is not None:
                on_update(done, settings.updates * settings.batch, curves.result(done, finished=False).score)
            if asked:
                raise KeyboardInterrupt
            if late:
                break
        return curves.result(done, finished=learner.updates == settings.updates)


class Curves:
    """The finished episodes in `episodes.csv`, and all that was measured for TensorBoard, where that is installed."""

    def __init__(self, folder: Path, done: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / EPISODES
        self.episodes = [episode for episode in read_episodes(self.path) if episode.step <= done]
        partial = self.path.with_suffix(".partial")
        with partial.open("w", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(("step", "score", "length"))
            rows.writerows((episode.step, repr(episode.score), episode.length) for episode in self.episodes)
        partial.replace(self.path)
        self.file = self.path.open("a", newline="")
        self.board = _board(folder, done)

    def __enter__(self) -> Curves:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        if self.board is not None:
            self.board.close()

    def add(self, step: int, finished: list[Episode], measured: dict[str, float]) -> None:
        """What one update has given."""
        rows = csv.writer(self.file, lineterminator="\n")
        rows.writerows((episode.step, repr(episode.score), episode.length) for episode in finished)
        self.episodes += finished
        if self.board is None:
            return
        for name, value in measured.items():
            if math.isfinite(value):  # sparsemax has infinite divergences
                self.board.add_scalar(name, value, step)
        for episode in finished:
            self.board.add_scalar("score", episode.score, episode.step)
            self.board.add_scalar("episode length", episode.length, episode.step)

    def flush(self) -> None:
        """Write it to the disk."""
        self.file.flush()
        os.fsync(self.file.fileno())

    def result(self, steps: int, *, finished: bool, diverged: bool = False) -> Result:
        """So far."""
        return Result(self.episodes, steps, finished, diverged)


def read_episodes(path: Path) -> list[Episode]:
    """The whole lines of `episodes.csv`; none where there is no such file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if None not in row.values()]
    try:
        return [Episode(int(row["step"]), float(row["score"]), int(row["length"])) for row in rows]
    except (KeyError, ValueError) as problem:
        raise UserError(f"{path} is no list of episodes ({problem}); delete the folder to begin again") from None


def _board(folder: Path, done: int):  # type: ignore[no-untyped-def]
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1, write_to_disk=True)
