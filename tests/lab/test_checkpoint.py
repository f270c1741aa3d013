"""Checkpoints: what was saved comes back to the bit, and what cannot be one is refused in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from catnat_lab.checkpoint import HEADER, Checkpoint, random_streams, read, set_random_streams
from catnat_lab.errors import UserError

RUN = {"rate": 0.1, "games": ("one", "two"), "device": "cpu"}
TENSORS = {"a": torch.arange(6.0).reshape(2, 3).T, "b": torch.tensor(3), "keys": torch.ones(2).to(torch.uint32)}
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def checkpoint(folder: Path, **other: object) -> Checkpoint:
    return Checkpoint(folder / "run.safetensors", {**RUN, **other})


@settings(max_examples=25)
@given(progress=st.dictionaries(st.text(), plain, max_size=4), values=st.lists(st.floats(width=32), max_size=5))
def test_what_was_saved_comes_back(
    tmp_path_factory: pytest.TempPathFactory, progress: dict[str, object], values: list[float]
) -> None:
    folder, tensors = tmp_path_factory.mktemp("folder"), {**TENSORS, "drawn": torch.tensor(values)}
    assert checkpoint(folder).load(tensors) is None  # nothing was
    checkpoint(folder).save(progress, tensors)
    found = checkpoint(folder).load(tensors)
    assert found is not None and found.progress == progress and found.run == json.loads(json.dumps(RUN))
    for name, value in tensors.items():
        assert found.tensors[name].dtype == value.dtype and torch.equal(_bits(found.tensors[name]), _bits(value))
    assert [path.name for path in folder.iterdir()] == ["run.safetensors"]


def _bits(x: Tensor) -> Tensor:
    return x.contiguous().flatten().view(torch.uint8)  # NaN is itself too


@pytest.mark.parametrize(
    ("other", "tensors", "message"),
    [
        ({"rate": 0.2}, TENSORS, r"is of another run: rate was 0\.1, now 0\.2; give another --output, or delete it"),
        ({"seed": 1}, TENSORS, "seed was None, now 1"),
        ({}, {"a": TENSORS["a"]}, "has other tensors than this run"),
        ({}, {**TENSORS, "a": torch.zeros(3)}, "has other tensors than this run"),
    ],
)
def test_another_runs_is_refused(
    tmp_path: Path, other: dict[str, Any], tensors: dict[str, Tensor], message: str
) -> None:
    checkpoint(tmp_path).save({}, TENSORS)
    with pytest.raises(UserError, match=message):
        checkpoint(tmp_path, **other).load(tensors)


HALF = "is not a whole checkpoint"


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_part_of_a_file_is_refused(tmp_path: Path, share: float) -> None:
    checkpoint(tmp_path).save({"curve": list(range(100))}, {"a": torch.zeros(1000)})
    path = tmp_path / "run.safetensors"
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    _refused(path, HALF)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (None, HALF),
        ({HEADER: "{"}, HALF),
        ({HEADER: "[]"}, HALF),
        ({HEADER: '{"format": 2, "run": 3, "progress": {}}'}, HALF),
        ({HEADER: '{"format": 2, "run": {}}'}, HALF),
        ({HEADER: '{"format": 9}'}, "has the format 9; this catnat reads 2"),
    ],
)
def test_other_peoples_files_are_refused(tmp_path: Path, header: dict[str, str] | None, message: str) -> None:
    path = tmp_path / "run.safetensors"
    save_file({"a": torch.zeros(3)}, path, header)
    _refused(path, message)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.safetensors").mkdir()
    _refused(tmp_path / "run.safetensors", HALF)


def _refused(path: Path, message: str) -> None:
    with pytest.raises(UserError, match=message) as found:
        read(path)
    assert "\n" not in str(found.value) and str(path) in str(found.value)


def test_a_failed_save_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint(tmp_path).save({"done": 1}, TENSORS)

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint(tmp_path).save({"done": 2}, TENSORS)
    found = checkpoint(tmp_path).load(TENSORS)
    assert found is not None and found.progress == {"done": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["run.safetensors"]


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    """No file may be larger than 4 kB for a while, which is to a program what a full disk is."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises((UserError, OSError), match="File too large") as found:
            checkpoint(tmp_path).save({}, {"a": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(found.value) and not list(tmp_path.iterdir())


def test_random_streams_go_on() -> None:
    torch.manual_seed(5)
    torch.rand(3)
    kept = {name: value.clone() for name, value in random_streams(torch.device("cpu")).items()}
    first = torch.rand(4)
    set_random_streams(kept, torch.device("cpu"))
    assert torch.equal(torch.rand(4), first)
