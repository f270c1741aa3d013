"""A run that was stopped, in one file of safetensors: tensors by name, and the rest as JSON in the file's own header.

A kill while it is written leaves the one before it. It names no other file. Ctrl-C is noted, for a loop to save what it
has before it ends.
"""

import hashlib
import json
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from catnat_lab.errors import UserError
from catnat_lab.files import whole_file

FORMAT, HEADER = 2, "catnat checkpoint"
FORMER = {"gradient": "max_grad_norm", "trace": "gae_lambda"}  # settings as they were called once


@dataclass(frozen=True)
class Saved:
    run: dict[str, Any]  # all that decides the run's numbers
    progress: dict[str, Any]  # where it is, but for its tensors
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint of one run: its file, and all that decides the run's numbers, as JSON can hold it."""

    path: Path
    run: dict[str, Any]

    @classmethod
    def of(cls, folder: Path, run: dict[str, Any]) -> Self:
        """In a file that is named by the run, where a folder has many."""
        name = hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()[:16]
        return cls(folder / f"{name}.safetensors", run)

    def save(self, progress: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
        header = {HEADER: json.dumps({"format": FORMAT, "run": self.run, "progress": progress})}
        try:
            with whole_file(self.path) as partial:
                save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, partial, header)
        except SafetensorError as problem:  # a disk that is full, as safetensors says it
            raise UserError(f"cannot write {self.path}: {problem}") from None

    def load(self, expected: Mapping[str, Tensor]) -> Saved | None:
        """What was saved, with tensors of these shapes; None where nothing was. Another run's is an error."""
        for left in self.path.parent.glob(f"{self.path.stem}.*.partial"):  # of a process that was killed
            left.unlink(missing_ok=True)
        if not self.path.exists():
            return None
        saved = read(self.path)
        before, now = saved.run, json.loads(json.dumps(self.run))
        both = ((key, before.get(key), now.get(key)) for key in {**now, **before})
        other = [f"{key} was {then}, now {this}" for key, then, this in both if then != this]
        if other:
            raise UserError(f"{self.path} is of another run: {'; '.join(other)}; give another --output, or delete it")
        if {name: x.shape for name, x in saved.tensors.items()} != {name: x.shape for name, x in expected.items()}:
            raise UserError(f"{self.path} has other tensors than this run; delete it to begin again")
        return saved


def read(path: Path) -> Saved:
    """All that a file holds; an error if it is broken, or no checkpoint."""
    try:
        with safe_open(path, "pt") as file:
            header, tensors = file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about = json.loads(header[HEADER])
        if about["format"] == FORMAT:
            return Saved(todays_names(dict(about["run"])), dict(about["progress"]), tensors)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as problem:
        raise UserError(f"{path} is not a whole checkpoint ({problem}); delete it to begin again") from None
    raise UserError(f"{path} has the format {about['format']}; this catnat reads {FORMAT}")


def todays_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run that may have been begun by an older version."""
    return {FORMER.get(name, name): value for name, value in settings.items()}


def random_streams(device: torch.device) -> dict[str, Tensor]:
    found = {"random": torch.get_rng_state()}
    return found | ({"random on the GPU": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def set_random_streams(tensors: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(tensors["random"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(tensors["random on the GPU"], device)


class Stop:
    asked = False


@contextmanager
def noted_stops() -> Iterator[Stop]:
    """Within it the first Ctrl-C or SIGTERM is only noted; the second one ends the program at once."""
    stop = Stop()
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # a worker: who conducts decides
    if ignored or threading.current_thread() is not threading.main_thread():  # signals come to the main thread alone
        yield stop
        return

    def note(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True
        print("\nstopping after this update, with a checkpoint; once more stops at once", file=sys.stderr, flush=True)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
