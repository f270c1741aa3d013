"""Every benchmark can at least be imported: nothing else in the tests would see that it is broken."""

import importlib
from pathlib import Path

import pytest

import benchmarks

FILES = sorted(file.stem for file in Path(benchmarks.__path__[0]).glob("*.py") if not file.stem.startswith("__"))


@pytest.mark.parametrize("name", FILES)
def test_a_benchmark_can_be_imported(name: str) -> None:
    importlib.import_module(f"benchmarks.{name}")
