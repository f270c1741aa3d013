"""The report of the categorical VAE, from what the study and the kept models hold and nothing else."""

import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from catnat_lab import search
from catnat_lab.experiment import Results
from catnat_lab.heads import is_natural
from catnat_lab.report.figures import draw_pictures
from catnat_lab.report.page import PageFigure, Report, paper_rows, printed, write_pages
from catnat_lab.report.study import Place, by_panel, is_at_an_end, learning_curves, points, rows, searches
from catnat_lab.report.table import Cell, Column, Table
from catnat_lab.stats import paired, summarize
from catnat_lab.studies import Study
from catnat_lab.vae.model import NETWORKS, Autoencoders, one_hot
from catnat_lab.vae.study import NOTE, PAPER, SHOWN, SOURCE, TABLES, nearest, sizes, study_name
from catnat_lab.vae.train import Run

FAR = 30.0  # nats
PAPER_FILES = {"adam": "vae_adam.csv", "sgd": "vae_sgd.csv", "mlp": "vae_mlp_elbo.csv"}
PAPER_SEEDS = 5
NAMES = {"adam": "convolutional VAE, Adam", "sgd": "convolutional VAE, SGD", "mlp": "dense VAE, score function"}
Paper = dict[tuple[str, str, str], tuple[float, float, bool]]  # by data, cell and head
METRICS = ("nll", "elbo", "elbo_paper", "bce", "kl", "validation")
# by table: measures, their names, whether lower is better; the first is the paper's
MEASURES = {
    "adam": (("nll", "test negative log-likelihood", True),),
    "sgd": (("nll", "test negative log-likelihood", True),),
    "mlp": (
        ("elbo_paper", "ELBO as the paper tabulates it, without −N log K", False),
        ("elbo", "ELBO, with −N log K", False),
    ),
}
LENGTH = (
    "The paper does not say how long it trained, which rate of its refined grid (0.0045 to 0.02) each head took, nor "
    "whether rates fell; ours stay constant for the steps in the title, and after fewer than 24,000 of them the "
    "temperature has not yet come down to 0.5."
)
SPARSE = (
    "Sparsemax gives codes probability 0, which importance samples never reach: its likelihood is a bound that more "
    "samples do not close."
)


def load(study: Study) -> Results:
    settings = study.note(NOTE)
    cells = dict.fromkeys((*settings["cells"], *settings["searched"]))
    places = product(settings["data"], cells, settings["heads"])
    trials = {place: study.finished(study_name(settings["table"], *place)) for place in places}
    source = study.note(SOURCE)["source"]  # of the digits
    return Results(settings | {"source": source}, trials, study.note("vae provenance") or {})


def tables_of(results: Results) -> Iterator[Table]:
    """Our final seeds, one table a measure; beside the first stand the paper's."""
    settings = results.settings
    placed, is_grid = _places(settings["data"], settings["cells"])
    for number, (measure, name, lower) in enumerate(MEASURES[settings["table"]]):
        paper = {} if number else paper_of(settings["table"])
        as_in_paper = settings["table"] == "mlp" and settings.get("baseline", "constant") == "constant"
        better = "lower is better" if lower else "higher is better"
        yield Table(
            title=f"{NAMES[settings['table']]}, {settings['steps']:,} steps: {name}; {better}",
            measure=name if lower else "ELBO",
            group_name="N" if is_grid else "N x K",
            groups=tuple(dict.fromkeys(group for group, _ in placed.values())),
            lines=tuple(settings["heads"]),
            columns=tuple(Column(each, each, 1, lower) for each in dict.fromkeys(each for _, each in placed.values())),
            cells={
                (group, head, column): Cell(results.final((*place, head), measure), *paper.get((*place, head), ()))
                for place, (group, column) in placed.items()
                for head in settings["heads"]
            },
            paper_count=PAPER_SEEDS,
            compares_values=as_in_paper and settings["steps"] == PAPER["mlp"].steps,
            unit="nat",
        )


