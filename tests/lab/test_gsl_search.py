"""A study of graph structure learning: its stages, which follow from what is done, and what it refuses."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from catnat_lab.errors import UserError
from catnat_lab.experiment import Finished, Job, Outcome, RunContext
from catnat_lab.gsl import train as module
from catnat_lab.gsl.train import OPTIMAL, PAPER, SMOKE, GraphLearning, Run, Settings, study_name

METRICS = {"es": 1.0, "es_paper": 2.0, "pp_mae": 1.0, "pp_mse": 1.0, "theta_mae": 0.1}
RECORD = {"curve": {"step": [1.0]}, "theta": [0.1] * 4}


class Landscape:
    """In place of training: a validation score with its minimum at a rate of its own for every head; it counts runs."""

    def __init__(self, best: dict[str, float], lucky: tuple[int, float] | None = None) -> None:
        self.best, self.lucky, self.seen = best, lucky, []

    def __call__(self, runs: list[Run], plan: object, device: object, on_step: object) -> list[Outcome]:
        self.seen += [(run.dataset.theta_star, run.head, run.rate, run.seed) for run in runs]
        scores = [abs(math.log(run.rate / self.best[run.head])) + 1 for run in runs]
        scores = [0.0 if (run.seed, run.rate) == self.lucky else x for run, x in zip(runs, scores, strict=True)]
        return [Outcome(score, METRICS | {"validation_es": score}, RECORD) for score in scores]


class Memory:
    """A study without a database, which may be stopped after some jobs."""

    def __init__(self) -> None:
        self.given_up: set[Job] = set()
        self.cells: dict[str, list[Finished]] = defaultdict(list)

    def finished(self, cell: str, **match: Any) -> list[Finished]:
        return [one for one in self.cells[cell] if all(one.config[key] == value for key, value in match.items())]

    def conduct(self, settings: Settings, stop: float = math.inf) -> Memory:
        experiment, count = GraphLearning(settings), 0
        while jobs := experiment.left(self):
            for job, outcome in experiment.train(jobs, RunContext(Path())):
                self.cells[job.cell].append(Finished(outcome.value, outcome.metrics, outcome.record, job.config))
                count += 1
                if count >= stop:
                    return self
        return self

    def rates(self, head: str, stage: str) -> list[float]:
        return sorted(one.config["rate"] for one in self.finished(study_name(0.5, head), stage=stage))


@pytest.fixture
def landscape(monkeypatch: pytest.MonkeyPatch) -> Landscape:
    """Put in training's place; a test says where its minima are."""
    found = Landscape({})
    monkeypatch.setattr(module, "train", found)
    return found


def plan(*heads: str, **changed: Any) -> Settings:
    return replace(SMOKE, **{"heads": heads, "rates": (0.01, 0.1), "refined": 0, "widen": 0} | changed)


def test_the_stages_follow_each_other(landscape):
    landscape.best = {"softmax": 0.19, "catnat-paper": 0.1}
    given = plan("softmax", "catnat-paper", rates=(0.01, 0.1, 1.0), refined=3, ratio=2, seeds=3, widen=1)
    done = Memory().conduct(given)
    assert done.rates("softmax", "coarse") == [0.01, 0.1, 1.0]
    assert done.rates("softmax", "refined") == [0.0707, 0.141, 0.283]
    assert done.rates("softmax", "final") == [0.141] * 3  # the best of both grids
    assert done.rates("catnat-paper", "final") == [0.1] * 3
    final = done.finished(study_name(0.5, "softmax"), stage="final")
    assert [one.config["seed"] for one in final] == [1, 2, 3] and all("theta" in one.record for one in final)
    assert len(landscape.seen) == 2 * (3 + 3 + 3)
    best = done.finished(study_name(0.5, OPTIMAL))
    assert len(best) == 3 and all(one.metrics["theta_mae"] == 0 for one in best)


def test_the_grid_is_widened_while_the_best_rate_is_at_its_end(landscape):
    landscape.best = {"softmax": 0.0026, "sparsemax": 1e-9, "catnat-paper": 0.19, "catnat": 1e9}
    done = Memory().conduct(plan(*landscape.best, rates=(0.010004, 0.1), widen=3))  # tried as 0.01
    assert done.rates("softmax", "coarse") == [0.00125, 0.0025, 0.005, 0.01, 0.1]
    assert done.rates("sparsemax", "coarse") == [0.00125, 0.0025, 0.005, 0.01, 0.1]  # three and no more
    assert done.rates("catnat-paper", "coarse") == [0.01, 0.1, 0.2, 0.4]
    assert done.rates("catnat-paper", "final") == [0.2, 0.2]
    assert done.rates("catnat", "coarse") == [0.01, 0.1, 0.2, 0.4, 0.8]


