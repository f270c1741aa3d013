"""A study of graph structure learning: its stages, its resumption, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from catnat_lab.errors import UserError
from catnat_lab.executors import Here, begin, conduct
from catnat_lab.experiment import Outcome, RunContext
from catnat_lab.gsl import search as search_module
from catnat_lab.gsl import train as training
from catnat_lab.gsl.presets import PAPER, PRESETS, Settings, preset
from catnat_lab.gsl.search import OPTIMAL, GraphLearning, study_name
from catnat_lab.gsl.train import Run
from catnat_lab.studies import Study

SMOKE = preset("smoke")
METRICS = {"es": 1.0, "es_paper": 2.0, "pp_mae": 1.0, "pp_mse": 1.0, "theta_mae": 0.1}
RECORD = {"curve": {"step": [1.0]}, "theta": [0.1] * 4}


class Landscape:
    """In place of training: a validation score with its minimum at a rate of its own for every head; it counts runs."""

    def __init__(self, best: dict[str, float]) -> None:
        self.best, self.seen = best, []

    def __call__(self, runs: list[Run], plan: object, device: object, on_step: object) -> list[Outcome]:
        self.seen += [(run.dataset.theta_star, run.head, run.rate, run.seed) for run in runs]
        scores = [abs(math.log(run.rate / self.best[run.head])) + 1 for run in runs]
        return [Outcome(score, METRICS | {"validation_es": score}, RECORD) for score in scores]


def conducted(path, settings: Settings, stacked: int):
    """Everything that is not done yet; the trials by theta* and head."""
    with Study(path, conduct=True) as study:
        experiment = GraphLearning(settings)
        begin(experiment, study)
        conduct(experiment, study, Here(RunContext(path.parent)), stacked)
        return {cell: study.finished(name) for name, cell in experiment.cells.items() if cell[1] != OPTIMAL}


def run_search(tmp_path, monkeypatch, best, settings: Settings, stacked: int = 5):
    landscape = Landscape(best)
    monkeypatch.setattr(training, "train", landscape)
    return landscape, conducted(tmp_path / "study.db", settings, stacked)


def rates(trials, stage):
    return [trial.config["rate"] for trial in trials if trial.config["stage"] == stage]


def test_the_stages_follow_each_other(tmp_path, monkeypatch):
    settings = replace(SMOKE, heads=("softmax", "catnat-paper"), rates=(0.01, 0.1, 1.0), refined=3, ratio=2, seeds=3)
    landscape, trials = run_search(tmp_path, monkeypatch, {"softmax": 0.19, "catnat-paper": 0.1}, settings)
    softmax = trials[0.5, "softmax"]
    assert rates(softmax, "coarse") == [0.01, 0.1, 1.0]
    assert rates(softmax, "refined") == [0.0707, 0.141, 0.283]
    assert rates(softmax, "final") == [0.141] * 3  # the best of both grids
    assert {trial.config["seed"] for trial in softmax if trial.config["stage"] == "final"} == {1, 2, 3}
    assert rates(trials[0.5, "catnat-paper"], "final") == [0.1] * 3
    assert len(landscape.seen) == 2 * (3 + 3 + 3)
    assert all("theta" in trial.record for trial in softmax if trial.config["stage"] == "final")


def test_the_grid_is_widened_while_the_best_rate_is_at_its_end(tmp_path, monkeypatch):
    heads = ("softmax", "sparsemax", "catnat-paper", "catnat")
    settings = replace(SMOKE, heads=heads, rates=(0.01, 0.1), refined=0, widen=3)
    best = {"softmax": 0.0026, "sparsemax": 1e-9, "catnat-paper": 0.19, "catnat": 1e9}
    _, trials = run_search(tmp_path, monkeypatch, best, settings)
    assert sorted(rates(trials[0.5, "softmax"], "coarse")) == [0.00125, 0.0025, 0.005, 0.01, 0.1]
    assert sorted(rates(trials[0.5, "sparsemax"], "coarse")) == [0.00125, 0.0025, 0.005, 0.01, 0.1]  # three and no more
    assert sorted(rates(trials[0.5, "catnat-paper"], "coarse")) == [0.01, 0.1, 0.2, 0.4]
    assert rates(trials[0.5, "catnat-paper"], "final") == [0.2, 0.2]
    assert sorted(rates(trials[0.5, "catnat"], "coarse")) == [0.01, 0.1, 0.2, 0.4, 0.8]


@pytest.mark.parametrize("refined", [0, 2])
def test_a_head_whose_search_fails_is_done_without(tmp_path, monkeypatch, refined):
    class Broken(Landscape):
        def __call__(self, runs, *arguments, **named):
            if runs[0].head == "softmax":
                raise RuntimeError("softmax is broken")
            return super().__call__(runs, *arguments, **named)

    monkeypatch.setattr(training, "train", Broken({"sparsemax": 0.02}))
    settings = replace(SMOKE, heads=("softmax", "sparsemax"), rates=(0.01, 0.02, 0.04), refined=refined)
    trials = conducted(tmp_path / "study.db", settings, 1)
    assert trials[0.5, "softmax"] == [] and rates(trials[0.5, "sparsemax"], "final") == [0.02, 0.02]


def test_a_rate_is_at_the_end_of_the_grid_as_it_is_tried(tmp_path, monkeypatch):
    settings = replace(SMOKE, heads=("softmax",), rates=(0.010004, 0.1), refined=0, widen=1)
    _, trials = run_search(tmp_path, monkeypatch, {"softmax": 1e-9}, settings)
    assert sorted(rates(trials[0.5, "softmax"], "coarse")) == [0.005, 0.01, 0.1]


def test_rates_are_compared_by_the_mean_of_their_seeds(tmp_path, monkeypatch):
    class Noisy(Landscape):
        def __call__(self, runs, *arguments, **named):
            both = zip(runs, super().__call__(runs, *arguments, **named), strict=True)
            return [replace(one, value=0.0) if (run.seed, run.rate) == (0, 1.0) else one for run, one in both]  # luck

    landscape = Noisy({"softmax": 0.1})
    monkeypatch.setattr(training, "train", landscape)
    settings = replace(SMOKE, heads=("softmax",), rates=(0.01, 0.1, 1.0), refined=0, seeds=3)
    for seeds, expected in ((1, 1.0), (3, 0.1)):
        found = conducted(tmp_path / f"{seeds}.db", replace(settings, search_seeds=seeds, widen=0), 5)
        trials = found[0.5, "softmax"]
        assert rates(trials, "final") == [expected] * 3
        searched = {trial.config["seed"] for trial in trials if trial.config["stage"] == "coarse"}
        assert len(searched) == seeds and not searched & {1, 2, 3}


def test_a_study_that_was_stopped_goes_on_and_runs_nothing_twice(tmp_path, monkeypatch):
    settings = replace(SMOKE, heads=("softmax", "catnat-paper"), rates=(0.01, 0.1, 1.0), refined=3, ratio=2, seeds=3)
    best = {"softmax": 0.19, "catnat-paper": 0.1}
    whole, expected = run_search(tmp_path / "whole", monkeypatch, best, settings, stacked=2)
    landscape = Landscape(best)
    allowed, parts = 0, 0

    def breaking(*arguments, **named):
        if len(landscape.seen) >= allowed:
            raise KeyboardInterrupt
        return landscape(*arguments, **named)

    monkeypatch.setattr(training, "train", breaking)
    for parts in range(1, 30):
        allowed = 4 * parts
        try:
            trials = conducted(tmp_path / "parts.db", settings, 2)
        except KeyboardInterrupt:
            continue
        break
    assert parts > 3
    assert sorted(landscape.seen) == sorted(whole.seen)
    for cell, found in trials.items():
        assert [t.config for t in found] == [t.config for t in expected[cell]]


def test_a_rate_that_was_added_has_all_its_seeds_though_the_study_was_stopped_between_them(tmp_path, monkeypatch):
    settings = replace(SMOKE, heads=("softmax",), rates=(0.01, 0.1), refined=0, search_seeds=2, widen=2)
    landscape = Landscape({"softmax": 0.012})

    def breaking(*arguments, **named):
        if len(landscape.seen) == 5:
            raise KeyboardInterrupt
        return landscape(*arguments, **named)

    monkeypatch.setattr(training, "train", breaking)
    with pytest.raises(KeyboardInterrupt):
        conducted(tmp_path / "study.db", settings, 1)
    monkeypatch.setattr(training, "train", landscape)
    trials = conducted(tmp_path / "study.db", settings, 1)[0.5, "softmax"]
    assert sorted(rates(trials, "coarse")) == [0.005, 0.005, 0.01, 0.01, 0.1, 0.1]


def test_other_settings_do_not_go_on_with_a_study(tmp_path, monkeypatch):
    run_search(tmp_path, monkeypatch, dict.fromkeys(SMOKE.heads, 0.05), SMOKE)
    with pytest.raises(UserError, match=r"other settings; give another --output, or change back: seeds was 2, now 3"):
        run_search(tmp_path, monkeypatch, {}, replace(SMOKE, seeds=3))


def test_a_study_that_does_not_say_how_many_search_seeds_had_one(tmp_path, monkeypatch):
    run_search(tmp_path, monkeypatch, dict.fromkeys(SMOKE.heads, 0.05), SMOKE)
    with Study(tmp_path / "study.db", conduct=True) as study:
        study.set_note(search_module.NOTE, {k: v for k, v in SMOKE.as_dict().items() if k != "search_seeds"})
    landscape, _ = run_search(tmp_path, monkeypatch, dict.fromkeys(SMOKE.heads, 0.05), SMOKE)
    assert landscape.seen == []  # it goes on, and all is done
    with pytest.raises(UserError, match=r"search_seeds was 1, now 2"):
        run_search(tmp_path, monkeypatch, {}, replace(SMOKE, search_seeds=2))


def test_optimal_values_are_kept_too(tmp_path, monkeypatch):
    run_search(tmp_path, monkeypatch, dict.fromkeys(SMOKE.heads, 0.05), SMOKE)
    with Study(tmp_path / "study.db") as study:
        found = study.finished(study_name(0.5, OPTIMAL))
    assert len(found) == SMOKE.seeds and all(trial.metrics["theta_mae"] == 0 for trial in found)


def test_a_diverged_run_is_never_chosen(tmp_path, monkeypatch):
    settings = replace(SMOKE, heads=("softmax",), rates=(0.01, 0.1), refined=0, widen=0)
    landscape = Landscape({"softmax": 0.1})

    def diverging(runs, *arguments, **named):
        both = zip(runs, landscape(runs, *arguments, **named), strict=True)
        return [replace(one, value=math.inf) if run.rate == 0.1 else one for run, one in both]

    monkeypatch.setattr(training, "train", diverging)
    trials = conducted(tmp_path / "study.db", settings, 4)
    assert rates(trials[0.5, "softmax"], "final") == [0.01, 0.01]


def test_the_papers_preset_is_its_table():
    assert PAPER.thetas == (0.1, 0.25, 0.5, 0.75, 0.9) and len(PAPER.heads) == 5
    assert (len(PAPER.rates), PAPER.refined, PAPER.seeds) == (7, 7, 10)
    steps = PAPER.epochs * (PAPER.pairs * 8 // 10 // PAPER.batch)
    assert steps == 5000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"thetas": (0.5, 1.0)}, r"theta must lie in \(0, 1\); got 1.0"),
        ({"thetas": ()}, "thetas must hold at least one value"),
        ({"thetas": (0.5, 0.5)}, "thetas must differ"),
        ({"rates": (-0.1,)}, "rate must be positive and at most 1000; got -0.1"),
        ({"rates": (math.nan,)}, "rate must be positive and at most 1000; got nan"),
        ({"heads": ("softmax", "hardmax")}, r"head must be one of softmax, .*; got 'hardmax'"),
        ({"heads": ()}, "heads must hold at least one value, each once; got none"),
        ({"heads": ("softmax", "softmax")}, "each once; got softmax, softmax"),
        ({"thetas": (0.5, 0.50001)}, "thetas must differ in their first three digits; got 0.5, 0.50001"),
        ({"rates": (1e308,)}, "rate must be positive and at most 1000"),
        ({"seeds": 1}, "seeds must be at least 2; got 1"),
        ({"graphs": 2}, "graphs must be at least 3; got 2"),
        ({"epochs": 0}, "epochs must be at least 1; got 0"),
        ({"ratio": 1.0}, "ratio must be above 1; got 1.0"),
        ({"batch": 161}, "batch must be at most the training pairs"),
        ({"baseline": "mean"}, "baseline must be one of none, .*; got 'mean'"),
    ],
)
def test_bad_settings_are_named(change, message):
    with pytest.raises(UserError, match=message):
        replace(SMOKE, **change)


def test_an_unknown_preset_is_named():
    with pytest.raises(UserError, match=f"preset must be one of {', '.join(PRESETS)}; got 'huge'"):
        preset("huge")
