"""A test that takes long and is not marked slow is warned of or fails; a slow machine is no reason."""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest


def outcome(
    monkeypatch: pytest.MonkeyPatch, seconds: float, slowness: float = 1.0, is_slow: bool = False, imports: int = 0
) -> str:
    """What the rule says of a test that takes so many CPU seconds on a machine so slow."""
    clock = iter([10.0, 10.0 + seconds])
    item = SimpleNamespace(nodeid="the test", get_closest_marker=lambda name: is_slow or None)
    with monkeypatch.context() as patched, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        patched.setattr(time, "process_time", lambda: next(clock))
        patched.setattr(conftest, "yardstick", lambda: slowness * conftest.YARDSTICK)
        called = conftest.pytest_runtest_call(item)
        next(called)
        patched.setattr(sys, "modules", sys.modules | {f"library.{i}": None for i in range(imports)})
        try:
            called.send("result")
        except StopIteration as ended:
            assert ended.value == "result"
            return f"warned: {warned[0].message}" if warned else "passed"
        except pytest.fail.Exception as failed:
            return f"failed: {failed}"
    raise AssertionError("the hook goes on")


@pytest.mark.skipif(conftest.has_gpu(), reason="kernels are compiled in tests there, so nothing is refused")
def test_a_test_earns_its_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(monkeypatch, 1.9) == outcome(monkeypatch, 19, is_slow=True) == "passed"
    assert outcome(monkeypatch, 3.0).startswith("warned: the test took 3.0 CPU seconds of 2: ")
    assert outcome(monkeypatch, 17.0).endswith("mark it slow, or move an import or a compilation into a fixture")
    assert outcome(monkeypatch, 17.0).startswith("failed: the test took 17.0")
    assert outcome(monkeypatch, 7.0, slowness=2).startswith("warned: the test took 3.5")
    assert outcome(monkeypatch, 17.0, slowness=0.1).startswith("failed: the test took 17.0")  # a fast one is no reason
    assert outcome(monkeypatch, 7.0, slowness=4) == "passed"
    assert outcome(monkeypatch, 17.0, imports=30).startswith("warned: the test took 17.0")


def test_a_file_of_slow_tests_is_imported_where_they_are_wanted(tmp_path: Path) -> None:
    slow, mixed = tmp_path / "test_slow.py", tmp_path / "test_mixed.py"
    slow.write_text("import pytest\n\npytestmark = [pytest.mark.slow, pytest.mark.gpu]  # why\n", encoding="utf-8")
    mixed.write_text("import pytest\n\n@pytest.mark.slow\ndef test_it(): ...\n", encoding="utf-8")
    for wanted, files in (("not slow", [slow]), ("", [])):
        config: Any = SimpleNamespace(option=SimpleNamespace(markexpr=wanted))
        assert [file for file in (slow, mixed, tmp_path) if conftest.pytest_ignore_collect(file, config)] == files


def test_the_yardstick_is_cpu_time() -> None:
    assert 0 < conftest.yardstick() < 5
