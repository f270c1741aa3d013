"""What the report says beside the table follows from the trials."""

from __future__ import annotations

import math

import numpy as np
import pytest
from matplotlib.lines import Line2D

from catnat_lab.experiment import Finished, Results
from catnat_lab.gsl.report import SEEDS, SPARSE, WEIGHTS, draw_trades, remarks_of, table_of
from catnat_lab.gsl.train import PAPER, SMOKE, true_edges
from catnat_lab.report.table import judge, verdict

KEYS = ("es_paper", "pp_mae", "pp_mse", "theta_mae")
EDGES = true_edges(1).flatten().tolist()


def trial(stage: str, seed: int, value: float, rate: float = 0.1, least: float = 0.5) -> Finished:
    """All metrics are ``value``; all true edges are at 0.5 but the first, which is at ``least``."""
    theta = [0.5 if edge else 0.0 for edge in EDGES]
    theta[0] = least
    record = {"theta": theta} if stage == "final" else {}
    return Finished(value, dict.fromkeys(KEYS, value), record, {"stage": stage, "rate": rate, "seed": seed})


def results(**heads: list[Finished]) -> Results:
    settings = SMOKE.as_dict() | {"heads": list(heads), "thetas": [0.5]}
    return Results(settings, {("0.5", head): trials for head, trials in heads.items()} | {("0.5", "optimal"): []}, {})


def finals(values: list[float], **options: float) -> list[Finished]:
    return [trial("final", seed, value, **options) for seed, value in enumerate(values)]


def test_runs_are_compared_seed_by_seed_in_whatever_order_they_finished():
    low, high = finals([1.0, 2.0, 3.0, 4.0]), finals([1.11, 2.1, 3.12, 4.1])[::-1]
    (text, *_) = remarks_of(results(low=low, high=high))
    assert "ES (twice the formula): low at θ* = 0.5" in text and "MAE on θ: low at θ* = 0.5" in text
    assert not any("seed by seed" in text for text in remarks_of(results(low=low, high=finals([1.1, 1.9, 3.1, 3.9]))))


def test_a_study_that_is_not_finished_or_diverged_is_not_compared():
    for other in ([], finals([1.0]), finals([2.0, 3.0, math.nan, 5.0])):
        texts = remarks_of(results(low=finals([1.0, 2.0, 3.0, 4.0]), high=other))
        assert not any("seed by seed" in text for text in texts)


def test_the_least_error_is_the_least_mean_over_rates_that_did_not_diverge():
    tried = [
        trial("coarse", 0, 0.1, rate=0.1),
        trial("coarse", 1001, 0.5, rate=0.1),  # with its like 0.3
        trial("refined", 0, 0.2, rate=0.2),
        trial("refined", 1001, 0.3, rate=0.2),
        trial("coarse", 0, math.nan, rate=0.3),
        trial("final", 1, 0.1),
    ]
    assert any("a 0.2500" in text for text in remarks_of(results(a=tried)))


@pytest.mark.parametrize(("least", "lost"), [(0.2, 0), (0.12, 2)])
def test_a_lost_edge_is_a_true_one_far_below_its_probability(least, lost):
    texts = remarks_of(results(a=finals([1.0, 2.0], least=least)))
    assert any(f"a {lost} of 2" in text for text in texts)


def test_methods_are_told_for_the_papers_problem_and_its_lines_only():
    small = results(softmax=finals([1.0, 2.0]))
    assert not {WEIGHTS, SEEDS, SPARSE} & set(remarks_of(small))
    settings = small.settings | {k: PAPER.as_dict()[k] for k in ("pairs", "epochs", "batch", "graphs", "communities")}
    texts = remarks_of(Results(settings, {("0.5", "softmax"): []}, {}))
    assert {WEIGHTS, SEEDS} <= set(texts) and SPARSE not in texts
    both = remarks_of(Results(settings | {"heads": ["softmax", "sparsemax"]}, {}, {}))
    assert {WEIGHTS, SEEDS, SPARSE} <= set(both)


def test_the_papers_numbers_stand_beside_ours_where_the_problem_is_the_same():
    found = results(softmax=finals([1.0, 2.0]), catnat=finals([3.0, 4.0])[::-1])
    small = table_of(found)
    assert not small.has_paper and small.cell("0.5", "catnat", small.columns[0]).values == (3.0, 4.0)
    settings = found.settings | {k: PAPER.as_dict()[k] for k in ("pairs", "epochs", "batch", "graphs", "communities")}
    large = table_of(Results(settings, found.trials, {}))
    shown = large.cell("0.5", "softmax", large.columns[-1])
    assert (shown.paper_mean, shown.paper_std, shown.paper_bold) == (0.0132, 0.0008, False)
    assert large.cell("0.5", "catnat", large.columns[0]).paper_mean is None


def test_the_verdict_is_about_the_graph_that_was_found_and_names_where_the_best_is_behind():
    softmax, catnat = finals([0.5, 0.6, 0.55]), finals([0.3, 0.4, 0.35])
    for one in catnat:
        one.metrics["pp_mae"] += 5
    told = verdict(judge(table_of(results(softmax=softmax, catnat=catnat))))
    assert told.startswith("catnat is ahead of softmax") and told.endswith(". In PP-MAE catnat is behind.")
    assert "behind" not in verdict(judge(table_of(results(softmax=softmax, catnat=finals([0.3, 0.4, 0.35])))))


def places(line: Line2D) -> list[float]:
    return [float(x) for x in np.asarray(line.get_xdata(), dtype=float)]


def tried(*points: tuple[float, float]) -> list[Finished]:
    """By rate, error of θ and energy score."""
    found = [{"theta_mae": error, "validation_es": score} for error, score in points]
    values = [score if math.isfinite(error) else math.inf for error, score in points]
    configs = [{"stage": "coarse", "rate": 0.1 * (i + 1), "seed": 0} for i in range(len(points))]
    return [Finished(*each, {}, config) for *each, config in zip(values, found, configs, strict=True)]


def test_trades_join_the_rates_of_a_parameterization_and_ring_the_chosen_one():
    both = {"softmax": tried((0.02, 7.6), (0.01, 7.5), (0.03, 7.9)), "catnat": tried((0.01, 7.5), (math.nan, 7.4))}
    figure = draw_trades({"0.5": both, "0.9": {"softmax": tried((0.1, 7.0))}})
    joined, ring, other = figure.axes[0].lines[:3]
    assert places(joined) == [0.02, 0.01, 0.03] and places(ring) == [0.01] and places(other) == [0.01]
    assert ring.get_markersize() > joined.get_markersize()


@pytest.mark.parametrize("top", [0.0056, 0.009, 0.05, 5.0])
def test_the_axis_of_a_trade_has_labels(top):
    figure = draw_trades({"0.5": {"softmax": tried((0.0055, 7.0), (top, 7.1), (0.0055, 7.2))}})
    figure.draw_without_rendering()
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    assert sum(low <= place <= high for place in axes.xaxis.get_majorticklocs()) >= (2 if top > 0.01 else 1)
