"""What is to be said of the categorical VAE beside its tables: what our trials show, and why it may differ."""

from __future__ import annotations

import math

from catnat_lab.report.vae_results import MEASURES, Results
from catnat_lab.stats import summarize, welch

ALPHA = 0.05


def remarks_of(results: Results) -> tuple[str, ...]:
    """Who beats softmax where, at which rates, how many nodes died, and how our training differs from the paper's."""
    found = [_against_softmax(results), _rates(results), _dead(results), _length(results)]
    return tuple(text for text in found if text)


def _against_softmax(results: Results) -> str:
    settings = results.settings
    measure, _, _, lower = MEASURES[settings["table"]][0]
    told = []
    for head in settings["heads"]:
        if head == "softmax" or "softmax" not in settings["heads"]:
            continue
        better = worse = judged = 0
        for data in settings["data"]:
            for cell in settings["cells"]:
                ours = [t.metrics[measure] for t in results.stage(data, cell, head, "final")]
                theirs = [t.metrics[measure] for t in results.stage(data, cell, "softmax", "final")]
                if min(len(ours), len(theirs)) < 2 or not all(map(math.isfinite, (*ours, *theirs))):
                    continue
                judged += 1
                if welch(ours, theirs) < ALPHA:
                    below = summarize(ours).mean < summarize(theirs).mean
                    better, worse = better + (below == lower), worse + (below != lower)
        if judged:
            told.append(f"{head} is better in {better} and worse in {worse} of {judged}")
    return f"Against softmax cell by cell (Welch, p < {ALPHA}): {'; '.join(told)}." if told else ""


def _rates(results: Results) -> str:
    settings, told = results.settings, []
    for cell in settings["searched"]:
        chosen = []
        for head in settings["heads"]:
            tried = results.stage(settings["data"][0], cell, head, "coarse", "refined")
            if tried:
                best = min(tried, key=lambda trial: trial.value).config["rate"]
                edge = best in (min(t.config["rate"] for t in tried), max(t.config["rate"] for t in tried))
                chosen.append(f"{head} {best:g}{' (the end of its grid)' if edge and len(tried) > 1 else ''}")
        if chosen:
            told.append(f"{cell}: {', '.join(chosen)}")
    return f"Chosen rates: {'; '.join(told)}. Other cells take those of the nearest searched one." if told else ""


def _dead(results: Results) -> str:
    told = []
    for head in results.settings["heads"]:
        shares = [
            trial.record["curve"]["dead"][-1]
            for (_, _, one), trials in results.trials.items()
            if one == head
            for trial in trials
            if trial.config["stage"] == "final" and trial.record.get("curve", {}).get("dead")
        ]
        if "natural" in head and shares:
            told.append(f"{head} {100 * min(shares):.0f} to {100 * max(shares):.0f}%")
    return f"Nodes outside the natural range at the end of training: {', '.join(told)}." if told else ""


def _length(results: Results) -> str:
    if results.settings["table"] == "mlp":
        return ""
    return (
        "The paper does not say how long it trained. Ours is a constant rate for the steps in the title; the public "
        "code it names lowers the rate by a tenth every thousand steps and trains for 50,000, which was worse for all "
        "heads in a first try."
    )
