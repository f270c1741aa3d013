"""Where a number comes from: the command, the commit, the machine and the versions."""

import datetime
import os
import platform
import subprocess
from contextlib import suppress
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
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            facts[name] = version(name)
    return facts


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
