"""Do the tests see a fault? Each patch beside this file is one, made by hand; a copy of the tree gets one at a time.

    python tests/mutants/run.py                     # all of them
    python tests/mutants/run.py --only triton jax   # those whose names begin so

The head of a patch says what is wrong, and which tests are to see it: those that `make test` runs of these files, up to
the first that fails. The table says which one that was. What is no fault of the patch must not fail: a tree whose own
tests fail catches everything.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NEEDED = ("src", "tests", "pyproject.toml")
TREE = ROOT / "build" / "mutants"  # always the same place: for a new one all C++ would be compiled anew
NOT_NEEDED = shutil.ignore_patterns("__pycache__", "*.egg-info")
LINE = "{:36} {:7} {:>6}  {}"


def field(patch: Path, name: str) -> str:
    """What the head of a patch says of "Fault" or of "Tests"."""
    found = re.search(rf"^{name}: (.+)$", patch.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        sys.exit(f"{patch.name} has no line that begins with {name}:")
    return found.group(1)


def applied(patch: Path, tree: Path, *options: str) -> bool:
    """Whether a patch fits into a tree; without options it is put there."""
    command = ["git", "apply", *options, str(patch)]
    environment = os.environ | {"GIT_DIR": os.devnull}  # the tree is no repository, and in none
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    return done.returncode == 0


def tested(patch: Path, tree: Path) -> tuple[str, float, str]:
    """What came of one fault, after how many seconds, and which test saw it."""
    began = time.monotonic()
    if not applied(patch, tree):
        return "STALE", 0.0, "the patch no longer fits the sources"
    paths = os.pathsep.join([str(tree / "src"), str(tree)])
    # no bytecode: a file that is patched back within a second looks as if it had not changed
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *field(patch, "Tests").split()]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert applied(patch, tree, "--reverse")
    # 1 where a test failed, 0 where none did; all else is an error of the run itself
    verdict = {0: "MISSED", 1: "caught"}.get(done.returncode, "ERROR")
    by = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    told = by.group(1) if by else (done.stdout + done.stderr).strip().splitlines()[-1]
    return verdict, time.monotonic() - began, told if verdict != "MISSED" else field(patch, "Fault")


def main() -> int:
    """Print a table; 1 where a fault was not caught."""
    parser = argparse.ArgumentParser(description="Do the tests see these faults?")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[""], help="patches whose names begin so")
    chosen = tuple(parser.parse_args().only)
    patches = [patch for patch in sorted(HERE.glob("*.patch")) if patch.stem.startswith(chosen)]
    if not patches:
        sys.exit(f"no patch in {HERE} begins with {' or '.join(chosen)}")
    shutil.rmtree(TREE, ignore_errors=True)
    for name in NEEDED:
        source, to = ROOT / name, TREE / name
        _ = shutil.copytree(source, to, ignore=NOT_NEEDED) if source.is_dir() else shutil.copy(source, to)
    missed = 0
    for patch in patches:
        verdict, seconds, told = tested(patch, TREE)
        missed += verdict != "caught"
        print(LINE.format(patch.stem, verdict, f"{seconds:.0f} s", told), flush=True)
    print(f"{len(patches) - missed} of {len(patches)} caught")
    return missed > 0


if __name__ == "__main__":
    sys.exit(main())
