"""A file imports only from floors below its own."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src"

# The whole number is the floor; the decimal orders the files on it.
CORE = {
    "errors": 0.0,
    "tree": 0.1,
    "parameterization": 0.2,
    "reference": 0.3,
    "__init__": 0.4,
}
BACKEND = {  # the same files and the same names in every backend
    "compat": 1.0,
    "plan": 1.1,
    "activations": 1.2,
    "eager": 2.0,
    "inputs": 3.0,
    "masks": 3.0,
    "fused": 3.0,
    "fused_path": 3.1,
    "dispatch": 4.0,
    "functional": 4.1,
    "nn": 5.0,
    "distributions": 5.0,
    "multi": 5.1,
    "estimators": 6.0,
    "fisher": 6.0,
    "__init__": 6.9,
}
FLOORS = {
    **{f"catnat.core.{name}": floor for name, floor in CORE.items()},
    **{f"catnat.{backend}.{name}": floor for backend in ("torch", "jax") for name, floor in BACKEND.items()},
    "catnat.__init__": 0.9,  # the front door of the core; a framework must not come in through it
    "catnat.demo": 12.0,  # uses everything, as a user would
}


def module_of(path: Path) -> str:
    """catnat/torch/plan.py is catnat.torch.plan; a package is its __init__."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def imports(tree: ast.AST, module: str, known: set[str]) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, those inside functions too. A package's name stands for its __init__."""

    def resolve(name: str) -> str:
        return name if name in known else f"{name}.__init__" if f"{name}.__init__" in known else name

    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, resolve(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*module.split(".")[: -node.level], *([base] if base else [])])
            for alias in node.names:
                inner = resolve(f"{base}.{alias.name}")
                yield node.lineno, inner if inner in known else resolve(base)


def wrongs_of(text: str, module: str, known: set[str]) -> list[str]:
    """What is wrong with one file."""
    if module not in FLOORS:
        return [f"{module} has no floor: give it one in {Path(__file__).name}"]
    found = []
    for line, name in imports(ast.parse(text), module, known):
        top = name.split(".")[0]
        if top == "catnat":
            if name not in FLOORS:
                found.append(f"{module}:{line} imports {name}, which has no floor")
            elif FLOORS[name] >= FLOORS[module]:
                found.append(f"{module}:{line} imports {name}, which is not below it")
        elif FLOORS[module] < 1 and top not in {"numpy", *sys.stdlib_module_names}:
            found.append(f"{module}:{line} imports {name}; the core takes NumPy and the standard library alone")
    return found


FILES = {module_of(path): path for path in sorted((SOURCE / "catnat").rglob("*.py"))}


@pytest.mark.parametrize("module", FILES)
def test_a_file_imports_only_from_below(module: str) -> None:
    assert wrongs_of(FILES[module].read_text(), module, set(FILES)) == []


def test_every_floor_has_its_file() -> None:
    assert {module for module in FLOORS if not module.startswith("catnat.jax")} <= set(FILES)


def test_the_walk_finds_the_files_and_their_imports() -> None:
    assert {"catnat.core.tree", "catnat.torch.functional", "catnat.torch.__init__"} <= set(FILES)
    text = FILES["catnat.torch.functional"].read_text()
    found = {name for _, name in imports(ast.parse(text), "catnat.torch.functional", set(FILES))}
    assert {"torch", "catnat.core.errors", "catnat.torch.eager", "catnat.torch.inputs"} <= found


@pytest.mark.parametrize(
    ("module", "line", "wrong"),
    [
        ("catnat.torch.eager", "from catnat.torch import functional", "imports catnat.torch.functional"),
        ("catnat.torch.eager", "import catnat.torch.nn", "imports catnat.torch.nn"),
        ("catnat.torch.eager", "from catnat.torch import log_catnat", "imports catnat.torch.__init__"),
        ("catnat.torch.eager", "from . import functional", "imports catnat.torch.functional"),
        ("catnat.torch.eager", "from .functional import mode", "imports catnat.torch.functional"),
        ("catnat.torch.eager", "def f():\n    from catnat.torch.nn import Catnat", "imports catnat.torch.nn"),
        ("catnat.torch.masks", "from catnat.torch.fused import applies", "imports catnat.torch.fused"),  # a sibling
        ("catnat.core.tree", "from catnat.core.reference import mode", "imports catnat.core.reference"),
        ("catnat.core.tree", "import torch", "NumPy and the standard library alone"),
        ("catnat.core.tree", "from scipy import stats", "NumPy and the standard library alone"),
        ("catnat.__init__", "import catnat.torch", "imports catnat.torch.__init__"),
        ("catnat.__init__", "import torch", "NumPy and the standard library alone"),
        ("catnat.torch.brand_new", "", "has no floor"),
    ],
)
def test_a_bad_import_is_found(module: str, line: str, wrong: str) -> None:
    found = wrongs_of(line, module, set(FILES))
    assert len(found) == 1 and wrong in found[0]


def test_a_good_import_is_not() -> None:
    good = ["import torch", "from catnat.core.tree import Tree", "from catnat.torch import plan", "import numpy"]
    assert wrongs_of("\n".join(good), "catnat.torch.eager", set(FILES)) == []
