"""Interleaved timing: every round times each contender once, in turn, so that a slow moment hits all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Run = Callable[[], object]


@dataclass(frozen=True)
class Ratio:
    """Time of a contender by time of its rival: the median over rounds, and the quartiles."""

    median: float
    low: float
    high: float


def interleave(
    contenders: dict[str, Run], *, rounds: int, seconds: float, wait: Callable[[object], object] = lambda result: result
) -> dict[str, list[float]]:
    """Times of every contender, one a round, each the mean over as many calls as fit into ``seconds``.

    ``wait`` waits for a result that is still being computed, once a round: on a GPU calls follow one another without
    the host in between, and a wait after each would hide a part of the difference.
    """
    calls = {}
    for name, run in contenders.items():
        for _ in range(3):  # warm-up: caches, lazy tables, the allocator
            wait(run())
        started = time.perf_counter()
        wait(run())
        calls[name] = max(1, int(seconds / (time.perf_counter() - started)))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            started = time.perf_counter()
            for _ in range(calls[name]):
                result = run()
            wait(result)
            times[name].append((time.perf_counter() - started) / calls[name])
    return times


def ratio(ours: list[float], rival: list[float]) -> Ratio:
    """Round by round, then the median."""
    ratios = sorted(a / b for a, b in zip(ours, rival, strict=True))
    low, _, high = statistics.quantiles(ratios, n=4)
    return Ratio(statistics.median(ratios), low, high)