@pytest.mark.parametrize("refined", [0, 2])
def test_a_head_whose_search_fails_is_done_without(landscape, refined):
    landscape.best, done = {"sparsemax": 0.02}, Memory()
    given = plan("softmax", "sparsemax", rates=(0.01, 0.02, 0.04), refined=refined)
    done.given_up = set(GraphLearning(given).coarse([study_name(0.5, "softmax")]))
    done.conduct(given)
    assert not done.cells[study_name(0.5, "softmax")] and done.rates("sparsemax", "final") == [0.02, 0.02]


@pytest.mark.parametrize(("seeds", "expected"), [(1, 1.0), (3, 0.1)])
def test_rates_are_compared_by_the_mean_of_their_seeds(landscape, seeds, expected):
    landscape.best, landscape.lucky = {"softmax": 0.1}, (0, 1.0)
    done = Memory().conduct(plan("softmax", rates=(0.01, 0.1, 1.0), seeds=3, search_seeds=seeds))
    assert done.rates("softmax", "final") == [expected] * 3
    searched = {one.config["seed"] for one in done.finished(study_name(0.5, "softmax"), stage="coarse")}
    assert len(searched) == seeds and not searched & {1, 2, 3}


def test_a_study_that_is_stopped_again_and_again_runs_the_same_and_nothing_twice(landscape):
    landscape.best = {"softmax": 0.012, "catnat-paper": 0.1}
    given = plan("softmax", "catnat-paper", rates=(0.01, 0.1), refined=3, ratio=2, search_seeds=2, widen=2)
    whole = Memory().conduct(given)
    expected, landscape.seen = sorted(landscape.seen), []
    parts = Memory()
    for _ in range(100):  # two jobs a time: also between the two seeds of a rate that was added
        parts.conduct(given, stop=2)
    assert parts.cells == whole.cells and set(landscape.seen) == set(expected)
    assert all(len({str(one.config) for one in found}) == len(found) for found in parts.cells.values())


def test_a_study_that_does_not_say_how_many_search_seeds_had_one():
    before = {key: value for key, value in SMOKE.as_dict().items() if key != "search_seeds"}
    assert GraphLearning(SMOKE).settled(before) == SMOKE.as_dict()
    with pytest.raises(UserError, match=r"search_seeds was 1, now 2"):
        GraphLearning(replace(SMOKE, search_seeds=2)).settled(before)
    with pytest.raises(UserError, match=r"other settings; give another --output, or change back: seeds was 2, now 3"):
        GraphLearning(replace(SMOKE, seeds=3)).settled(SMOKE.as_dict())


def test_the_papers_preset_is_its_table():
    assert PAPER.thetas == (0.1, 0.25, 0.5, 0.75, 0.9) and len(PAPER.heads) == 5
    assert (len(PAPER.rates), PAPER.refined, PAPER.seeds) == (7, 7, 10)
    assert PAPER.epochs * (PAPER.pairs * 8 // 10 // PAPER.batch) == 5000  # steps


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"thetas": (0.5, 1.0)}, r"theta must lie in \(0, 1\); got 1.0"),
        ({"thetas": ()}, "thetas must hold at least one value"),
        ({"rates": (math.nan,)}, "rate must be positive and at most 1000; got nan"),
        ({"heads": ("softmax", "hardmax")}, r"head must be one of softmax, .*; got 'hardmax'"),
        ({"heads": ("softmax", "softmax")}, "each once; got softmax, softmax"),
        ({"thetas": (0.5, 0.50001)}, "thetas must differ in their first three digits; got 0.5, 0.50001"),
        ({"seeds": 1}, "seeds must be at least 2; got 1"),
        ({"graphs": 2}, "graphs must be at least 3; got 2"),
        ({"ratio": 1.0}, "ratio must be above 1; got 1.0"),
        ({"batch": 161}, "batch must be at most the training pairs"),
        ({"baseline": "mean"}, "baseline must be one of none, .*; got 'mean'"),
    ],
)
def test_bad_settings_are_named(change, message):
    with pytest.raises(UserError, match=message):
        replace(SMOKE, **change)
