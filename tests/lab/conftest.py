"""What several tests of the lab share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from catnat_lab.studies import Study


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lab.db"


@pytest.fixture
def study(path: Path) -> Iterator[Study]:
    with Study(path, conduct=True) as opened:
        yield opened


@pytest.fixture
def interruptible() -> Iterator[None]:
    """As in a terminal: what a shell starts in the background ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
