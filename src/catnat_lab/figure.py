"""Loss landscapes with gradient descent on them, and Fisher matrices: `catnat figure`.

The setting is the paper's Figure 1: three classes, the uniform distribution as target, cross-entropy as loss. Every
trajectory starts from one of the same six distributions, so that the parameterizations differ and nothing else does.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure
from torch import Tensor

import catnat
import catnat.torch as ct
from catnat_lab import heads as lab
from catnat_lab.errors import UserError

RATE = 0.5  # one learning rate for all, small enough that every trajectory is smooth
STEPS = 200
CLOSE = 1e-3  # how near the least loss, log 3, counts as arrived
START = (0.90, 0.08, 0.02)  # and its other five orders, so that no class is favoured
EXAMPLE = (0.7, 0.2, 0.1)  # where the Fisher matrices are printed
LEVELS = [0, 0.003, 0.03, 0.1, 0.25, 0.5, 0.8, 1.2, 1.7, 2.3, 3]  # of loss above the least
# Two orthonormal directions in the plane of logits that sum to zero.
PLANE = torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]]) / torch.tensor([[2.0], [6.0]]).sqrt()


@dataclass(frozen=True)
class Head:
    """A way from scores to three log-probabilities, its inverse, and how its scores lie in the drawing."""

    name: str
    note: str
    axes: tuple[str, str]
    log_probs: Callable[[Tensor], Tensor]
    scores_of: Callable[[Tensor], Tensor]
    window: float  # half the width of the drawing
    plane: Tensor | None = None  # [2, S] the drawing's axes in terms of the scores; None: the scores themselves
    box: tuple[Tensor, Tensor] | None = None  # the range beyond which there is no gradient


def heads() -> list[Head]:
    """Softmax twice, as it is used and as a slice with as many scores as catnat; catnat twice."""
    sigmoid, natural = lab.head("catnat-sigmoid", 3), lab.head("catnat-paper", 3)
    centers = torch.tensor(catnat.Parameterization(3, catnat.Natural(tail=0.0)).centers, dtype=torch.float32)
    box = (centers - math.pi, centers + math.pi)
    axes = ("$s_1$ (+: class 0, −: the others)", "$s_2$ (+: class 2, −: class 1)")
    beyond = "both its scores; hatched: beyond their range, where the gradient is 0"
    return [
        Head(
            "softmax, 3 logits",
            "all free, seen in the slice $z_0 + z_1 + z_2 = 0$, which descent never leaves",
            (r"$(z_0 - z_1)\,/\,\sqrt{2}$", r"$(z_0 + z_1 - 2 z_2)\,/\,\sqrt{6}$"),
            lambda z: torch.log_softmax(z, -1),
            lambda p: p.log() - p.log().mean(-1, keepdim=True),
            window=3.6,
            plane=PLANE,
        ),
        Head(
            "softmax, 2 logits",
            "the slice $z_2 = 0$, with $z_2$ held there: as many scores as catnat",
            ("$z_0$", "$z_1$"),
            lambda z: torch.log_softmax(torch.nn.functional.pad(z, (0, 1)), -1),
            lambda p: p[..., :2].log() - p[..., 2:].log(),
            window=4.6,
        ),
        Head("catnat sigmoid", "both its scores", axes, sigmoid.log_probs, sigmoid.scores_from_probs, 4.6),
        Head("catnat natural", beyond, axes, natural.log_probs, natural.scores_from_probs, 3.7, box=box),
    ]


def excess(head: Head, scores: Tensor) -> Tensor:
    """Cross-entropy against the uniform target, less its least value: [..., S] to [...]."""
    return -head.log_probs(scores).mean(-1) - math.log(3)


def descend(head: Head, probs: Tensor) -> tuple[Tensor, Tensor]:
    """Plain gradient descent from distributions [N, 3]: the scores [STEPS+1, N, S] and the losses [STEPS+1, N]."""
    scores, path, losses = head.scores_of(probs), [], []
    for _ in range(STEPS + 1):
        scores = scores.detach().requires_grad_()
        loss = excess(head, scores)
        path.append(scores.detach())
        losses.append(loss.detach())
        scores = scores - RATE * torch.autograd.grad(loss.sum(), scores)[0]
    return torch.stack(path), torch.stack(losses)


def draw(axes: Axes, head: Head, path: Tensor, resolution: int) -> ContourSet:
    """One panel: the landscape, the trajectories, and the minimum, which every head has at zero."""
    middle = torch.zeros(2) if head.box is None else (head.box[0] + head.box[1]) / 2
    x, y = torch.linspace(-head.window, head.window, resolution) + middle[:, None]
    grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)  # [y, x, 2]
    loss = excess(head, grid if head.plane is None else grid @ head.plane)
    if head.box is not None:
        outside = ((grid < head.box[0]) | (grid > head.box[1])).any(-1)
        beyond = axes.contourf(x, y, outside, levels=[0.5, 1.5], colors=["0.97"], hatches=["///"], zorder=0)
        beyond.set(edgecolor="0.7", linewidth=0)
        loss = torch.where(outside, torch.nan, loss)
    # a band a colour, growing darker: the order is legible without hue
    colors = colormaps["YlGnBu"](torch.linspace(0, 0.72, len(LEVELS)).numpy())
    filled = axes.contourf(x, y, loss, levels=LEVELS, colors=colors, extend="max")
    axes.contour(x, y, loss, levels=LEVELS, colors="white", linewidths=0.7)
    drawn = path if head.plane is None else path @ head.plane.T  # [STEPS+1, N, 2]
    for line in drawn.unbind(1):
        axes.plot(*line.T, color="black", linewidth=1.2, marker=".", markersize=4)
    axes.plot(*drawn[0].T, "o", color="white", markeredgecolor="black", markersize=7, zorder=4)
    axes.plot(0, 0, "*", color="#D55E00", markeredgecolor="white", markersize=17, zorder=5)
    axes.set(xlabel=head.axes[0], ylabel=head.axes[1], aspect="equal")
    axes.set_title(head.name, fontweight="bold", pad=21)
    axes.text(0.5, 1.02, head.note, transform=axes.transAxes, ha="center", fontsize=9)
    return filled


def condition_number(matrix: Tensor) -> float:
    """Largest by smallest eigenvalue; softmax's, which always has a 0, without it."""
    values = torch.linalg.eigvalsh(matrix)
    return float(values[-1] / values[values > 1e-12 * values[-1]][0])


