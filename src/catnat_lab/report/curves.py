"""Curves over training with bands around them, as the figures of every experiment show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from catnat_lab.report.svg import style


@dataclass(frozen=True)
class Curve:
    """A measure against training steps: the mean over seeds and the edges of a band around it."""

    steps: ArrayLike
    mean: ArrayLike
    low: ArrayLike
    high: ArrayLike

    @classmethod
    def of_runs(cls, steps: Sequence[float] | NDArray[Any], values: Sequence[Sequence[float]] | NDArray[Any]) -> Curve:
        """Mean ± one standard deviation over seeds, from values [seeds, steps]. A diverged run ends the curve.

        Runs of unequal length, as of a study that is not finished, are cut to the shortest.
        """
        length = min(len(steps), *(len(run) for run in values))
        runs = np.array([run[:length] for run in values], dtype=float)
        mean = runs.mean(0)
        spread = runs.std(0, ddof=1) if len(runs) > 1 else np.zeros_like(mean)
        return cls(steps[:length], mean, mean - spread, mean + spread)


@dataclass(frozen=True)
class CurvePanel:
    """The curves of one panel, by parameterization, and what the best possible model would reach."""

    group: str
    curves: Mapping[str, Curve]
    optimal: float | None = None


def draw_curve(axes: Axes, name: str, curve: Curve) -> None:
    """One parameterization's mean and its band."""
    look, steps = style(name), np.asarray(curve.steps, dtype=float)
    axes.fill_between(steps, curve.low, curve.high, color=look.colour, alpha=0.18, linewidth=0)
    often = max(1, len(steps) // 6)
    axes.plot(steps, curve.mean, color=look.colour, marker=look.marker, markevery=often, markersize=3.5, label=name)


def focus_on(axes: Axes, panel: CurvePanel) -> None:
    """Fit the panel to the second half of training: what parts the curves is near the optimum, not at the start."""
    edges = [np.asarray(edge, dtype=float) for curve in panel.curves.values() for edge in (curve.low, curve.high)]
    late = [edge[len(edge) // 2 :] for edge in edges]
    values = np.concatenate([*late, [np.nan if panel.optimal is None else panel.optimal]])
    values = values[np.isfinite(values)]
    if values.size and np.ptp(values) > 0:
        axes.set_ylim(values.min() - 0.1 * np.ptp(values), values.max() + 0.5 * np.ptp(values))  # with some descent


def names_of(parts: Iterable[Mapping[str, Any]]) -> list[str]:
    """All names in the order they first come."""
    return list(dict.fromkeys(name for part in parts for name in part))
