"""The demo's page: one HTML file with the verdicts, the curves, and what the networks have learned."""

import html
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from catnat_lab.demo.study import Found
from catnat_lab.demo.tasks import HEADS
from catnat_lab.files import write
from catnat_lab.report.figures import inlined, styles

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>catnat: the demo</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1f2328 }}
svg {{ width: 100%; height: auto }} .small {{ color: #5b626b; font-size: .85rem }}</style></head>
<body><h1>Discrete latents, softmax and catnat</h1>
{sections}
<p class="small">{origin}</p></body></html>
"""


def write_page(found: Found, folder: Path, facts: dict[str, str]) -> Path:
    """The page of a demo that is done."""
    sections = []
    for (task, kind), sentence in zip(found.demo.tasks.items(), found.sentences(), strict=True):
        caption = "Whole: each fresh network. Dashed: the search, all rates. Right: the last value."
        figures = [(_curves(found, task), caption), *(_digits(found) if task == "digits" else _game(found))]
        drawn = "\n".join(
            f"{inlined(figure, caption, f'{task}{i}-')}<p class='small'>{html.escape(caption)}</p>"
            for i, (figure, caption) in enumerate(figures)
        )
        told = html.escape((kind.__doc__ or "").strip())
        verdict = f"After {kind.steps:,} steps: {html.escape(sentence)}"
        sections.append(f"<h2>{kind.name}</h2><p>{told}</p><p><b>{verdict}.</b></p>{drawn}")
    origin = "; ".join(f"{name}: {value}" for name, value in facts.items())
    return write(folder / "index.html", PAGE.format(sections="\n".join(sections), origin=html.escape(origin)))


def _curves(found: Found, task: str) -> Figure:
    figure = Figure(figsize=(8, 3), layout="constrained")
    axes, right = figure.subplots(1, 2, width_ratios=(3, 1))
    lasts = []
    for i, head in enumerate(HEADS):
        color = styles(HEADS)[head]["color"]
        for run in found.runs[task, head]:
            steps, values = zip(*run.record["curve"], strict=True)
            is_final = run.config["stage"] == "final"
            look: dict[str, Any] = (
                {"linewidth": 1.2} if is_final else {"linewidth": 0.7, "linestyle": "--", "alpha": 0.5}
            )
            axes.plot(steps, values, color=color, **look)  # a line per network
            lasts += values[-1]
        ends = found.values(task, head)
        right.plot([i] * len(ends), ends, "o", color=color, alpha=0.6)
        right.plot([i - 0.25, i + 0.25], [np.mean(ends)] * 2, color=color, linewidth=2)
        axes.plot([], [], color=color, label=head)
    if found.demo.tasks[task].lower_is_better:  # the first steps would flatten all that matters
        axes.set_ylim(min(lasts) - 3, median(lasts) + 40)
    axes.set(xlabel="steps", ylabel=found.demo.tasks[task].unit)
    axes.legend()
    right.set(xticks=range(len(HEADS)), xticklabels=list(HEADS), xlim=(-0.5, len(HEADS) - 0.5))
    return figure


def _game(found: Found) -> list[tuple[Figure, str]]:
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    for axes, head in zip(figure.subplots(1, len(HEADS)), HEADS, strict=True):
        table = np.array(found.runs["game", head][-1].record["shown"]["code"])
        axes.imshow(table, vmin=0, vmax=1, cmap="Blues")
        for (row, column), value in np.ndenumerate(table):
            axes.text(column, row, f"{100 * value:.0f}", ha="center", va="center", color="k" if value < 0.6 else "w")
        axes.set(title=head, xlabel="symbol of the message", ylabel="attribute")
    caption = (
        "The code that the agents invented: how many per cent of an attribute a symbol tells by itself. A column with "
        "one dark field is a symbol that names one attribute; a row without one is an attribute spread over several."
    )
    return [(figure, caption)]


def _digits(found: Found) -> list[tuple[Figure, str]]:
    pictures = Figure(figsize=(8, 3.2), layout="constrained")
    known = {head: found.runs["digits", head][-1].record["shown"] for head in HEADS}
    rows = [("unseen digits", known["catnat"]["digits"])]
    rows += [(f"{head}, decoded", known[head]["again"]) for head in HEADS]
    rows += [(f"{head}, from the prior", known[head]["drawn"]) for head in HEADS]
    for axes, (title, images) in zip(pictures.subplots(len(rows), 1), rows, strict=True):
        strip = np.concatenate([np.reshape(image, (20, 20)) for image in images], axis=1)
        axes.imshow(strip, cmap="gray_r", vmin=0, vmax=1)
        axes.set_ylabel(title, rotation=0, ha="right", va="center")
        axes.set(xticks=[], yticks=[])
    usage = Figure(figsize=(8, 2.4), layout="constrained")
    axes = usage.subplots()
    for head in HEADS:
        shares = np.array(known[head]["usage"])
        axes.plot(range(1, len(shares) + 1), 100 * shares, "o-", color=styles(HEADS)[head]["color"], label=head)
    axes.set(xlabel="class, by how often it is drawn", ylabel="% of draws, mean of variables", ylim=(0, None))
    axes.legend()
    return [(pictures, "Digits that were not trained on, their codes decoded, and codes drawn from the prior."),
            (usage, "How the classes are used: flat is all alike.")]  # fmt: skip
