"""What several tests of the lab share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from catnat_lab.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lab.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store(path) as opened:
        yield opened
