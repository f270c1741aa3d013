"""A long list of cases, of which `make test` runs a part and `make test-all` the whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def thinned(cases: Iterable[Any], turn: int = 0, every: int = 3) -> list[Any]:
    """All cases, the quick run's one in ``every``. With another ``turn`` it is other ones: give each test its own."""
    several = [case if isinstance(case, tuple) else (case,) for case in cases]
    slow = pytest.mark.slow
    return [pytest.param(*case, marks=slow if (i + turn) % every else ()) for i, case in enumerate(several)]
