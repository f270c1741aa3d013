"""Every benchmark can at least be imported: nothing else in the tests would see that it is broken."""

import csv
import importlib
import sys
from pathlib import Path

import pytest

import benchmarks

FILES = sorted(file.stem for file in Path(benchmarks.__path__[0]).glob("*.py") if not file.stem.startswith("__"))


@pytest.mark.parametrize("name", FILES)
def test_a_benchmark_can_be_imported(name: str) -> None:
    importlib.import_module(f"benchmarks.{name}")


@pytest.mark.parametrize(("options", "name", "settings"), [([], "classes", 3), (["--mixed"], "mixed", 6)])
def test_unrelated_classes_are_trained_and_written(
    options: list[str], name: str, settings: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes = importlib.import_module("benchmarks.classes")
    small = {"STEPS": 2, "SEEDS": 1, "JUDGED": 100, "CLASSES": (4,), "HIDDEN": (8,), "TRIED_ON": 5}
    for constant, value in small.items():
        monkeypatch.setattr(classes, constant, value)
    monkeypatch.setattr(sys, "argv", ["classes", *options, "--output", str(tmp_path)])
    classes.main()
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.csv", f"{name}.json"}
    with (tmp_path / f"{name}.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == settings * len(classes.HEADS)
    assert all(0 < float(row["accuracy"]) < 100 and float(row["nats"]) > 0 for row in rows)
