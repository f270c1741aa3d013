"""A run on disk: tensors in safetensors, the rest in plain JSON, and nothing is lost by a kill while it is written.

`checkpoint.json` names the file of tensors it belongs to and is renamed into place last: until then the checkpoint
before it stands.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from catnat_lab.errors import UserError
from catnat_lab.rl.ppo import Learner
from catnat_lab.rl.settings import Settings

FORMAT = 1
ABOUT = "checkpoint.json"
TENSORS = "checkpoint-{}.safetensors"


def save(folder: Path, learner: Learner) -> None:
    """Write where the learner is."""
    folder.mkdir(parents=True, exist_ok=True)
    name = TENSORS.format(learner.updates * learner.settings.batch)
    tensors = {key: value.detach().cpu().contiguous() for key, value in learner.tensors().items()}
    _write(folder / name, lambda partial: save_file(tensors, partial))
    about = {
        "format": FORMAT,
        "tensors": name,
        "device": learner.device.type,
        "settings": learner.settings.as_dict(),
        "progress": learner.progress(),
    }
    _write(folder / ABOUT, lambda partial: partial.write_text(json.dumps(about)))
    for other in folder.glob(TENSORS.format("*")):
        if other.name != name:
            other.unlink(missing_ok=True)


def _write(path: Path, write: Any) -> None:
    partial = path.with_suffix(f".{os.getpid()}.partial")
    write(partial)
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)


def read(folder: Path) -> tuple[Settings, dict[str, Tensor], dict[str, Any]] | None:
    """The checkpoint of a folder: its settings, its tensors and what else it says; None where there is none."""
    path = folder / ABOUT
    if not path.exists():
        return None
    try:
        about = json.loads(path.read_text())
        if about["format"] != FORMAT:
            raise UserError(f"{path} has the format {about['format']}; this catnat reads {FORMAT}")
        settings, tensors_at = Settings(**about["settings"]), folder / str(about["tensors"])
    except (ValueError, KeyError, TypeError) as problem:
        raise UserError(f"{path} is not a whole checkpoint ({problem}); delete the folder to begin again") from None
    try:
        tensors = load_file(tensors_at)
    except (SafetensorError, OSError) as problem:
        raise UserError(f"{tensors_at} is not whole ({problem}); delete the folder to begin again") from None
    return settings, tensors, about


def resume(folder: Path, learner: Learner) -> bool:
    """Bring the learner where the folder's run was; False where there is none."""
    for left in folder.glob("*.partial"):  # of a process that was killed while it wrote
        left.unlink(missing_ok=True)
    found = read(folder)
    if found is None:
        return False
    settings, tensors, about = found
    before, now = settings.as_dict(), learner.settings.as_dict()
    other = [f"{key} was {before[key]}, now {now[key]}" for key in now if before[key] != now[key]]
    if about["device"] != learner.device.type:
        other.append(f"device was {about['device']}, now {learner.device.type}")
    if other:
        raise UserError(f"{folder} holds another run: {'; '.join(other)}; give another --output")
    expected = {name: value.shape for name, value in learner.tensors().items()}
    if {name: value.shape for name, value in tensors.items()} != expected:
        raise UserError(f"{folder / about['tensors']} has other tensors than this run; give another --output")
    learner.resume(tensors, about["progress"])
    return True


def network_of(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The network's own, for `ActorCritic.load_state_dict`."""
    prefix = "network."
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
