"""What is to be said of the categorical VAE beside its tables: what our trials show, and why it may differ."""

from __future__ import annotations

import math

from scipy import stats

from catnat_lab import rates
from catnat_lab.heads import is_natural
from catnat_lab.report.vae_results import MEASURES, Results
from catnat_lab.stats import summarize, welch
from catnat_lab.vae.presets import sizes

ALPHA = 0.05
FAR = 30.0  # nats


def remarks_of(results: Results) -> tuple[str, ...]:
    """Who beats softmax where, at which rates, how many nodes died, and how our training differs from the paper's."""
    found = [_against_softmax(results), _natural_by_sigmoid(results), _collapsed(results)]
    found += [_rates(results), _outside(results), _length(results), _sparse(results)]
    return tuple(text for text in found if text)


def _against_softmax(results: Results) -> str:
    settings = results.settings
    measure, _, _, lower = MEASURES[settings["table"]][0]
    told = []
    for head in settings["heads"]:
        if head == "softmax" or "softmax" not in settings["heads"]:
            continue
        better = worse = judged = diverged = 0
        for data in settings["data"]:
            for cell in settings["cells"]:
                ours = [t.metrics[measure] for t in results.stage(data, cell, head, "final")]
                theirs = [t.metrics[measure] for t in results.stage(data, cell, "softmax", "final")]
                if min(len(ours), len(theirs)) < 2:
                    continue
                if not all(map(math.isfinite, (*ours, *theirs))):
                    diverged += 1
                    continue
                judged += 1
                if welch(ours, theirs) < ALPHA:
                    below = summarize(ours).mean < summarize(theirs).mean
                    better, worse = better + (below == lower), worse + (below != lower)
        lost = f" ({diverged} more not judged: a run diverged)" if diverged else ""
        if judged or diverged:
            told.append(f"{head} is better in {better} and worse in {worse} of {judged}{lost}")
    return f"Against softmax cell by cell (Welch, p < {ALPHA}): {'; '.join(told)}." if told else ""


def _natural_by_sigmoid(results: Results) -> str:
    """Cell by cell: seeds of a cell share first weights, and cells are what one would want to generalise to."""
    settings = results.settings
    measure = MEASURES[settings["table"]][0][0]
    gaps = []
    for data in settings["data"]:
        for cell in settings["cells"]:
            both = [results.stage(data, cell, head, "final") for head in ("catnat-natural", "catnat-sigmoid")]
            values = [[trial.metrics[measure] for trial in trials] for trials in both]
            if all(values) and all(map(math.isfinite, (*values[0], *values[1]))):
                gaps.append(summarize(values[0]).mean - summarize(values[1]).mean)
    if len(gaps) < 3:
        return ""
    p = float(stats.ttest_1samp(gaps, 0.0).pvalue)
    return (
        f"Natural less sigmoid, means of {len(gaps)} cells: {summarize(gaps).mean:+.2f} on average, "
        f"{min(gaps):+.2f} to {max(gaps):+.2f} (t-test over the cells, p = {p:.2g})."
    )


def _collapsed(results: Results) -> str:
    """Seeds far behind the best of their cell, which hide all differences in its deviation, and what became of them."""
    settings = results.settings
    measure, _, _, lower = MEASURES[settings["table"]][0]
    sign = 1 if lower else -1
    told = []
    for (data, cell, head), trials in results.trials.items():
        final = [t.metrics for t in trials if t.config["stage"] == "final" and math.isfinite(t.metrics[measure])]
        worst = sorted(final, key=lambda found: sign * found[measure], reverse=True)
        far = [found for found in worst if sign * (found[measure] - worst[-1][measure]) > FAR]
        if far:
            n, k = sizes(cell)
            those = ", ".join(f"{found[measure]:.1f} with KL {found['kl']:.1f}" for found in far)
            most, best = n * math.log(k), worst[-1][measure]
            told.append(f"{head} {data} {cell} (KL at most {most:.1f}): {those}; the best is {best:.1f}")
    if not told:
        return ""
    return (
        f"Seeds more than {FAR:g} nats behind the best of their cell: {'. '.join(told)}. Where one is lost, the "
        "deviation is so large that the test tells the line from no other: it is marked among the best for that alone."
    )


def _rates(results: Results) -> str:
    settings, told = results.settings, []
    for cell in settings["searched"]:
        chosen = []
        for head in settings["heads"]:
            tried = results.stage(settings["data"][0], cell, head, "coarse", "refined")
            if tried:
                best = rates.best_rate(tried)
                edge = best in (min(t.config["rate"] for t in tried), max(t.config["rate"] for t in tried))
                chosen.append(f"{head} {best:g}{' (the end of its grid)' if edge and len(tried) > 1 else ''}")
        if chosen:
            told.append(f"{cell}: {', '.join(chosen)}")
    return f"Chosen rates: {'; '.join(told)}. Other cells take those of the nearest searched one." if told else ""


def _outside(results: Results) -> str:
    told = []
    for head in results.settings["heads"]:
        shares = [
            trial.record["curve"]["dead"][-1]
            for (_, _, one), trials in results.trials.items()
            if one == head
            for trial in trials
            if trial.config["stage"] == "final" and trial.record.get("curve", {}).get("dead")
            if math.isfinite(trial.record["curve"]["dead"][-1])
        ]
        if is_natural(head) and shares:
            told.append(f"{head} {100 * min(shares):.1f} to {100 * max(shares):.1f}%")
    return f"Nodes outside the natural range at the end of training: {', '.join(told)}." if told else ""


def _length(results: Results) -> str:
    if results.settings["table"] == "mlp":
        return ""
    return (
        "The paper does not say how long it trained, which rate of its refined grid (0.0045 to 0.02) each head took, "
        "nor whether rates fell; ours stay constant for the steps in the title, and after fewer than 24,000 of them "
        "the temperature has not yet come down to 0.5."
    )


def _sparse(results: Results) -> str:
    if "sparsemax" not in results.settings["heads"] or results.settings["table"] == "mlp":
        return ""
    return (
        "Sparsemax gives codes probability 0, which importance samples never reach: its likelihood is a bound that "
        "more samples do not close."
    )