def _places(kinds: list[str], cells: list[str]) -> tuple[dict[tuple[str, str], tuple[str, str]], bool]:
    """Where the numbers of a kind of data and a cell stand, as group and column; whether the cells are a grid.

    As in the paper where they are a grid of N by K; else a group a cell, lest most places stay empty.
    """
    variables, classes = (set(numbers) for numbers in zip(*map(sizes, cells), strict=True))
    is_grid = len(classes) > 1 and len(cells) == len(variables) * len(classes)
    placed = {}
    for data, cell in product(kinds, sorted(cells, key=sizes) if is_grid else cells):
        n, k = sizes(cell)
        placed[data, cell] = (f"{n}", f"{data}, K = {k}") if is_grid else (f"{n} x {k}", data)
    return placed, is_grid


def paper_of(table: str) -> Paper:
    return {
        (row["data"], f"{row['n_variables']}x{row['n_categories']}", row["head"]): printed(row)
        for row in paper_rows(PAPER_FILES[table])
    }


def write_report(results: Results, folder: Path) -> tuple[Path, tuple[Table, ...]]:
    report = Report(
        title=f"Categorical VAE beside the paper: {NAMES[results.settings['table']]}",
        summary=summary_of(results),
        provenance=results.provenance,
        tables=tuple(tables_of(results)),
        remarks=tuple(remarks_of(results)),
        figures=tuple(figures_of(results, folder)),
    )
    table = {"table": results.settings["table"]}
    values = (table | row for row in rows(results, _named, METRICS))
    return write_pages(report, folder, {"values.csv": values, "curves.csv": curves_of(results)})


def summary_of(results: Results) -> str:
    settings, count = results.settings, results.settings.get("search_seeds", 1)
    if len(settings["rates"]) == 1 and not settings["refined"]:
        found = f"All have the rate {settings['rates'][0]:g}, and {settings['seeds']} seeds."
    else:
        wider = "; a grid whose best rate is at its end is widened" if settings.get("widen") else ""
        found = (
            f"Rates are chosen by the bound on validation images after {settings['search_steps']:,} steps, the mean of "
            f"{count} seed{'s' if count > 1 else ''}, on the cells {', '.join(settings['searched'])}{wider}; then "
            f"{settings['seeds']} other seeds are trained at the chosen rate."
        )
    if (baseline := settings.get("baseline", "constant")) != "constant":
        found = f"The score function's baseline is {baseline}; the paper's is constant. {found}"
    return (
        f"Autoencoders of digits ({settings['source']}), with N categorical variables of K classes, trained for "
        f"{settings['steps']:,} steps of {settings['batch']} images, by {', '.join(settings['heads'])}. {found} Test "
        f"images are judged by {settings['samples']} samples of the posterior each. {results.finished()} trials are "
        "finished."
    )


def _named(place: Place) -> dict[str, Any]:
    data, cell, head = place
    n, k = sizes(cell)
    return {"data": data, "variables": n, "classes": k, "head": head}


def curves_of(results: Results) -> Iterator[dict[str, Any]]:
    """One record a point of a final run's curve: minus the bound, and the share of nodes outside the natural range."""
    measures = {"minus_elbo_train": "train", "minus_elbo_validation": "validation", "outside": "dead"}
    for point in points(results, _named, ("rate", "seed"), measures):
        yield point if is_natural(point["head"]) else point | {"outside": ""}


def remarks_of(results: Results) -> list[str]:
    """Natural beside sigmoid, what went astray, rates, nodes outside their range, and what the paper leaves open."""
    found = [_paper_by_sigmoid(results), _collapsed(results), _rates(results), _outside(results)]
    if results.settings["table"] != "mlp":
        found += [LENGTH, SPARSE if "sparsemax" in results.settings["heads"] else ""]
    return [text for text in found if text]


