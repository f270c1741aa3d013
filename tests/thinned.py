"""A long list of cases, of which `make test` runs a part and `make test-all` the whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def thinned(cases: Iterable[Any], turn: int = 0, every: int = 3) -> list[Any]:
    """All cases; the quick run has one in ``every``, and in a product of axes each value of each axis at least once.

    With another ``turn`` it is other ones: give each test its own, so that each case is in some test.
    """
    several = [case if isinstance(case, tuple) else (case,) for case in cases]
    step = min(every, len(several))
    quick = {i for i in range(len(several)) if (i + turn) % step == 0}
    for axis in zip(*several, strict=True):
        names = [repr(value) for value in axis]
        if len(set(names)) <= len(names) / 2:  # else it tells the cases apart, and would keep them all
            quick |= {names.index(name) for name in set(names) - {names[i] for i in quick}}
    return [pytest.param(*case, marks=() if i in quick else pytest.mark.slow) for i, case in enumerate(several)]
