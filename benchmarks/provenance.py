"""Where a number comes from: the command, the commit, the machine and the versions."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy
import torch

import catnat


def provenance() -> dict[str, object]:
    """All of it, as plain JSON values."""
    return {
        "command": "python -m benchmarks " + " ".join(sys.argv[1:]),
        "commit": _git("rev-parse", "HEAD") + (" (with local changes)" if _git("status", "--porcelain", "src") else ""),
        "date": datetime.date.today().isoformat(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "catnat": catnat.__version__,
    }


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def _processor() -> str:
    done = subprocess.run(["lscpu"], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("Model name:"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"
