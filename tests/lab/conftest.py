"""What several tests of the lab share."""

from __future__ import annotations

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
