"""What the report says beside the table follows from the trials."""

from __future__ import annotations

import math

import pytest

from catnat_lab.experiment import Finished
from catnat_lab.gsl.data import true_edges
from catnat_lab.gsl.presets import PAPER, preset
from catnat_lab.report.gsl_remarks import METHODS, in_one_sentence, remarks_of
from catnat_lab.report.gsl_results import Results

KEYS = ("es_paper", "pp_mae", "pp_mse", "theta_mae")
EDGES = true_edges(1).flatten().tolist()


def trial(number: int, stage: str, seed: int, value: float, rate: float = 0.1, least: float = 0.5) -> Finished:
    """All metrics are ``value``; all true edges are at 0.5 but the first, which is at ``least``."""
    theta = [0.5 if edge else 0.0 for edge in EDGES]
    theta[0] = least
    record = {"theta": theta} if stage == "final" else {}
    return Finished(number, {"stage": stage, "rate": rate, "seed": seed}, value, dict.fromkeys(KEYS, value), record)


def results(**heads: list[Finished]) -> Results:
    settings = preset("smoke").as_dict() | {"heads": list(heads), "thetas": [0.5]}
    return Results(settings, {(0.5, head): trials for head, trials in heads.items()} | {(0.5, "optimal"): []}, {})


def finals(values: list[float], **options: float) -> list[Finished]:
    return [trial(seed, "final", seed, value, **options) for seed, value in enumerate(values)]


def test_runs_are_compared_seed_by_seed_in_whatever_order_they_finished():
    low, high = finals([1.0, 2.0, 3.0, 4.0]), finals([1.11, 2.1, 3.12, 4.1])[::-1]
    (text, *_) = remarks_of(results(low=low, high=high))
    assert "ES (twice the formula): low at θ* = 0.5" in text and "MAE on θ: low at θ* = 0.5" in text
    assert not any("seed by seed" in text for text in remarks_of(results(low=low, high=finals([1.1, 1.9, 3.1, 3.9]))))


def test_a_study_that_is_not_finished_or_diverged_is_not_compared():
    for other in ([], finals([1.0]), finals([2.0, 3.0, math.nan, 5.0])):
        texts = remarks_of(results(low=finals([1.0, 2.0, 3.0, 4.0]), high=other))
        assert not any("seed by seed" in text for text in texts)


def test_the_least_error_is_over_all_rates_that_did_not_diverge():
    tried = [
        trial(0, "coarse", 0, 0.3),
        trial(1, "refined", 0, 0.2),
        trial(2, "coarse", 0, math.nan),
        trial(3, "final", 1, 0.1),
    ]
    assert any("a 0.2000" in text for text in remarks_of(results(a=tried)))


@pytest.mark.parametrize(("least", "lost"), [(0.2, 0), (0.12, 2)])
def test_a_lost_edge_is_a_true_one_far_below_its_probability(least, lost):
    texts = remarks_of(results(a=finals([1.0, 2.0], least=least)))
    assert any(f"a {lost} of 2" in text for text in texts)


def test_reasons_are_given_for_the_papers_problem_and_its_lines_only():
    small = results(softmax=finals([1.0, 2.0]))
    large = Results(
        small.settings | {k: PAPER.as_dict()[k] for k in ("pairs", "epochs", "batch", "graphs")}, small.trials, {}
    )
    assert not is_any_reason(remarks_of(small))
    large.settings["communities"] = PAPER.communities
    whole = [trial_with_all_edges(t) for t in small.trials[0.5, "softmax"]]
    texts = remarks_of(Results(large.settings, {**large.trials, (0.5, "softmax"): whole}, {}))
    assert {line for line, text in METHODS if text in texts} == {"optimal"}


def is_any_reason(texts) -> bool:
    return any(text in texts for _, text in METHODS)


def trial_with_all_edges(one: Finished) -> Finished:
    theta = [0.5] * true_edges(PAPER.communities).numel()
    return Finished(one.number, one.config, one.value, one.metrics, {"theta": theta})


def test_the_demo_ends_with_who_won_by_how_much_and_how_surely():
    found = {
        "softmax": finals([0.4, 0.6, 0.5]),
        "catnat": finals([0.3, 0.5, 0.41])[::-1],
        "other": finals([9.0, 9.0, 9.0]),
    }
    text = in_one_sentence(results(**found))
    assert "catnat by 0.4033, softmax by 0.5000, other by 9.0000" in text
    assert "catnat errs 19% less than softmax (paired over 3 seeds, p = 0.0012)" in text
    assert "Softmax is the best" in in_one_sentence(results(softmax=finals([0.1, 0.2]), catnat=finals([0.3, 0.4])))
    assert "Too few" in in_one_sentence(results(softmax=finals([0.1, math.nan]), catnat=finals([0.3, 0.4])))
