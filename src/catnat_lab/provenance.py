"""Where a number comes from: the command, the commit, the machine and the versions."""

import ast
import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import catnat

if TYPE_CHECKING:
    import torch

PACKAGES = ("numpy", "scipy", "optuna", "entmax", "ale-py", "gymnasium", "gymnax", "optax")


def provenance(command: str, device: "torch.device | None" = None) -> dict[str, str]:
    torch = sys.modules.get("torch")  # what runs without it need not wait for it
    facts = {
        "command": command,
        "commit": _commit(),
        "date": datetime.date.today().isoformat(),
        "processor": _processor(),
        "cores": f"{os.cpu_count()}",
        "threads": f"{torch.get_num_threads() if torch else os.cpu_count()}",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__ if torch else version("torch"),
        "catnat": catnat.__version__,
    }
    if torch and device is not None and device.type == "cuda":
        facts["GPU"] = torch.cuda.get_device_name(device)
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            facts[name] = version(name)
    return facts


def continued(first: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Where a study or a run comes from, when it was begun there and goes on here; all such places, in turn."""
    other = ", ".join(f"{key} {value}" for key, value in now.items() if first.get(key) != value)
    before = [place for place in first.get("continued with", "").split("; ") if place]
    places = [*before, *([other] if other and other not in before[-1:] else [])]
    return first | ({"continued with": "; ".join(places)} if places else {})


def sources(file: Path) -> list[Path]:
    """A Python file and those that it imports from the folder it lies in, and these in turn."""
    found: list[Path] = []
    waiting = [file]
    while waiting:
        path = waiting.pop()
        found.append(path)
        with suppress(SyntaxError, ValueError):  # of what is not imported yet, and never may be
            for folder, name in _imported(ast.parse(path.read_bytes()), path, file.parent):
                place = folder.joinpath(*name.split("."))
                fresh = {place.with_suffix(".py"), *(each / "__init__.py" for each in (place, *place.parents))}
                beside = {each for each in fresh if file.parent in each.parents and each.is_file()}
                waiting += sorted(beside - {*found, *waiting})
    return found


def _imported(code: ast.AST, path: Path, root: Path) -> Iterator[tuple[Path, str]]:
    """Names of modules, and the folders from which they are looked for."""
    for node in ast.walk(code):
        if isinstance(node, ast.Import):
            yield from ((root, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            folder = path.parents[node.level - 1] if node.level else root
            names = [alias.name for alias in node.names]
            yield from ((folder, ".".join(filter(None, (node.module, name)))) for name in ["", *names])


def _commit() -> str:
    commit, changes = _printed("git", "rev-parse", "HEAD"), _printed("git", "status", "--porcelain", "--", ":/src")
    return f"{commit} (with local changes)" if commit and changes else commit or "unknown"


def _processor() -> str:
    names = [line for line in _printed("lscpu").splitlines() if line.startswith("Model name:")]
    return names[0].split(":", 1)[1].strip() if names else platform.processor() or "unknown"


def _printed(*command: str) -> str:
    """What a program prints; nothing where it is not there, or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
