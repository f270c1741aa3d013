"""A long list of cases, of which `make test` runs a part and `make test-all` the whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def thinned(cases: Iterable[Any], turn: int = 0, every: int = 3, quick: Collection[Any] | None = None) -> list[Any]:
    """All cases; the quick run has one in ``every``, and in a product of axes each value of each axis at least once.

    With another ``turn`` it is other ones: give each test its own, so that each case is in some test. With ``quick`` it
    is those and no other.
    """
    several = [case if isinstance(case, tuple) else (case,) for case in cases]
    if quick is None:
        step = min(every, len(several))
        chosen = covering(several, {i for i in range(len(several)) if (i + turn) % step == 0})
    else:
        named = {repr(case if isinstance(case, tuple) else (case,)) for case in quick}  # arrays have no equality
        chosen = {i for i, case in enumerate(several) if repr(case) in named}
        assert len(chosen) == len(named), "a case that there is not"
    return [pytest.param(*case, marks=() if i in chosen else pytest.mark.slow) for i, case in enumerate(several)]


def covering(several: list[tuple[Any, ...]], chosen: Collection[int] = ()) -> set[int]:
    """The chosen places, and as few more as it takes to have each value of each axis."""
    quick = set(chosen)
    values = [set(enumerate(map(repr, case))) for case in several]
    for axis, names in enumerate(zip(*(map(repr, case) for case in several), strict=True)):
        if len(set(names)) > len(names) / 2:  # it tells the cases apart, and would keep them all
            values = [{value for value in some if value[0] != axis} for some in values]
    missing: set[tuple[int, str]] = set().union(*values) - set().union(*(values[i] for i in quick))
    while missing:  # the case that has most of them, the first of several
        best = max(range(len(several)), key=lambda i: len(missing & values[i]))
        quick.add(best)
        missing -= values[best]
    return quick
