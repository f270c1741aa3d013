"""The figures of the categorical VAE: curves over training, and what trained models draw."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from safetensors.torch import load_file

from catnat_lab.heads import is_natural
from catnat_lab.report.curves import Curve, CurvePanel, draw_curve, focus_on, names_of
from catnat_lab.report.drawing import blank, in_look, in_panels, key, label_left, legend
from catnat_lab.report.svg import serialize
from catnat_lab.report.vae_results import Results
from catnat_lab.vae.networks import NETWORKS
from catnat_lab.vae.objective import one_hot
from catnat_lab.vae.presets import sizes
from catnat_lab.vae.search import SHOWN, study_name
from catnat_lab.vae.stack import Run, Stack


def curve_panels(results: Results, measure: str) -> list[CurvePanel]:
    """One panel a cell and kind of data, one curve a head; of nodes outside the range only the heads' that have one."""
    settings, panels = results.settings, []
    for data in settings["data"]:
        for cell in settings["cells"]:
            curves = {}
            for head in settings["heads"]:
                if measure == "dead" and not is_natural(head):
                    continue
                final = results.stage(data, cell, head, "final")
                runs = [trial.record["curve"] for trial in final if trial.record.get("curve", {}).get("step")]
                if runs:
                    curves[head] = Curve.of_runs(runs[0]["step"], [run[measure] for run in runs])
            if curves:
                n, k = sizes(cell)
                panels.append(CurvePanel(f"{data}, N = {n}, K = {k}", curves))
    return panels


@in_look
def draw_curves(panels: Sequence[CurvePanel], label: str, *, focus: bool = True) -> Figure:
    """A measure against training steps, one panel a cell."""
    figure, every = in_panels(len(panels))
    for axes, panel in zip(every, panels, strict=True):
        for name, curve in panel.curves.items():
            draw_curve(axes, name, curve)
        if focus:
            focus_on(axes, panel)
        axes.set(title=panel.group, xlabel="training step")
        axes.xaxis.set_major_locator(MaxNLocator(4))
    label_left(every, label)
    legend(figure, [key(name) for name in names_of(panel.curves for panel in panels)])
    return figure


def curves(panels: Sequence[CurvePanel], label: str, *, focus: bool = True) -> str:
    """Its SVG."""
    return serialize(draw_curves(panels, label, focus=focus), f"{label} over training")


# -- pictures ----------------------------------------------------------------------------------------------------


def pictures(results: Results, folder: Path) -> str | None:
    """The SVG of the first cell that has models of every head."""
    settings = results.settings
    for data in settings["data"]:
        for cell in settings["cells"]:
            names = [study_name(settings["table"], data, cell, head) for head in settings["heads"]]
            paths = [folder / f"{name.replace(' ', '-')}.safetensors" for name in names]
            if all(path.exists() for path in paths):
                sheets = {
                    h: sheet(p, settings["table"], cell, h) for h, p in zip(settings["heads"], paths, strict=True)
                }
                return serialize(draw_sheets(sheets, f"{data}, {cell}"), "Pictures by trained models")
    return None


@torch.no_grad()
def sheet(path: Path, table: str, cell: str, head: str) -> NDArray[np.float64]:
    """Five rows of pictures by one trained model: images, reconstructions, samples (two rows), a traversal."""
    variables, classes = sizes(cell)
    network = "dense" if table == "mlp" else "convolutional"
    stack = Stack([Run("", head, 0.0, 0)], NETWORKS[network](variables, classes), "sgd", torch.device("cpu"))
    held = load_file(path)
    images = held.pop("images").float().unsqueeze(0) / 255  # [1, SHOWN, 784]
    stack.put({name: value.unsqueeze(0) for name, value in held.items()})
    views = stack.views()
    stream = torch.Generator().manual_seed(0)
    coded = stack.log_probs(stack.scores(images, views, training=False)).argmax(-1)  # [1, B, N]
    drawn = torch.randint(classes, (1, 2 * SHOWN, variables), generator=stream)
    # the variable whose class matters most for the first image, set to classes in turn
    steps = torch.linspace(0, classes - 1, SHOWN).round().long()
    walks = []
    for variable in range(variables):
        walk = coded[:, :1].repeat(1, SHOWN, 1)
        walk[0, :, variable] = steps
        walks.append(walk)
    changed = [_decoded(stack, views, walk, classes) for walk in walks]
    best = max(changed, key=lambda pixels: float(pixels.var(1).mean()))
    rows = torch.cat((images, _decoded(stack, views, coded, classes), _decoded(stack, views, drawn, classes), best), 1)
    grid = rows.view(5, SHOWN, 28, 28).permute(0, 2, 1, 3).reshape(5 * 28, SHOWN * 28)
    return np.asarray(grid.numpy(), dtype=float)


def _decoded(stack: Stack, views: list[torch.Tensor], index: torch.Tensor, classes: int) -> torch.Tensor:
    return torch.sigmoid(stack.decode(one_hot(index, classes), views, training=False))


@in_look
def draw_sheets(sheets: dict[str, NDArray[np.float64]], title: str) -> Figure:
    """The models' pictures side by side."""
    across = 2 if len(sheets) in (2, 4) else min(3, len(sheets))
    down = -(-len(sheets) // across)
    figure = blank(2.3 * down * 3 / max(2, across))
    every = list(figure.subplots(down, across, squeeze=False).flat)
    for axes in every[len(sheets) :]:
        axes.remove()
    for axes, (name, picture) in zip(every, sheets.items(), strict=False):
        axes.imshow(picture, cmap="gray_r", vmin=0, vmax=1, interpolation="none")
        axes.set(title=f"{name} ({title})", xticks=[], yticks=[])
        axes.grid(visible=False)
    return figure
