"""What stands on what: the import contracts in pyproject.toml hold, and each of them can break."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
COMMAND = "from importlinter.cli import lint_imports_command; lint_imports_command()"  # what `lint-imports` runs

# One wrong import a contract, in the file given: plain, inside a function, or for a type checker alone.
FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "
PLANTED = {
    "The lab stands on the library": ("catnat/torch/nn.py", "import catnat_lab.heads"),
    "The lab uses the library's public modules alone": ("catnat_lab/gsl/train.py", "from catnat.torch import _eager"),
    "The backends stand on the core and know nothing of each other": (
        "catnat/jax/nn.py",
        FOR_TYPES + "from catnat.torch.nn import Catnat",
    ),
    "The integrations use the library's public modules alone": (
        "catnat/integrations/sb3.py",
        "def later():\n    from catnat.torch import _eager",
    ),
    "An integration knows no other": ("catnat/integrations/torchrl.py", "import catnat.integrations.rllib"),
    "The front door brings no framework in": ("catnat/__init__.py", "def later():\n    import catnat.jax.nn"),
    "Inside the core": ("catnat/core/errors.py", FOR_TYPES + "from catnat.core.tree import Tree"),
    "Inside a backend": ("catnat/torch/_eager.py", "def later():\n    from catnat.torch import functional"),
    "The fast walks have one door": (
        "catnat/torch/functional.py",
        "def later():\n    from catnat.torch._gpu.walk import anything",
    ),
    "Inside the lab": ("catnat_lab/gsl/train.py", "from catnat_lab.vae import digits"),
}


def lint(root: Path) -> tuple[int, str]:
    """import-linter's verdict on ``root``, in a process of its own: it finds the packages along Python's path."""
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "--no-cache", "--no-logo"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root / "src"), "COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_contracts_hold() -> None:
    code, report = lint(ROOT)
    assert code == 0, report


def test_every_contract_can_break(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name, line in PLANTED.values():
        with (tmp_path / "src" / name).open("a") as file:
            file.write(f"\n{line}\n")
    (tmp_path / "src/catnat/torch/brand_new.py").touch()
    code, report = lint(tmp_path)
    assert code == 1
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert set(re.findall("^(.*) BROKEN$", report, re.M)) == {c["name"] for c in contracts} == set(PLANTED), report
    assert "- catnat.torch.brand_new" in report  # a new file needs its place


def test_the_core_takes_numpy_and_the_standard_library_alone() -> None:
    # contracts can forbid packages by name only; this allows by name
    graph = grimp.build_graph("catnat", include_external_packages=True, cache_dir=None)
    found = {
        taken.partition(".")[0]
        for module in graph.find_descendants("catnat.core") | {"catnat", "catnat.core"}
        for taken in graph.find_modules_directly_imported_by(module)
    }
    assert {"numpy", "heapq", "catnat"} <= found  # it sees them
    assert found - sys.stdlib_module_names == {"numpy", "catnat"}
