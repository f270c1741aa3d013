"""One run from its start, or from where it was stopped, to its end: checkpoints, curves, and what it came to."""

import csv
import math
import time
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from catnat_lab.checkpoint import Checkpoint, Saved, read
from catnat_lab.devices import on_device, one_thread, tensor_cores
from catnat_lab.errors import UserError
from catnat_lab.experiment import RunContext
from catnat_lab.files import whole_file
from catnat_lab.rl.games import make_games
from catnat_lab.rl.ppo import Episode, Learner
from catnat_lab.rl.settings import Settings
from catnat_lab.stopping import noted_stops

SAVED_EVERY = 120.0  # seconds between checkpoints
LAST = 100  # episodes that the final score is the mean of, as is usual for Atari
CHECKPOINT, EPISODES = "checkpoint.safetensors", "episodes.csv"


@dataclass(frozen=True)
class Result:
    episodes: list[Episode]
    steps: int
    finished: bool
    diverged: bool = False  # there are no more numbers to learn with; what it did before counts for nothing

    @property
    def score(self) -> float:
        """The mean score of the last episodes; NaN before the first has ended, and of a run that diverged."""
        last = [episode.score for episode in self.episodes[-LAST:]]
        return sum(last) / len(last) if last and not self.diverged else math.nan


def train(settings: Settings, context: RunContext, threads: int = 0, what: str | None = None) -> Result:
    """Train until the end or until time is up; the same call goes on, exactly as if it had not been stopped.

    Ctrl-C ends it after the present update, with a checkpoint.
    """
    folder, device, what = context.folder, torch.device(context.device), what or settings.game
    games = make_games(settings.game, settings.envs, threads)
    kept = Checkpoint(folder / CHECKPOINT, {**settings.as_dict(), "device": device.type})
    with only_one(folder), noted_stops() as stop, on_device(device), tensor_cores(), one_thread(device):
        learner = Learner(settings, games, device)
        saved = kept.load(learner.tensors())
        if saved is not None:
            learner.resume(saved.tensors, saved.progress)
            context.tell(f"going on from step {learner.steps:,}")
        curves = Curves(folder, learner.steps)
        result = Result(curves.episodes, learner.steps, learner.updates == settings.updates)
        last, asked, stops = time.monotonic(), False, result.finished
        while not stops:
            begun = time.monotonic()
            finished, measured = learner.update()
            now = time.monotonic()
            curves.add(learner.steps, finished, {**measured, "steps a second": settings.batch / (now - begun)})
            diverged = not math.isfinite(measured["value loss"] + measured["gradient norm"])
            asked = stop.asked  # as it is now: what is asked for later finds its checkpoint after the next update
            ended = diverged or learner.updates == settings.updates
            result = Result(curves.episodes, learner.steps, ended, diverged)
            stops = asked or ended or context.is_late
            if stops or now - last > SAVED_EVERY:
                curves.save()  # first: what the checkpoint counts as done must stand there
                if not diverged:
                    kept.save(learner.progress(), learner.tensors())
                last = now
            context.progress(f"{what}, score {result.score:.1f}", learner.steps, settings.updates * settings.batch)
        curves.board.close()
        if asked:
            raise KeyboardInterrupt
        return result


def only_one(folder: Path) -> AbstractContextManager[object]:
    """Two processes would write one run's files."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return FileLock(folder / ".lock", timeout=0).acquire()
    except Timeout:
        raise UserError(f"another process trains the run in {folder}; give another --output") from None


class Curves:
    """The finished episodes in `episodes.csv`, and all that was measured for TensorBoard."""

    def __init__(self, folder: Path, done: int) -> None:
        from tensorboardX import SummaryWriter  # a report does without it

        self.path = folder / EPISODES
        self.episodes = read_episodes(self.path, done)
        self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1, write_to_disk=True)

    def add(self, step: int, finished: list[Episode], measured: dict[str, float]) -> None:
        self.episodes += finished
        for name, value in measured.items():
            if math.isfinite(value):  # sparsemax has infinite divergences
                self.board.add_scalar(name, value, step)
        for episode in finished:
            self.board.add_scalar("score", episode.score, episode.step)
            self.board.add_scalar("episode length", episode.length, episode.step)

    def save(self) -> None:
        with whole_file(self.path) as partial, partial.open("w", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(("step", "score", "length"))
            rows.writerows(map(astuple, self.episodes))


def result_in(folder: Path) -> tuple[Settings, Result]:
    saved = saved_in(folder)
    settings = Settings(**{name: value for name, value in saved.run.items() if name != "device"})
    steps = saved.progress["updates"] * settings.batch
    return settings, Result(read_episodes(folder / EPISODES, steps), steps, steps >= settings.steps)


def saved_in(folder: Path) -> Saved:
    if not (folder / CHECKPOINT).exists():
        raise UserError(f"there is no checkpoint in {folder}; `catnat rl` makes one")
    return read(folder / CHECKPOINT)


def read_episodes(path: Path, steps: int) -> list[Episode]:
    """The lines of `episodes.csv` up to a step; none where there is no such file."""
    if not path.exists():
        return []
    try:
        with path.open(newline="") as file:
            rows = csv.DictReader(file)
            every = [Episode(int(row["step"]), float(row["score"]), int(row["length"])) for row in rows]
            return [episode for episode in every if episode.step <= steps]
    except (KeyError, ValueError, TypeError) as problem:
        raise UserError(f"{path} is no list of episodes ({problem}); delete the folder to begin again") from None