def fisher_report(columns: Sequence[Head]) -> str:
    """Fisher matrices at one distribution side by side, each summed from its definition, with condition numbers."""
    p = torch.tensor(EXAMPLE, dtype=torch.float64)
    labels = ("", "Fisher matrix", "", "", "condition number, of eigenvalues > 0", "the same, diagonal scaled to 1")
    texts = [[f"  {label:38}" for label in labels]]
    for head in columns:
        fisher = ct.fisher_matrix(head.log_probs, head.scores_of(p))
        scale = fisher.diagonal().rsqrt()
        rows = ["".join(f"{value + 0.0:9.4f}" for value in row) for row in fisher.round(decimals=4).tolist()]
        rows += [""] * (3 - len(rows))
        rows += [f"{condition_number(m):9.2f}" for m in (fisher, scale[:, None] * fisher * scale)]
        texts.append([f"{cell:{9 * len(fisher) + 3}}" for cell in (f"   {head.name}", *rows)])
    return "\n".join("".join(cells).rstrip() for cells in zip(*texts, strict=True))


def step_table(names: Sequence[str], starts: Tensor, losses: Sequence[Tensor]) -> str:
    """The first step at which each head is close to the minimum, from each start."""
    lines = [f"  {'from p =':18}" + "".join(f"{name:>20}" for name in names)]
    for row, start in enumerate(starts.tolist()):
        close = [(loss[:, row] < CLOSE).nonzero() for loss in losses]
        steps = [str(int(found[0])) if len(found) else f"over {STEPS}" for found in close]
        lines.append("  ({:.2f}, {:.2f}, {:.2f})".format(*start) + "".join(f"{count:>20}" for count in steps))
    return "\n".join(lines)


def run(output: Path, *, resolution: int = 301) -> Path:
    """Print the numbers, draw the figure with ``resolution`` points a side; its path."""
    target = output / "landscapes.png"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()  # better to find out now
    except OSError as problem:
        raise UserError(f"cannot write {target}: {problem.strerror}") from None

    every = heads()
    print(f"Fisher information of the scores at p = {EXAMPLE}\n\n{fisher_report([every[0], *every[2:]])}")
    print("\nSoftmax's scores are coupled. Catnat's are not: dividing by its diagonal leaves the identity.")

    starts = torch.tensor(list(itertools.permutations(START)))  # [6, 3]
    runs = [descend(head, starts) for head in every]
    print(f"\nSteps of gradient descent until the loss is within {CLOSE:g} of its minimum, log 3\n")
    print(step_table([head.name for head in every], starts, [losses for _, losses in runs]))
    print(f"\nThe rate is {RATE:g} for all, and scores differ in scale: this describes landscapes and ranks no method.")

    figure = Figure(figsize=(11, 12), layout="constrained")
    panels = figure.subplots(2, 2)
    for axes, head, (path, _) in zip(panels.flat, every, runs, strict=True):
        filled = draw(axes, head, path, resolution)
    bar = figure.colorbar(filled, ax=panels, location="bottom", shrink=0.7, aspect=50, pad=0.02, ticks=LEVELS)
    bar.set_label("loss above its minimum (nats)")
    bar.ax.set_xticklabels([f"{level:g}" for level in LEVELS])
    what = f"Gradient descent at rate {RATE:g}, a dot a step, from the same six distributions (circles) to the minimum"
    figure.suptitle(f"Cross-entropy of three classes against a uniform target\n{what} (star)")
    figure.savefig(target, dpi=150)
    print(f"\n{target}")
    return target
