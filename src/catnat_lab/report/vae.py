"""The report of the categorical VAE, from what the study and the kept models hold and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from catnat_lab.report import PageFigure, Report, vae_figures, write_pages
from catnat_lab.report.vae_remarks import remarks_of
from catnat_lab.report.vae_results import NAMES, PROVENANCE, Results, curves_csv, load, tables_of, values_csv

__all__ = ["PROVENANCE", "Results", "load", "tables_of", "write_report"]


def write_report(results: Results, folder: Path) -> Path:
    """Write report.html, report.md, the values and the curves as CSV; the path of the page."""
    report = Report(
        title=f"Categorical VAE beside the paper: {NAMES[results.settings['table']]}",
        summary=summary_of(results),
        provenance=results.provenance,
        tables=tuple(tables_of(results)),
        remarks=remarks_of(results),
        figures=tuple(figures_of(results, folder)),
    )
    return write_pages(report, folder, {"values.csv": values_csv(results), "curves.csv": curves_csv(results)})


def summary_of(results: Results) -> str:
    """What was run, in a sentence or two."""
    settings = results.settings
    done = sum(len(trials) for trials in results.trials.values())
    return (
        f"Autoencoders of digits ({results.source}), with N categorical variables of K classes, trained for "
        f"{settings['steps']:,} steps of {settings['batch']} images, by {', '.join(settings['heads'])}. "
        f"{_rates(settings)} Test images are judged by {settings['samples']} samples of the posterior each. "
        f"{done} trials are finished."
    )


def _rates(settings: dict[str, Any]) -> str:
    if len(settings["rates"]) == 1 and not settings["refined"]:
        return f"All have the rate {settings['rates'][0]:g}, and {settings['seeds']} seeds."
    return (
        f"Rates are chosen by the bound on validation images after {settings['search_steps']:,} steps of "
        f"{'one seed' if (count := settings.get('search_seeds', 1)) == 1 else f'{count} seeds, by their mean,'} on the "
        f"cells {', '.join(settings['searched'])}; then {settings['seeds']} other seeds are trained at the chosen "
        "rate."
    )


def figures_of(results: Results, folder: Path) -> list[PageFigure]:
    """Learning curves, nodes outside the natural range, and what the first models make of digits."""
    made = []
    panels = vae_figures.curve_panels(results, "validation")
    if panels:
        caption = (
            "Minus the bound on validation images, one sample each: mean over the final seeds, one deviation around "
            "it. The scale fits the second half of training."
        )
        made.append(PageFigure("Learning curves", caption, vae_figures.curves(panels, "minus ELBO (validation)")))
    panels = vae_figures.curve_panels(results, "dead")
    if panels:
        caption = (
            "Share of nodes whose score lies outside the natural range. There catnat-natural has no slope, and catnat "
            "that of the range's ends."
        )
        made.append(
            PageFigure(
                "Nodes outside the range", caption, vae_figures.curves(panels, "share of nodes outside", focus=False)
            )
        )
    pictures = vae_figures.pictures(results, folder / "models")
    if pictures is not None:
        caption = (
            "Of the first final seed, for every head: test images and below them their reconstructions; images of "
            "uniformly drawn classes; and one image with one variable set to each of its classes in turn."
        )
        made.append(PageFigure("Reconstructions, samples and a traversal", caption, pictures))
    return made
