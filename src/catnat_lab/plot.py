"""Pictures of a catnat as matplotlib axes: its tree, its activation, its Fisher matrix, its descent on the simplex.

The numbers come from the float64 oracle, so no framework is needed; the first picture imports matplotlib (extra
`plot`). Every function draws into ``ax``, where None makes a new figure, and returns the axes.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from catnat import Activation, Natural, Parameterization, Tree
from catnat_lab import reference
from catnat_lab.reference import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["tree", "activation", "fisher", "simplex"]

LIT, FAINT, BAR = "#c8553d", "#b0b0b0", "#1b6ca8"
MOST_LABELLED = 16  # classes; beyond, words would cover each other
QUANTITIES = ("probability", "log-odds", "information")
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 3**0.5 / 2]])  # where each of three classes is certain
STARTS = tuple(itertools.permutations((0.90, 0.08, 0.02)))  # all orders, so that no class is favoured


def tree(
    parameterization: Parameterization | Tree | int,
    probs: npt.ArrayLike | None = None,
    ax: Axes | None = None,
    *,
    lit: int | None = None,
) -> Axes:
    """The tree, with a score on every node; with ``probs``, the numbers on nodes and branches and a bar per class.

    Args:
        parameterization: a `catnat.Parameterization`, a `catnat.Tree`, or the number of classes.
        probs: [K] probabilities. A bar is as high as its class is probable, and the highest as a level of the tree.
        ax: where to draw.
        lit: a class whose path is drawn in colour.
    """
    pi = _resolve(parameterization)
    assert pi.tree is not None
    shape, count = pi.tree, pi.num_classes
    p = None if probs is None else _probabilities(probs, num_classes=count)
    if lit is not None and not 0 <= lit < count:
        raise IndexError(f"lit must lie in [0, {count - 1}] for {count} classes; got {lit}")
    way = set() if lit is None else {1, *(2 * node + bit for node, bit in shape.path(lit))}  # places that are lit
    level = 1.0 if p is None else float(p.max())
    x, y = _layout(shape, level)
    mass, scores = (None, None) if p is None else (reference.mass_below(p, pi), reference.scores_from_probs(p, pi))
    axes, labelled = _axes(ax), count <= MOST_LABELLED
    for place in range(2, 2 * count):
        node, (above, bit) = place >> 1, (shape.parents[place], place & 1)
        color, width = (LIT, 2.4) if place in way else (FAINT, 1.2)
        axes.plot([x[above], x[place]], [y[above], y[place]], color=color, linewidth=width, zorder=1)
        if labelled:
            named = f"a(s{node})" if bit else f"1 − a(s{node})"
            word = named if mass is None else f"{mass[place] / mass[above]:.2g}" if mass[above] > 0 else ""
            down = 0.6 if bit else 0.4  # apart, where siblings are close
            at = x[above] + down * (x[place] - x[above]), y[above] - down * level
            _write(axes, at, word, size=8, color=LIT if place in way else "0.4", edge="none")
    for node, place in enumerate(shape.node_places[1:].tolist() if labelled else [], start=1):
        word = f"s{node}" if scores is None else f"s{node}\n{_short(scores[node - 1])}"
        _write(axes, (x[place], y[place]), word, edge=LIT if place in way else FAINT, shape="circle")
    for k, place in enumerate(shape.class_places.tolist() if labelled else []):
        _write(axes, (x[place], y[place]), str(k), edge=LIT if k == lit else FAINT)
    floor = -level * shape.depth
    if p is not None:
        floor -= 1.4 * level
        below = x[shape.class_places]
        axes.bar(below, p, width=0.6, bottom=floor, color=[LIT if k == lit else BAR for k in range(count)])
        axes.vlines(below, floor + p, y[shape.class_places], color=FAINT, linewidth=0.8, linestyle=":", zorder=0)
        for k in range(count if labelled else 0):
            _write(axes, (below[k], floor - 0.15 * level), f"{p[k]:.2g}", size=8)
    axes.set(xlim=(-0.7, count - 0.3), ylim=(floor - 0.3 * level, 0.4 * level))
    axes.axis("off")
    return axes


def activation(
    activation: Activation | str,
    ax: Axes | None = None,
    *,
    quantity: str = "probability",
    scores: npt.ArrayLike | None = None,
    color: str | None = None,
    label: str | None = None,
) -> Axes:
    """What one node makes of its score, as a line. Dots show where the tails of a `catnat.Natural` begin.

    Args:
        activation: a `catnat.Activation`, or the name of one.
        ax: where to draw. Several activations may share one.
        quantity: ``"probability"`` of the right branch, its ``"log-odds"``, or the Fisher ``"information"``.
        scores: where to draw it; None goes a little beyond the probabilities 1% and 99%.
        color: of the line; None takes matplotlib's next.
        label: for a legend.
    """
    node = Parameterization(2, activation, center=0.0)
    of = node.activation
    assert isinstance(of, Activation)
    if quantity not in QUANTITIES:
        raise ValueError(f"quantity must be one of {', '.join(map(repr, QUANTITIES))}; got {quantity!r}")
    if scores is None:
        end = 1.25 * float(of.inverse(np.array(np.log(99.0)), np))
        scores = np.linspace(-end, end, 1001)
    x = _vector("scores", scores)
    axes = _axes(ax)
    (line,) = axes.plot(x, _of_node(x, node, quantity), color=color, label=label)
    if isinstance(of, Natural):
        joints = np.array([-1.0, 1.0]) * of.joint / of.gain
        joints = joints[(joints >= x.min()) & (joints <= x.max())]
        axes.plot(joints, _of_node(joints, node, quantity), ".", color=line.get_color())
    axes.set(xlabel="score", ylabel={"information": "Fisher information"}.get(quantity, quantity))
    return axes


def fisher(
    parameterization: Parameterization | int | str,
    probs: npt.ArrayLike,
    ax: Axes | None = None,
    *,
    limit: float | None = None,
) -> Axes:
    """The Fisher matrix at ``probs`` as a heat map: of a catnat's K-1 scores, or of softmax's K logits.

    Args:
        parameterization: how many classes, a `catnat.Parameterization` of them, or ``"softmax"``.
        probs: [K] probabilities above 0.
        ax: where to draw.
        limit: the entry that gets the strongest colour; None takes the largest. Give maps to compare the same.
    """
    pi = _resolve_head(parameterization)
    p = _probabilities(probs, num_classes=None if pi is None else pi.num_classes, certain=False)
    if pi is None:
        matrix = reference.softmax_fisher(np.log(p))
    else:
        matrix = reference.fisher_matrix(reference.scores_from_probs(p, pi), pi)
    most = max(float(np.abs(matrix).max(initial=0.0)), 1e-300) if limit is None else _positive("limit", limit)
    axes = _axes(ax)
    axes.imshow(matrix, cmap="RdBu_r", vmin=-most, vmax=most)
    for i, j in itertools.product(range(len(matrix)), repeat=2) if len(matrix) <= MOST_LABELLED else ():
        _write(axes, (j, i), _short(matrix[i, j]), color="white" if abs(matrix[i, j]) > 0.6 * most else "black")
    axes.set(xticks=[], yticks=[])
    return axes


def simplex(
    parameterization: Parameterization | int | str,
    starts: npt.ArrayLike = STARTS,
    target: npt.ArrayLike = (1 / 3, 1 / 3, 1 / 3),
    ax: Axes | None = None,
    *,
    rate: float = 0.5,
    steps: int = 200,
    color: str = LIT,
    label: str | None = None,
) -> Axes:
    """Plain gradient descent on the cross-entropy of three classes, seen as paths of probabilities.

    Args:
        parameterization: 3, a `catnat.Parameterization` of 3 classes, or ``"softmax"``.
        starts: [N, 3] distributions to start from, all above 0.
        target: [3] the distribution that has the least loss.
        ax: where to draw. Several parameterizations may share one.
        rate: the learning rate, in the scores.
        steps: how many.
        color: of the paths.
        label: of the paths, for a legend.
    """
    pi = _resolve_head(parameterization)
    if pi is not None and pi.num_classes != 3:
        raise ValueError(f"parameterization must have 3 classes, the corners of the simplex; it has {pi.num_classes}")
    goal = _probabilities(target, "target", num_classes=3)
    rows = np.atleast_2d(np.asarray(starts))
    first = np.stack([_probabilities(row, "starts", num_classes=3, certain=False) for row in rows])
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 0:
        raise ValueError(f"steps must be a whole number of at least 0; got {steps!r}")
    path = _descent(pi, first, goal, _positive("rate", rate), steps)
    axes = _axes(ax)
    axes.fill(*CORNERS.T, fill=False, color=FAINT, linewidth=1)
    for k, corner in enumerate(CORNERS):
        outside = CORNERS.mean(0) + 1.1 * (corner - CORNERS.mean(0))
        _write(axes, (outside[0], outside[1]), str(k))
    for i, line in enumerate((path @ CORNERS).swapaxes(0, 1)):
        axes.plot(*line.T, ".-", color=color, linewidth=1, markersize=3, label=label if i == 0 else None)
    axes.plot(*(first @ CORNERS).T, "o", color="white", markeredgecolor=color, markersize=6, zorder=3)
    axes.plot(*(goal @ CORNERS), "*", color="black", markersize=11, zorder=4)
    axes.set(xlim=(-0.12, 1.12), ylim=(-0.12, 0.99), aspect="equal")
    axes.axis("off")
    return axes


# -- numbers -----------------------------------------------------------------------------------------------------


def _layout(shape: Tree, level: float) -> tuple[Floats, Floats]:
    """[2K] x and y of every place: classes side by side, a node midway above its children, by one level."""
    size = 2 * shape.num_classes
    x, y, ends = np.zeros(size), np.zeros(size), np.zeros(size)  # ends: the first class below a place, from the left
    for place in range(2, size):
        above = shape.parents[place]
        y[place] = y[above] - level
        ends[place] = ends[above] + (shape.leaf_counts[place - 1] if place & 1 else 0)
    x[shape.class_places] = ends[shape.class_places]
    for node, place in reversed(list(enumerate(shape.node_places.tolist()))[1:]):
        x[place] = (x[2 * node] + x[2 * node + 1]) / 2
    return x, y


def _of_node(x: Floats, pi: Parameterization, quantity: str) -> Floats:
    """A quantity of the one node of two classes."""
    if quantity == "information":
        return reference.fisher_of_node(x[:, None], pi)[:, 0]
    log_left, log_right, _, _ = reference.activation(x[:, None], pi)
    return (np.exp(log_right) if quantity == "probability" else log_right - log_left)[:, 0]


def _descent(pi: Parameterization | None, first: Floats, goal: Floats, rate: float, steps: int) -> Floats:
    """[steps+1, N, 3] the probabilities on the way from ``first`` to ``goal``; of softmax where there is no ``pi``."""
    path, upstream = [first], np.broadcast_to(goal, first.shape)
    scores = np.log(first) if pi is None else reference.scores_from_probs(first, pi)
    for _ in range(steps):
        if pi is None:
            scores = scores + rate * (goal - path[-1])
            path.append(reference.softmax(scores))
        else:
            scores = scores + rate * reference.log_catnat_gradient(scores, upstream, pi)
            path.append(reference.catnat(scores, pi))
    return np.stack(path)


def _short(value: float) -> str:
    """Two digits, and none of a rounding."""
    return f"{round(float(value), 3) + 0.0:.2g}"  # + 0: no "-0"


def _write(
    axes: Axes,
    at: tuple[float, float],
    word: str,
    *,
    size: float = 9,
    color: str = "black",
    edge: str | None = None,
    shape: str = "round",
) -> None:
    """A word, in a white box where ``edge`` is its colour."""
    box = None if edge is None else {"boxstyle": f"{shape},pad=0.25", "facecolor": "white", "edgecolor": edge}
    axes.text(*at, word, ha="center", va="center", fontsize=size, color=color, bbox=box, zorder=2)


# -- arguments ---------------------------------------------------------------------------------------------------


def _resolve(given: Parameterization | Tree | int | str) -> Parameterization:
    """A `Parameterization` from one, from a tree or from the number of classes."""
    if isinstance(given, Parameterization):
        return given
    if isinstance(given, (str, Activation)):
        hint = f": write catnat.Parameterization(num_classes, {given!r})"
        expected = "the number of classes or a catnat.Parameterization"
        raise TypeError(f"parameterization must be {expected}; got {given!r}{hint}")
    return Parameterization(given.num_classes, tree=given) if isinstance(given, Tree) else Parameterization(given)


def _resolve_head(given: Parameterization | int | str) -> Parameterization | None:
    """The same, with None for ``"softmax"``."""
    return None if isinstance(given, str) and given == "softmax" else _resolve(given)


def _axes(ax: Axes | None) -> Axes:
    """``ax``, or the axes of a new figure."""
    try:
        from matplotlib import pyplot
        from matplotlib.axes import Axes
    except ImportError as error:
        raise ImportError("catnat_lab.plot needs matplotlib: pip install '.[plot]' in catnat's folder") from error
    if ax is not None and not isinstance(ax, Axes):
        raise TypeError(f"ax must be a matplotlib Axes or None; got {ax!r}")
    return pyplot.subplots(layout="constrained")[1] if ax is None else ax


def _vector(argument: str, given: npt.ArrayLike) -> Floats:
    """``given`` as a row of finite numbers, or raise."""
    try:
        values = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{argument} must be a sequence of numbers; got a {type(given).__name__}: {error}") from None
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"{argument} must be a row of finite numbers; got shape {values.shape}: {given!r}")
    return values


def _positive(argument: str, value: float) -> float:
    """``value`` where it is finite and above 0, or raise."""
    if not 0 < value < math.inf:
        raise ValueError(f"{argument} must be a finite number above 0; got {value!r}")
    return value


def _probabilities(
    given: npt.ArrayLike, argument: str = "probs", *, num_classes: int | None = None, certain: bool = True
) -> Floats:
    """``given`` as probabilities that sum to 1, or raise; without ``certain`` none may be 0."""
    p = _vector(argument, given)
    if num_classes not in (None, len(p)):
        raise ValueError(f"{argument} must hold {num_classes} probabilities; got {len(p)}")
    if (p < 0).any() or abs(p.sum() - 1) > 1e-5:  # as near as float32 has it
        raise ValueError(f"{argument} must be at least 0 and sum to 1; got {p.tolist()}, which sum to {p.sum():g}")
    if not certain and not p.all():
        raise ValueError(f"{argument} must be above 0: a class that never comes has no finite score; got {p.tolist()}")
    return p / p.sum()