def _paper_by_sigmoid(results: Results) -> str:
    """Cell by cell: seeds of a cell share first weights, and cells are what one would want to generalise to."""
    settings, gaps = results.settings, []
    measure = MEASURES[settings["table"]][0][0]
    for place in product(settings["data"], settings["cells"]):
        paper, sigmoid = (results.final((*place, head), measure) for head in ("catnat-paper", "catnat-sigmoid"))
        if paper and sigmoid and all(map(math.isfinite, paper + sigmoid)):
            gaps.append(summarize(paper).mean - summarize(sigmoid).mean)
    if len(gaps) < 3:
        return ""
    p = paired(gaps, [0.0] * len(gaps))
    return (
        f"catnat-paper minus catnat-sigmoid, means of {len(gaps)} cells: {summarize(gaps).mean:+.2f} on average, "
        f"{min(gaps):+.2f} to {max(gaps):+.2f} (t-test over the cells, p = {p:.2g})."
    )


def _collapsed(results: Results) -> str:
    """Seeds far behind the best of all heads in their cell, and what became of them."""
    (measure, _, lower), told = MEASURES[results.settings["table"]][0], []
    best: dict[tuple[str, str], float] = {}
    finals = {place: [t.metrics for t in results.stage(place, "final")] for place in results.trials}
    for (data, cell, _), runs in finals.items():
        reached = [run[measure] for run in runs if math.isfinite(run[measure])]
        known = [best[data, cell]] if (data, cell) in best else []
        if reached or known:
            best[data, cell] = (min if lower else max)(reached + known)
    for (data, cell, head), runs in finals.items():
        far = [run for run in runs if abs(run[measure] - best.get((data, cell), math.nan)) > FAR]
        if far:
            n, k = sizes(cell)
            those = ", ".join(f"{run[measure]:.1f} with KL {run['kl']:.1f}" for run in far)
            told.append(f"{head} {data} {cell}, {len(far)} of {len(runs)} (KL at most {n * math.log(k):.1f}): {those}")
    return f"Seeds more than {FAR:g} nats behind the best of any head in their cell: {'. '.join(told)}." if told else ""


def _rates(results: Results) -> str:
    """By searched cell, with the cells that take its rates."""
    settings, told = results.settings, []
    for cell in settings["searched"]:
        takers = [other for other in settings["cells"] if nearest(other, settings["searched"]) == cell != other]
        chosen = []
        for head in settings["heads"]:
            place = (settings["data"][0], cell, head)
            if tried := results.stage(place, *search.SEARCHING):
                means, best = search.by_rate(tried), search.best_rate(tried)
                finals = [(data, other, head) for data in settings["data"] for other in (cell, *takers)]
                used = next((trial.config["rate"] for one in finals for trial in results.stage(one, "final")), None)
                notes = ["the end of its grid"] if is_at_an_end(best, means) else []
                notes += ["so far"] if used is None else []
                notes += [f"a search that went on later: {best:g}"] if used not in (None, best) else []
                chosen.append(f"{head} {used or best:g}" + (f" ({', '.join(notes)})" if notes else ""))
        also = f", also for {' '.join(takers)}" if takers else ""
        told += [f"{cell}{also}: {', '.join(chosen)}"] if chosen else []
    return f"Chosen rates. {'. '.join(told)}." if told else ""


def _outside(results: Results) -> str:
    told = []
    for head in filter(is_natural, results.settings["heads"]):
        final = [t for place in results.trials if place[2] == head for t in results.stage(place, "final")]
        curves = [t.record.get("curve", {}).get("dead") for t in final]
        shares = [curve[-1] for curve in curves if curve and math.isfinite(curve[-1])]
        told += [f"{head} {100 * min(shares):.1f} to {100 * max(shares):.1f}%"] if shares else []
    return f"Nodes outside the natural range at the end of training: {', '.join(told)}." if told else ""


