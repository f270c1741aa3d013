"""Where a number comes from: the command, the commit, the machine and the versions."""

import datetime
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import catnat

PACKAGES = ("numpy", "scipy", "optuna", "entmax", "ale-py", "gymnasium", "gymnax", "optax")


def provenance(command: str, device: torch.device | None = None) -> dict[str, str]:
    facts = {
        "command": command,
        "commit": _commit(),
        "date": datetime.date.today().isoformat(),
        "processor": _processor(),
        "cores": f"{os.cpu_count()}",
        "threads": f"{torch.get_num_threads()}",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "catnat": catnat.__version__,
    }
    if device is not None and device.type == "cuda":
        facts["GPU"] = torch.cuda.get_device_name(device)
    return facts | {name: found for name in PACKAGES if (found := _version(name))}


def _commit() -> str:
    commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--", ":/src")
    return commit if not changes or commit == "unknown" else f"{commit} (with local changes)"


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, cwd=Path(__file__).parent, check=False
        )
    except OSError:  # no git here
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def _processor() -> str:
    try:
        done = subprocess.run(["lscpu"], capture_output=True, text=True, check=False)
    except OSError:
        return platform.processor() or "unknown"
    for line in done.stdout.splitlines():
        if line.startswith("Model name:"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
