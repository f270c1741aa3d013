"""The faults of tests/mutants still fit the sources, so that `python tests/mutants/run.py` asks what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import run

PATCHES = sorted(run.HERE.glob("*.patch"))


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_fault_fits_and_names_its_tests(patch: Path) -> None:
    assert run.field(patch, "Fault")
    assert run.applied(patch, run.ROOT, "--check")
    missing = [name for name in run.field(patch, "Tests").split() if not (run.ROOT / name).exists()]
    assert not missing


def test_a_patch_that_fits_no_more_is_seen(tmp_path: Path) -> None:
    stale = tmp_path / "stale.patch"
    stale.write_text(PATCHES[0].read_text(encoding="utf-8").replace("\n-", "\n-no longer there ", 2), encoding="utf-8")
    assert not run.applied(stale, run.ROOT, "--check")


def test_there_are_forty_of_the_library() -> None:
    assert sum(not patch.stem.startswith("lab-") for patch in PATCHES) >= 40