def figures_of(results: Results, folder: Path) -> Iterator[PageFigure]:
    """Learning curves, nodes outside the natural range, searches, and what the first models make of digits."""
    heads, cells = results.settings["heads"], titled(results, "cells")
    caption = (
        "Minus the bound on validation images, one sample each: mean over the final seeds, one deviation around it. "
        "The scale fits the second half of training."
    )
    finals = by_panel(results, cells, heads, "final")
    yield from learning_curves(finals, "validation", caption, "minus ELBO (validation)")
    caption = (
        "Share of nodes whose score lies outside the natural range. There catnat-paper has no slope, and catnat that "
        "of the range's ends."
    )
    ranged, title = by_panel(results, cells, filter(is_natural, heads), "final"), "Nodes outside the range"
    yield from learning_curves(ranged, "dead", caption, "share of nodes outside", title, focus=False)
    caption = (
        "Minus the bound on validation images against the rate: a point for every run of the search, a line through "
        "their means, and at the bottom the rates of the final runs."
    )
    tried = by_panel(results, titled(results, "searched"), heads, *search.SEARCHING)
    yield from searches(tried, finals, "validation", caption)
    if sheets := sheets_of(results, folder / "models"):
        caption = (
            "Of the first final seed, for every head: test images and below them their reconstructions; images of "
            "uniformly drawn classes; and one image with one variable set to each of its classes in turn."
        )
        across = 2 if len(sheets) in (2, 4) else 3
        yield PageFigure("Reconstructions, samples and a traversal", caption, draw_pictures(sheets, "gray_r", across))


def titled(results: Results, which: str) -> dict[str, Place]:
    """The data and cells that are searched, or trained at the end, by the titles of their panels."""
    places = product(results.settings["data"], results.settings[which])
    return {"{}, N = {}, K = {}".format(data, *sizes(cell)): (data, cell) for data, cell in places}


def sheets_of(results: Results, folder: Path) -> dict[str, NDArray[Any]]:
    """Pictures by the models of the first cell that has one of every head."""
    settings = results.settings
    for data, cell in product(settings["data"], settings["cells"]):
        names = {head: study_name(settings["table"], data, cell, head).replace(" ", "-") for head in settings["heads"]}
        paths = {head: folder / f"{name}.safetensors" for head, name in names.items()}
        if all(path.exists() for path in paths.values()):
            return {f"{h} ({data}, {cell})": sheet(path, settings["table"], cell, h) for h, path in paths.items()}
    return {}


@torch.no_grad()
def sheet(path: Path, table: str, cell: str, head: str) -> NDArray[Any]:
    """Five rows of pictures by one trained model: images, reconstructions, samples (two rows), a traversal."""
    variables, classes = sizes(cell)
    model = NETWORKS[TABLES[table][0]](variables, classes)
    stack = Autoencoders([Run("", head, 0.0, 0)], model, torch.device("cpu"))
    held = load_file(path)
    images = held.pop("images").float().unsqueeze(0) / 255  # [1, SHOWN, 784]
    stack.put({name: value.unsqueeze(0) for name, value in held.items()})
    views = stack.views()

    def decoded(index: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(stack.decode(one_hot(index, classes), views, training=False))

    coded = stack.log_probs(stack.scores(images, views, training=False)).argmax(-1)  # [1, B, N]
    drawn = torch.randint(classes, (1, 2 * SHOWN, variables), generator=torch.Generator().manual_seed(0))
    walks = []  # one variable of the first image, set to classes in turn
    for variable in range(variables):
        walk = coded[:, :1].repeat(1, SHOWN, 1)
        walk[0, :, variable] = torch.linspace(0, classes - 1, SHOWN).round().long()
        walks.append(decoded(walk))
    best = max(walks, key=lambda pixels: float(pixels.var(1).mean()))  # the one that matters most
    rows = torch.cat((images, decoded(coded), decoded(drawn), best), 1)
    grid = rows.view(5, SHOWN, 28, 28).permute(0, 2, 1, 3).reshape(5 * 28, SHOWN * 28)
    return np.asarray(grid.numpy(), dtype=float)
