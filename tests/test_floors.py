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
BACKEND = {  # the same names in every backend, and nearly the same files
    "compat": 1.0,
    "plan": 1.1,
    "activations": 1.2,
    "eager": 2.0,
    "inputs": 3.0,
    "masks": 3.0,
    "fused": 3.0,
    "dispatch": 4.0,
    "functional": 4.1,
    "drawing": 4.2,
    "nn": 5.0,
    "distributions": 5.0,
    "multi": 5.1,
    "estimators": 6.0,
    "fisher": 6.0,
    "__init__": 6.9,
}
ONLY = {
    "torch": {
        "coin": 1.05,
        "compiled_memory": 2.9,
        "compiled_loops": 3.0,
        "kernels.__init__": 3.0,
        "kernels.coins": 3.0,
        "kernels.moves": 3.0,
        "kernels.walk": 3.1,
        "kernels.pull": 3.2,
        "kernels.path": 3.1,
        "kernels.head": 3.2,
        "kernels.blocks": 3.0,
        "kernels.launcher": 3.0,
        "kernels.launch": 3.3,
        "kernels.ops": 3.4,
        "fused_path": 3.1,
        "compiled": 3.1,
        "on_gpu": 3.5,
    },
    "jax": {"kernel_coins": 2.8, "kernels": 2.9, "noise": 4.9},
}
LAB = {  # uses the library's front doors, as any user would
    "__init__": 7.0,
    "errors": 8.0,
    "provenance": 8.0,
    "devices": 8.0,
    "stopping": 8.0,
    "heads": 8.1,
    "stats": 8.1,
    "database": 8.1,
    "trials": 8.2,
    "study": 8.3,
    "store": 8.4,
    "gsl.__init__": 9.0,
    "gsl.data": 9.1,
    "gsl.energy": 9.1,
    "gsl.train": 9.2,
    "gsl.presets": 9.2,
    "gsl.search": 9.3,
    "vae.__init__": 9.0,
    "vae.digits": 9.1,
    "vae.gather": 9.1,
    "vae.adam": 9.1,
    "vae.data": 9.2,
    "vae.layers": 9.2,
    "vae.networks": 9.3,
    "vae.stack": 9.4,
    "vae.plain": 9.5,
    "vae.objective": 9.5,
    "vae.judge": 9.6,
    "vae.train": 9.7,
    "vae.presets": 9.8,
    "vae.search": 9.9,
    "rl.__init__": 9.0,
    "rl.games": 9.1,
    "rl.network": 9.1,
    "rl.settings": 9.1,
    "rl.atari": 9.2,
    "rl.classic": 9.2,
    "rl.catalogue": 9.3,
    "rl.ppo": 9.4,
    "rl.checkpoint": 9.5,
    "rl.train": 9.6,
    "rl.watch": 9.6,
    "rl.seaquest": 9.0,
    "rl.minatar": 9.1,
    "rl.minatar_study": 9.8,
    "rl.sweep": 9.7,
    "report.svg": 10.0,
    "report.table": 10.0,
    "report.judgement": 10.1,
    "report.notes": 10.05,
    "report.drawing": 10.1,
    "report.curves": 10.1,
    "report.words": 10.2,
    "report.as_markdown": 10.3,
    "report.as_page": 10.3,
    "report.as_terminal": 10.3,
    "report.written": 10.35,
    "report.__init__": 10.4,
    "report.gsl_figures": 10.5,
    "report.gsl_results": 10.5,
    "report.gsl_remarks": 10.6,
    "report.gsl": 10.7,
    "report.vae_results": 10.5,
    "report.vae_figures": 10.6,
    "report.vae_remarks": 10.6,
    "report.vae": 10.7,
    "report.rl": 10.7,
    "report.minatar": 10.75,
    "figure": 10.0,
    "commands.__init__": 11.0,
    "commands.parts": 11.0,
    "commands.gsl": 11.1,
    "commands.vae": 11.1,
    "commands.rl": 11.1,
    "cli": 11.2,
    "__main__": 11.3,
}
LIBRARY_DOORS = {"catnat.__init__", "catnat.torch.__init__", "catnat.jax.__init__"}
FLOORS = {
    **{f"catnat.core.{name}": floor for name, floor in CORE.items()},
    **{f"catnat.{b}.{name}": floor for b, own in ONLY.items() for name, floor in {**BACKEND, **own}.items()},
    "catnat.__init__": 0.9,  # the front door of the core; a framework must not come in through it
    **{f"catnat_lab.{name}": floor for name, floor in LAB.items()},
}


