"""What stands in docs/ beside the pages: the programs that write their tables."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).parents[1] / "docs"


def program(name: str) -> ModuleType:
    """One of docs/*.py, imported once."""
    whole = f"docs_{name}"
    if whole not in sys.modules:
        spec = importlib.util.spec_from_file_location(whole, DOCS / f"{name}.py")
        assert spec is not None and spec.loader is not None
        sys.modules[whole] = importlib.util.module_from_spec(spec)  # where dataclasses look for their own
        spec.loader.exec_module(sys.modules[whole])
    return sys.modules[whole]