def module_of(path: Path) -> str:
    """catnat/torch/plan.py is catnat.torch._plan; a package is its __init__."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def imports(tree: ast.AST, module: str, known: set[str]) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, those inside functions too. A package's name stands for its __init__."""

    def resolve(name: str) -> str:
        return name if name in known else f"{name}.__init__" if f"{name}.__init__" in known else name

    typing_only = {
        inner
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for inner in ast.walk(block)
    }
    for node in ast.walk(tree):
        if node in typing_only:  # names for a type checker bring nothing in
            continue
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
        if top in ("catnat", "catnat_lab"):
            if module.startswith("catnat_lab.") and top == "catnat" and name not in LIBRARY_DOORS:
                found.append(f"{module}:{line} imports {name}; the lab takes the library's public names alone")
            elif name not in FLOORS:
                found.append(f"{module}:{line} imports {name}, which has no floor")
            elif FLOORS[name] >= FLOORS[module]:
                found.append(f"{module}:{line} imports {name}, which is not below it")
        elif FLOORS[module] < 1 and top not in {"numpy", *sys.stdlib_module_names}:
            found.append(f"{module}:{line} imports {name}; the core takes NumPy and the standard library alone")
    return found


FILES = {module_of(path): path for top in ("catnat", "catnat_lab") for path in sorted((SOURCE / top).rglob("*.py"))}


@pytest.mark.parametrize("module", FILES)
def test_a_file_imports_only_from_below(module: str) -> None:
    assert wrongs_of(FILES[module].read_text(), module, set(FILES)) == []


def test_every_floor_has_its_file() -> None:
    assert set(FLOORS) <= set(FILES)


def test_the_walk_finds_the_files_and_their_imports() -> None:
    assert {"catnat.core.tree", "catnat.torch.functional", "catnat.torch.__init__"} <= set(FILES)
    text = FILES["catnat.torch.functional"].read_text()
    found = {name for _, name in imports(ast.parse(text), "catnat.torch.functional", set(FILES))}
    assert {"torch", "catnat.core.errors", "catnat.torch._eager", "catnat.torch._inputs"} <= found


@pytest.mark.parametrize(
    ("module", "line", "wrong"),
    [
        ("catnat.torch._eager", "from catnat.torch import functional", "imports catnat.torch.functional"),
        ("catnat.torch._eager", "import catnat.torch.nn", "imports catnat.torch.nn"),
        ("catnat.torch._eager", "from catnat.torch import log_catnat", "imports catnat.torch.__init__"),
        ("catnat.torch._eager", "from . import functional", "imports catnat.torch.functional"),
        ("catnat.torch._eager", "from .functional import mode", "imports catnat.torch.functional"),
        ("catnat.torch._eager", "def f():\n    from catnat.torch.nn import Catnat", "imports catnat.torch.nn"),
        ("catnat.torch._masks", "from catnat.torch.fused import applies", "imports catnat.torch.fused"),  # a sibling
        ("catnat.core.tree", "from catnat.core.reference import mode", "imports catnat.core.reference"),
        ("catnat.jax._eager", "from catnat.jax import functional", "imports catnat.jax.functional"),
        ("catnat.jax._eager", "from catnat.jax._gpu.walk import walk", "imports catnat.jax._gpu.walk"),
        ("catnat.jax._plan", "from catnat.torch import nn", "imports catnat.torch.nn"),
        ("catnat.core.tree", "import torch", "NumPy and the standard library alone"),
        ("catnat.core.tree", "from scipy import stats", "NumPy and the standard library alone"),
        ("catnat.__init__", "import catnat.torch", "imports catnat.torch.__init__"),
        ("catnat.__init__", "import torch", "NumPy and the standard library alone"),
        ("catnat.torch.brand_new", "", "has no floor"),
        ("catnat_lab.heads", "from catnat.torch import eager", "public names alone"),
        ("catnat_lab.gsl.train", "from catnat_lab.report import table", "imports catnat_lab.report.table"),
        ("catnat.torch.nn", "import catnat_lab.heads", "imports catnat_lab.heads"),
    ],
)
def test_a_bad_import_is_found(module: str, line: str, wrong: str) -> None:
    found = wrongs_of(line, module, set(FILES))
    assert len(found) == 1 and wrong in found[0]


def test_a_good_import_is_not() -> None:
    good = ["import torch", "from catnat.core.tree import Tree", "from catnat.torch import plan", "import numpy"]
    assert wrongs_of("\n".join(good), "catnat.torch._eager", set(FILES)) == []
