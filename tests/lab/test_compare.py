"""`compare` at toy size: what it runs, what it says, what it refuses, and that it goes on."""

from __future__ import annotations

import csv
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from io import StringIO
from itertools import count, product
from pathlib import Path
from random import Random
from statistics import median
from types import ModuleType
from typing import Any

import pytest
import torch
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState
from rich.console import Console

from catnat_lab import compare
from catnat_lab.cli import main
from catnat_lab.comparison import run
from catnat_lab.comparison.report import RULE, Compared, load, write_page
from catnat_lab.comparison.study import STOPPED, FromFile, hopeless, outcome_of
from catnat_lab.errors import UserError
from catnat_lab.executors import UNGUARDED, WORKER, Processes, Unguarded
from catnat_lab.experiment import Finished, Job, Outcome, Results, RunContext, key_of, register
from catnat_lab.live import Watch
from catnat_lab.provenance import sources
from catnat_lab.search import OWN as SEARCH
from catnat_lab.search import proposed
from catnat_lab.stats import needed
from catnat_lab.studies import DATABASE, Study
from tests.lab.comparable import recorded, train
from tests.lab.toy import Ended


class Remembered:
    """A study in memory: what `compare` does with one is tested here, and how it is kept in test_studies.py."""

    def __init__(self) -> None:
        self.notes: dict[str, str] = {}
        self.runs: dict[str, dict[str, Finished]] = {}
        self.reasons: dict[str, dict[str, str]] = {}
        self.given_up: set[Job] = set()
        self.name, self.set_note = "remembered", lambda key, value: self.notes.update({key: json.dumps(value)})

    def __enter__(self) -> Remembered:
        self.given_up.clear()
        return self

    def __exit__(self, *_: object) -> None: ...

    def cells(self) -> list[str]:
        return list(self.runs)

    def finished(self, cell: str, **match: Any) -> list[Finished]:
        return [run for run in self.runs.get(cell, {}).values() if match.items() <= run.config.items()]

    def add(self, job: Job, outcome: Outcome) -> None:
        assert job.key not in self.runs.setdefault(job.cell, {})
        self.runs[job.cell][job.key] = Finished(outcome.value, outcome.metrics, outcome.record, job.config)
        self.reasons.get(job.cell, {}).pop(job.key, None)

    def fail(self, job: Job, reason: str) -> None:
        self.given_up.add(job)
        self.reasons.setdefault(job.cell, {})[job.key] = reason

    def failed(self, cell: str) -> dict[str, str]:
        return self.reasons.get(cell, {})

    def note(self, key: str) -> Any:
        return json.loads(self.notes.get(key, "null"))

    def settle_note(self, key: str, value: Any) -> Any:
        self.notes.setdefault(key, json.dumps(value))
        return self.note(key)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Compared]:
    """`compare` without its page and its database, which take long."""
    studies: defaultdict[Path, Remembered] = defaultdict(Remembered)
    monkeypatch.setattr(run, "write_page", lambda results, folder: folder)
    monkeypatch.setattr(run, "provenance", lambda command: {"command": command})

    def call(function: Any = train, heads: Any = ("softmax", "better"), **changed: Any) -> Compared:
        settings = {"rates": RATES, "seeds": 2, "folder": tmp_path, "lower_is_better": True} | changed
        monkeypatch.setattr(run, "Study", Study if settings.pop("kept", False) else lambda where, **_: studies[where])
        return compare(function, heads, **settings)

    call.studies = studies  # type: ignore[attr-defined]
    return call


RATES = (1e-4, 1e-3, 1e-2)


class Counted:
    """A function that keeps what it was called with."""

    def __init__(self, function: Any = train) -> None:
        self.function, self.calls = function, []  # type: ignore[var-annotated]

    def __call__(self, head: str, rate: float, seed: int) -> Any:
        self.calls.append((head, rate, seed))
        return self.function(head, rate, seed)


def test_every_repetition_is_judged_on_a_fresh_seed_at_what_its_own_search_found(
    asked: Callable[..., Compared],
) -> None:
    counted = Counted(lambda head, rate, seed: (Random(f"{head} {rate} {seed}").random(), float(seed)))
    results = asked(counted, seeds=3)
    searched = {call: counted.function(*call)[0] for call in counted.calls if call[2] > SEARCH}
    final = [call for call in counted.calls if call[2] <= SEARCH]
    wanted = {(rate, SEARCH + seed) for rate in RATES for seed in (1, 2, 3)}
    assert {call[1:] for call in searched} >= wanted and len(set(counted.calls)) == len(counted.calls)
    for head, rate, seed in final:
        own = {call: value for call, value in searched.items() if (call[0], call[2]) == (head, SEARCH + seed)}
        assert min(own, key=own.__getitem__)[1] == rate
    assert len({rate for head, rate, _ in final if head == "softmax"}) > 1  # they are not of one mind
    assert results.tests("train", "softmax") == results.tests("train", "better") == (1.0, 2.0, 3.0)
    assert "3 repetitions each" in results.sentence and results.sentence in str(results)


def results_of(tests: dict[tuple[str, str], Sequence[float]], lower: bool = True, **changed: Any) -> Compared:
    """A study that came to these tests."""
    tasks, heads = (list(dict.fromkeys(place[i] for place in tests)) for i in (0, 1))
    seeds = max(map(len, tests.values()))
    settings = {"tasks": tasks, "heads": heads, "seeds": seeds, "lower_is_better": lower, "others": {}}
    trials: dict[Any, list[Finished]] = {
        place: [
            Finished(0.0, {"test": x}, {}, {"stage": "final", "seed": i, "rate": 0.1}) for i, x in enumerate(values, 1)
        ]
        for place, values in tests.items()
    }
    return Compared(settings, trials, {}, **{"is_finished": True} | changed)


LOW, MIDDLE, LOST = (1.0, 1.1, 1.2, 1.3, 1.4), (1.01, 1.12, 1.22, 1.33, 1.41), (1.05, 1.15, 1.25, math.nan, math.inf)
HIGH = (2.0, 2.2, 2.1, 2.4, 2.3)


@pytest.mark.parametrize(("tests", "lower", "said"), [
    ({"softmax": HIGH, "new": LOW}, True, "new is ahead of softmax: test 1.20 against 2.20, -1.00 [95% -1.23 to -0.7"),
    ({"softmax": HIGH, "new": LOW}, False, "new is behind softmax: test 1.20 against 2.20, -1.00 [95% -1.23 to -0.77]"),
    ({"softmax": LOW, "new": MIDDLE}, True, "No difference seen between new and softmax: test 1.22 against 1.20"),
    ({"one": HIGH, "two": LOW, "three": LOW}, True, "two and three are ahead of one."),
    ({"softmax": HIGH, "a": LOW, "b": HIGH}, False, "a is behind softmax. No difference seen between b and softmax."),
    ({"softmax": LOW, "a": MIDDLE, "b": LOW}, True, "No difference from softmax is seen."),
    ({"softmax": HIGH, "new": LOST}, True, "No difference seen between new and softmax: by ranks, p = 0.63"),
    ({"softmax": LOST, "new": LOW}, True, "No difference seen between new and softmax: by ranks, p = 0.51"),
    ({"softmax": LOW, "new": [math.nan] * 5}, False, "new is behind softmax: by ranks, p = 0.0079"),
    ({"softmax": LOW, "new": [math.nan] * 5}, True, "new is behind softmax: by ranks, p = 0.0079"),
    ({"softmax": [1.0] * 5, "new": [2.0] * 5}, True, "No verdict: it takes two final runs of every head whose tests d"),
    ({"softmax": LOW[:1], "new": LOW[1:2]}, True, "No verdict"),
])  # fmt: skip
def test_the_verdict_is_in_words(tests: dict[str, Sequence[float]], lower: bool, said: str) -> None:
    results = results_of({("task", head): values for head, values in tests.items()}, lower)
    assert results.sentence.startswith(said)
    lost = sum(not math.isfinite(x) for values in tests.values() for x in values)
    assert (f"Repetitions that diverged or failed, last in rank: {lost} of " in results.sentence) == bool(lost)
    assert results.sentence in str(results) and all(head in results.printed for head in tests)


def test_what_it_would_take_is_more_than_there_is_at_the_level_of_the_verdict() -> None:
    values = {"softmax": LOW, "new": [x - 0.3 for x in LOW], "other": [x - 0.25 for x in LOW]}
    once, twice = (results_of({("task", head): x for head, x in values.items()}, looks=looks) for looks in (1, 20))
    assert once.verdict("task", "new") == "ahead of" or once.needed("task", "new") > "5"
    effect = twice.differences["task", "new"].effect
    assert twice.needed("task", "new") == f"{needed(effect, level=0.05 / 20 / 2)}"
    alone = results_of({("task", "softmax"): LOW, ("task", "new"): [x - 0.2 for x in LOW]}, looks=5)
    assert int(alone.needed("task", "new")) > 5


@pytest.mark.parametrize(("tests", "looks", "said"), [
    ({"softmax": LOW[:2], "new": MIDDLE[:2]}, 1, "Too few repetitions to tell new from softmax: test "),
    ({"softmax": LOW[:3], "new": LOST[2:]}, 1, "Too few repetitions to tell new from softmax: by ranks, p = "),
    ({"softmax": LOW, "new": LOST}, 5, "No difference seen between new and softmax: by ranks, p = "),  # 5 * 2/252
    ({"softmax": LOW, "new": LOST}, 7, "Too few repetitions to tell new from softmax: by ranks, p = "),
    ({"softmax": LOW, "new": LOST, "b": LOST}, 4, "Too few repetitions to tell new or b from softmax. "),
])  # fmt: skip
def test_what_no_outcome_could_have_told_is_not_called_no_difference(
    tests: dict[str, Sequence[float]], looks: int, said: str
) -> None:
    assert results_of({("task", head): values for head, values in tests.items()}, looks=looks).sentence.startswith(said)


def test_a_repetition_whose_search_diverged_is_last_in_rank(asked: Callable[..., Compared]) -> None:
    counted = Counted(lambda head, rate, seed: (math.nan, 0.0) if (head, seed) == ("better", SEARCH + 1) else (1, seed))
    results = asked(counted, seeds=3)
    assert math.isnan(results.tests("train", "better")[0]) and results.tests("train", "better")[1:] == (2.0, 3.0)
    assert ("better", 1) not in {(head, seed) for head, _, seed in counted.calls}  # at no rate of the search
    assert "diverged or failed, last in rank: 1 of better." in results.sentence


def test_what_looks_wrong_with_train_is_told(asked: Callable[..., Compared], tmp_path: Path) -> None:
    def told(function: Any, **changed: Any) -> str:
        return asked(function, folder=tmp_path / f"{next(number)}", seeds=3, **changed).sentence

    number = count()

    def noise(*of: Any) -> float:
        return Random(f"{of}").random()

    still = told(lambda head, rate, seed: (noise(seed), len(head) + 1e-9 * noise(head, seed)), rates=1e-3)
    assert still.startswith("No verdict") and "All tests are equal: softmax, better. Does train use its seed?" in still
    one = told(lambda head, rate, seed: (1.0, 0.5 if head == "better" else noise(seed)), rates=1e-3)
    assert not one.startswith("No verdict") and "All tests are equal: better. Does train use its seed?" in one
    alike = told(lambda head, rate, seed: (noise(rate, seed), noise(seed)))
    assert "All runs are equal: softmax and better. Does train use its head?" in alike
    same = told(lambda head, rate, seed: (noise(head, rate, seed),) * 2)
    assert "Validation and test are equal: the rate was chosen by the test." in same
    assert not any("equal" in told(function) for function in (train,))


def test_all_comparisons_are_corrected_and_looks_too() -> None:
    tests = {
        (task, head): values for task in "ab" for head, values in {"softmax": LOW, "x": LOST[:3], "y": HIGH}.items()
    }
    once, alone = (
        results_of(tests),
        results_of({place: tests[place] for place in (("a", "softmax"), ("a", "x"), ("a", "y"))}),
    )
    assert once.sentence.startswith(
        "y (a) and y (b) are behind softmax. No difference seen between x (a) or x (b) and softmax."
    )
    assert once.differences["a", "y"].p == pytest.approx(2 * alone.differences["a", "y"].p)
    for place, found in results_of(tests, looks=3).differences.items():
        assert found.p == pytest.approx(min(1, 3 * once.differences[place].p))


def test_a_repetition_grows_its_own_grid_and_no_other(asked: Callable[..., Compared]) -> None:
    def lower(head: str, rate: float, seed: int) -> Any:  # the first repetition of one head never has enough
        return -rate if (head, seed) == ("better", SEARCH + 1) else abs(math.log10(rate) + 3), seed

    counted = Counted(lower)
    said = asked(counted, seeds=3).sentence
    tried = {(head, seed): sorted(r for h, r, s in counted.calls if (h, s) == (head, seed)) for head, _, seed in
             counted.calls}  # fmt: skip
    assert tried.pop(("better", SEARCH + 1)) == [*RATES, 0.1, 1.0, 10.0]
    assert tried.pop(("better", 1)) == [10.0]
    assert all(rates == [1e-3] if seed < SEARCH else rates == [*RATES] for (_, seed), rates in tried.items())
    assert "1 of 3 repetitions of better chose a rate at an end of what they tried; a better one may lie" in said
    assert "of softmax chose" not in said


def test_a_study_that_grew_holds_the_runs_of_a_fresh_one(asked: Callable[..., Compared], tmp_path: Path) -> None:
    def beyond(head: str, rate: float, seed: int) -> Any:  # the first rate beyond the grid is the best
        noise = Random(f"{head} {rate} {seed}")
        return noise.gauss(3.0 * (rate < 0.02), 2), noise.gauss(3.0 * (rate < 0.02), 1)

    asked(beyond, seeds=3)
    grown, fresh = asked(beyond, seeds=5), asked(beyond, seeds=5, folder=tmp_path / "fresh")
    assert keys(grown) == keys(fresh)
    sizes = [sum(run.config["seed"] == SEARCH + seed for run in runs) for runs in fresh.trials.values()
             for seed in range(1, 6)]  # fmt: skip
    assert len(set(sizes)) > 1  # their grids differ


def keys(results: Compared) -> list[tuple[Any, str]]:
    return sorted((place, key_of(run.config)) for place, runs in results.trials.items() for run in runs)


def test_what_is_done_is_not_done_again_and_may_grow(asked: Callable[..., Compared]) -> None:
    counted = Counted()
    first = asked(counted)
    done = list(counted.calls)
    assert str(asked(counted, lower_is_better=None)) == str(first) and counted.calls == done  # it is asked once
    more = asked(counted, seeds=3)
    assert counted.calls[: len(done)] == done and len(set(counted.calls)) == len(counted.calls) == 2 * 4 * 3
    assert more.looks == 2  # the p-values of what was looked at before are doubled
    assert "It was looked at 2 times, and p-values are multiplied by that." in more.sentence
    assert asked(counted, seeds=3, heads=("softmax", "better", "same")).looks == 3
    assert len(counted.calls) == 3 * 4 * 3 and asked(counted).looks == 3


def test_a_study_that_was_asked_for_more_and_got_nothing_has_no_verdict(
    asked: Callable[..., Compared], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: Any) -> Any:
        raise UserError("there is no Ray cluster")

    assert asked(rates=1e-3).is_finished
    with monkeypatch.context() as patched, pytest.raises(UserError, match="no Ray cluster"):
        patched.setattr(run, "executor_of", unreachable)
        asked(rates=1e-3, seeds=4)
    assert load(asked.studies[tmp_path / DATABASE]).sentence.startswith("Not finished: 4 runs are there.")  # type: ignore[attr-defined]
    assert asked(rates=1e-3, seeds=4).is_finished


def test_what_all_are_compared_with_stays_when_heads_are_added(asked: Callable[..., Compared]) -> None:
    asked(heads=("better", "same"), rates=1e-3)
    with pytest.raises(UserError, match="compares all heads with better, and softmax would take its place"):
        asked(heads=("better", "same", "softmax"), rates=1e-3)
    assert asked(heads=("better", "same", "new"), rates=1e-3).base == "better"


@pytest.mark.parametrize("which", ["mine", "beside"])
def test_code_that_changed_is_told_with_the_verdict(asked: Callable[..., Compared], tmp_path: Path, which: str) -> None:
    (tmp_path / "beside.py").write_text("from tests.lab.comparable import train as of\n")
    (tmp_path / "mine.py").write_text("def train(*given):\n    import beside\n    return beside.of(*given)\n")
    file = tmp_path / f"{which}.py"
    first = file.read_text()
    for seeds, code in ((2, first), (3, first + "a = 2"), (3, first)):
        file.write_text(code)
        said = asked(FromFile(tmp_path / "mine.py", "train"), rates=1e-3, seeds=seeds).sentence
        assert (f"{which}.py changed after some runs." in said) == (seeds == 3)  # also when it is as it was


def test_the_files_of_a_function_are_its_own_and_what_they_import_from_beside_them(tmp_path: Path) -> None:
    code = {
        "mine.py": "import os, torch, one\nfrom package import two\ndef f():\n    from package.deep.three import x",
        "one.py": "import mine",
        "package/__init__.py": "from . import four",
        "package/two.py": "from .five import y",
        "package/deep/__init__.py": "",
        "package/deep/three.py": "from ..six import z\nthis is no Python",
        "package/four.py": "",
        "package/five.py": "import alone.seven",
        "alone/seven.py": "",
        "nobody.py": "",
        "package/six.py": "",
    }
    for name, text in code.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = {path.relative_to(tmp_path).as_posix() for path in sources(tmp_path / "mine.py")}
    assert found == code.keys() - {"nobody.py", "package/six.py"}


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("validation", [math.nan, math.inf, -math.inf])
def test_a_validation_that_is_no_number_is_the_worst(validation: float, lower: bool) -> None:
    assert outcome_of((validation, 1.0), lower).value == math.inf


def test_a_run_that_raises_tells_its_traceback_and_the_others_go_on(
    asked: Callable[..., Compared], capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(head: str, rate: float, seed: int) -> Any:
        if head == "better" and seed in (2, 3):
            raise FileNotFoundError("no data")
        return train(head, rate, seed)

    results = asked(failing, rates=1e-3, seeds=4)
    assert [math.isnan(test) for test in results.tests("failing", "better")] == [False, True, True, False]
    assert results.sentence.startswith("No difference seen between better and softmax: by ranks, p = ")
    assert results.sentence.endswith(
        "Repetitions that diverged or failed, last in rank: 2 of better. Runs that failed: 2 of better (rate 0.001)."
    )
    told = capsys.readouterr().err
    assert "in failing" in told and told.count('raise FileNotFoundError("no data")') == 1


def test_what_fails_at_once_is_not_tried_sixty_times(asked: Callable[..., Compared]) -> None:
    def broken(head: str, rate: float, seed: int) -> Any:
        raise KeyError(head)

    counted = Counted(broken)
    with pytest.raises(UserError, match="a first run failed, and the study ends here"):
        asked(counted)
    assert len(counted.calls) == 2 * 3  # three times each


def test_a_head_that_cannot_run_gets_no_verdict(asked: Callable[..., Compared]) -> None:
    def half(head: str, rate: float, seed: int) -> Any:
        if head == "better":
            raise KeyError(head)
        return rate, seed

    with pytest.raises(UserError, match=r"a first run failed, and the study ends here \(better, rate 0.0001, search"):
        asked(half)


def test_a_curve_that_broke_off_says_nothing_of_when_to_stop() -> None:
    whole, broken = [3.0, 2.0, 1.0] * 4, [math.nan] * 3
    assert not any(map(hopeless([whole, broken], True), [9.0] * 4))  # a third of the longest it is let be
    assert any(map(hopeless([whole, whole], True), [9.0] * 12))


def test_a_run_may_tell_its_way(asked: Callable[..., Compared], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr("catnat_lab.live.Watch.news", lambda watch, *news: told.append(news))

    def telling(head: str, rate: float, seed: int) -> Any:
        for step in (10, 20):
            yield step, torch.tensor(1 / step)
        return {"validation": 1.0, "test": seed, "nodes": 3}

    results = asked(telling, rates=1e-3)
    (run, *_) = results.stage(("telling", "softmax"), "final")
    assert run.record == {"curve": {"step": [10, 20], "validation": pytest.approx([0.1, 0.05])}}
    assert run.metrics == {"validation": 1.0, "test": 1.0, "nodes": 3.0}
    assert told[:2] == [
        ("softmax, rate 0.001, final seed 1", 10.0, pytest.approx(0.1)),
        ("softmax, rate 0.001, final seed 1", 20.0, pytest.approx(0.05)),
    ]


class Telling(Counted):
    """A loss that falls to what `train` gives; it is interrupted before so many runs."""

    def __init__(self, runs: float = math.inf) -> None:
        super().__init__()
        self.left, self.__name__, self.__qualname__ = runs, "telling", "telling"

    def __call__(self, head: str, rate: float, seed: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        (validation, test), noise = super().__call__(head, rate, seed), Random(f"{head} {rate} {seed}")
        for step in range(1, 10):
            yield 10 * step, validation + 3 * math.exp(-step) + noise.gauss(0, 0.3)
        return validation, test


def test_a_hopeless_run_of_the_search_is_stopped_and_whatever_interrupts_it_is_the_same_one(
    asked: Callable[..., Compared], tmp_path: Path
) -> None:
    whole = asked(Telling(), rates="1e-5..1e-1", prune=True, seeds=3)
    rates = sorted({run.config["rate"] for runs in whole.trials.values() for run in runs})
    waves = {rate: max(0, place - 1) for place, rate in enumerate(sorted(rates, key=lambda r: abs(rates.index(r) - 4)))}
    stopped = 0
    for place, seed in product(whole.places, (1, 2, 3)):
        runs = [run for run in whole.stage(place, "search", "wider") if run.config["seed"] == SEARCH + seed]
        ended = {run.config["rate"]: run.record["curve"]["validation"] for run in runs if STOPPED not in run.metrics}
        for each in runs:
            wave, curve = waves[each.config["rate"]], each.record["curve"]["validation"]
            others = [other for rate, other in ended.items() if waves[rate] < wave]
            bad = [
                k for k in range(3, len(curve)) if others and min(curve[: k + 1]) > median(other[k] for other in others)
            ]
            assert (STOPPED in each.metrics) == bool(bad) and bad[:1] == [len(curve) - 1] * bool(bad)
            assert math.isfinite(each.value) == (not bad) and each.metrics.get(STOPPED, 90) == 10 * len(curve)
            stopped += bool(bad)
    assert 10 < stopped < len(whole.searched) and all(
        STOPPED not in run.metrics for place in whole.places for run in whole.stage(place, "final")
    )
    assert f"Pruning was on, and stopped {stopped} of {len(whole.searched)} runs of the search." in whole.sentence
    for left in (3, 20, 31):
        with pytest.raises(KeyboardInterrupt):
            asked(Telling(left), rates="1e-5..1e-1", prune=True, seeds=3, folder=tmp_path / "again")
    assert str(asked(Telling(), rates="1e-5..1e-1", prune=True, seeds=3, folder=tmp_path / "again")) == str(whole)
    with pytest.raises(UserError, match="prune was True, now False"):
        asked(Telling(), rates="1e-5..1e-1", seeds=3)


def test_trials_are_pruned_beside_the_trials_before_them(asked: Callable[..., Compared]) -> None:
    def tuned(head: str, rate: float, seed: int, tau: float) -> Any:
        yield from ((step, abs(math.log(tau))) for step in range(6))
        return abs(math.log(tau)), Random(f"{head} {seed}").random()

    results = asked(tuned, rates=1e-3, search={"tau": "0.1..10"}, trials=6, prune=True)
    for place, seed in product(results.places, (1, 2)):
        runs = [run for run in results.stage(place, "search") if run.config["seed"] == SEARCH + seed]
        ended: list[float] = []
        for each in sorted(runs, key=lambda run: run.config["trial"]):
            value = abs(math.log(each.config["tau"]))
            assert (STOPPED in each.metrics) == (len(ended) > 1 and value > median(ended))
            ended += [] if STOPPED in each.metrics else [value]


def test_what_cannot_be_pruned_is_said(asked: Callable[..., Compared]) -> None:
    with pytest.raises(
        UserError, match=r"prune takes a train that yields \(step, validation\) as it goes; it gave a tup"
    ):
        asked(prune=True)
    with pytest.raises(UserError, match="prune goes with train, which yields"):
        asked(None, train_many=lambda runs: [], prune=True)


def test_a_process_that_runs_the_script_again_ends_and_is_told_in_one_line(
    asked: Callable[..., Compared], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unguarded, match=r"put what begins a study under if __name__ == '__main__':"):
        list(Processes(RunContext(tmp_path), 1).run(Ended(), [[Job("one", {"seed": 1})]]))
    monkeypatch.setattr(multiprocessing.current_process(), "name", WORKER)
    with pytest.raises(SystemExit) as ended:
        asked()
    assert ended.value.code == UNGUARDED


def test_the_time_left_is_told_when_there_is_something_to_go_by(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, watch = [0.0], Watch(console=Console(file=StringIO()))
    monkeypatch.setattr("catnat_lab.live.time.monotonic", lambda: clock[0])
    told = []
    for done in range(1, 61):
        clock[0] += 600 if done == 1 else 6  # what the first one takes is told by none that follows
        watch.finished("run", "", done, 60)
        told.append(watch.left)
    assert told[:6] == [""] * 6 and told[6] == ", 5.3 minutes left" and told[-2:] == [", 0.1 minutes left", ""]


def gives(came: Any) -> Callable[..., Any]:
    return lambda head, rate, seed: came


RETURNED = "train must return (validation, test), or a dict with these two; got "


@pytest.mark.parametrize(("came", "told"), [
    (0.93, RETURNED + "one number, 0.93"),
    ("fine", RETURNED + "'fine'"),
    (None, RETURNED + "None"),
    (torch.zeros(2), RETURNED + "a Tensor of shape torch.Size([2]), device cpu"),
    ({"validation": 1.0}, RETURNED + "a dict with validation"),
    ((1.0, "good"), "test must be one number; got 'good'"),
    ((1.0, torch.zeros(2)), "test must be one number; got a Tensor of shape torch.Size([2]), device cpu"),
    ((1.0, None), "test must be one number; got None"),
    (iter([1]), RETURNED + "a list_iterator"),
])  # fmt: skip
def test_what_train_must_not_return(came: Any, told: str) -> None:
    with pytest.raises(UserError) as caught:
        outcome_of(came, True)
    assert str(caught.value) == told


def test_what_train_must_not_yield(asked: Callable[..., Compared]) -> None:
    def telling(head: str, rate: float, seed: int) -> Any:
        yield 1.0

    with pytest.raises(UserError, match=r"train must yield \(step, validation\) as it goes; got one number, 1.0"):
        asked(telling)


@pytest.mark.parametrize(("changed", "told"), [
    ({"lower_is_better": None}, "lower_is_better must be said once for a folder: "),
    ({"rates": "0..1e-2"}, "rates must go from a positive number to a larger one, such as 1e-4..1e-2; got 0..1e-2"),
    ({"rates": "1e-2..1e-4"}, "rates must go from a positive number to a larger one, .*; got 1e-2..1e-4"),
    ({"rates": "fast"}, "rates must be numbers, or a range such as 1e-4..1e-2; got 'fast'"),
    ({"rates": (0.1, -1)}, "rates must be positive numbers; got -1.0"),
    ({"rates": ()}, "rates must hold at least one value, each once; got none"),
    ({"seeds": 1}, "seeds must be at least 2; got 1"),
    ({"heads": ("softmax",)}, "heads must be two or more, to be compared; got softmax"),
    ({"heads": ("a", "a")}, "heads must hold at least one value, each once; got a, a"),
    ({"jobs": 0}, "jobs must be a whole number of at least 1; got 0"),
    ({"at_once": 0}, "at_once must be a whole number of at least 1; got 0"),
    ({"rates": None}, "rates must be numbers, or a range such as 1e-4..1e-2; got None"),
    ({"rates": "1e-3..1.001e-3"}, "rates must hold at least one value, each once; got 0.001, 0.001, 0.001"),
    ({"seeds": 2.5}, "seeds must be a whole number; got 2.5"),
    ({"seeds": "5"}, "seeds must be a whole number; got '5'"),
    ({"function": None, "tasks": {"tau=1": train}}, "tasks must have names without =; got 'tau=1'"),
    ({"function": None, "tasks": {"x": train, "x y": train}, "heads": ("softmax", "y softmax")},
     "tasks and heads must have names that do not run together"),
    ({"function": None}, "compare takes one of train, tasks and train_many"),
    ({"function": 3}, "train must be a function; got a int"),
    ({"function": lambda lr, seed: 0}, r"must take \(head, rate, seed\); it takes \(lr, seed\): too many"),
    ({"search": {"tau": 1}}, "search must have a range such as '0.1..1', or choices, for tau; got 1"),
    ({"search": {"tau": (1, 2)}}, r"must take \(head, rate, seed, tau=\); it takes \(head, rate, seed\)"),
    ({"function": lambda head, rate, seed: 0, "jobs": 2}, "cannot be handed to other processes"),
])  # fmt: skip
def test_what_cannot_be_asked(asked: Callable[..., Compared], changed: Any, told: str) -> None:
    with pytest.raises(UserError, match=told) as caught:
        asked(**changed)
    assert "\n" not in str(caught.value)


def test_a_folder_of_another_study_is_refused(asked: Callable[..., Compared], tmp_path: Path) -> None:
    asked(rates=1e-3)
    with pytest.raises(UserError, match=r"rates was 0.001, now 0.01"):
        asked(rates=1e-2)
    with pytest.raises(UserError, match=r"tasks was train=comparable.py:train, now <lambda>="):
        asked(gives((1.0, 1.0)), rates=1e-3)
    asked.studies[tmp_path / "other" / DATABASE].set_note("kind", "catnat gsl")  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="holds a study of catnat gsl, not of catnat compare"):
        asked(folder=tmp_path / "other")


def test_other_settings_are_searched_by_trials(asked: Callable[..., Compared]) -> None:
    calls = []

    def tuned(head: str, rate: float, seed: int, tau: float, kind: str) -> Any:
        calls.append((head, seed, tau))
        loss, test = train(head, rate, seed)
        return loss + abs(tau - 1), test + abs(tau - 1) + (kind == "bad")

    search = {"tau": "0.1..10", "kind": ["good", "bad"]}
    results = asked(tuned, rates="1e-4..1e-2", search=search, trials=3, seeds=2)
    assert len(calls) == 2 * 2 * 4 and all(0.1 <= tau <= 10 for _, _, tau in calls)
    assert len({tau for head, _, tau in calls if head == "softmax"}) == 6  # every repetition goes its own way
    assert set(results.chosen("tuned", "softmax")) == {"rate", "tau", "kind"}
    assert str(asked(tuned, rates="1e-4..1e-2", search=search, trials=3, seeds=2)) == str(results)
    assert len(calls) == 16


def test_the_next_trial_follows_from_those_before_it() -> None:
    space = {"tau": FloatDistribution(0.1, 10.0, log=True)}
    tried = [Finished(float(i), {}, {}, {"tau": 0.1 + 0.5 * i}) for i in range(3)]
    given = (("a", tried), ("a", tried), ("b", tried), ("a", tried[:2]))
    one, again, other, later = (proposed(cell, space, {"seed": 1}, some) for cell, some in given)
    assert one == again and len({job.config["tau"] for job in (one, other, later)}) == 3


def test_many_runs_are_trained_by_one_call(asked: Callable[..., Compared]) -> None:
    sizes = []

    def many(runs: list[tuple[str, float, int]]) -> Any:
        sizes.append(len(runs))
        return [train(*run) for run in runs]

    results = asked(None, train_many=many, at_once=8)
    assert sizes == [2, 8, 2, 4]
    assert results.tests("many", "better") == asked(folder=results.page / "one").tests("train", "better")


def test_a_run_that_raises_costs_its_neighbours_nothing(asked: Callable[..., Compared]) -> None:
    def many(runs: list[tuple[str, float, int]]) -> Any:
        if any(head == "better" and seed == 2 for head, _, seed in runs):
            raise ValueError("out of memory")
        return [train(*run) for run in runs]

    results = asked(None, train_many=many, at_once=8)
    assert results.tests("many", "softmax") == asked(folder=results.page / "one").tests("train", "softmax")
    assert [math.isnan(test) for test in results.tests("many", "better")].count(True) == 1


def test_the_page_shows_every_run_and_how_it_is_judged(tmp_path: Path) -> None:
    tasks = {"<b>": train, "other": train}
    results = compare(tasks=tasks, heads=("softmax", "natural"), rates=(1e-3, 1e-2), seeds=2, folder=tmp_path,
                      lower_is_better=True)  # fmt: skip
    assert results.page == tmp_path / "report.html"
    page = results.page.read_text()
    assert (
        page.count("<svg") == 2
        and "<b>" not in page.split("<body>")[1].replace("<b>", "", 0)
        and RULE.split(".")[0] in page
    )
    rows = list(csv.DictReader((tmp_path / "values.csv").open()))
    assert len(rows) == results.finished() == page.count("<tr><td>") - 1
    assert {row["stage"] for row in rows} >= {"search", "final"} and all(float(row["test"]) for row in rows)
    told = json.loads((tmp_path / "verdict.json").read_text())
    assert told["verdict"] == results.sentence and len(told["table"]) == 4 and told["commit"]
    (first, _), found = told["comparisons"], results.differences["<b>", "natural"]
    numbers = (found.difference, found.low, found.high, found.effect, found.p)
    assert tuple(first[name] for name in ("difference", "low", "high", "effect", "p corrected")) == numbers
    assert (first["verdict"], first["repetitions"], told["looks"]) == (results.verdict("<b>", "natural"), 2, 1)


@pytest.mark.parametrize(("looks", "is_finished", "bold"), [(1, True, "new"), (10**9, True, None), (1, False, None)])
def test_the_page_judges_as_the_sentence_does(tmp_path: Path, looks: int, is_finished: bool, bold: str | None) -> None:
    results = results_of({("task", "softmax"): HIGH, ("task", "new"): LOW}, looks=looks, is_finished=is_finished)
    page = write_page(results, tmp_path).with_suffix(".md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("| test |")]
    assert [line.split(" | ")[1] for line in lines if "**" in line] == [bold, bold] * bool(bold)
    assert ("Against softmax" in page) == (len(lines) == 3) == is_finished
    assert ("is ahead of" in results.sentence) == bool(bold)


FILE = Path(__file__).with_name("comparable.py")


def test_the_command_says_what_the_function_says(
    asked: Callable[..., Compared], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "by command"
    given = [f"{FILE}:train", "--heads", "softmax,better", "--rates", "0.0001,1e-3,1e-2", "--seeds", "2"]
    (folder).mkdir()
    assert main(["compare", *given, "--output", str(folder)]) == 2
    assert capsys.readouterr().err == f"error: {run.BETTER}\n"
    assert main(["compare", *given, "--output", str(folder), "--better", "lower"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith(f"{asked()}\n\nreport: {folder}")
    assert "better, rate 0.0001, search seed 1001: validation 1.465 (2 of 16)" in told.err
    assert main(["status", str(folder)]) == 0
    assert "finished: 16 runs\nrunning: nothing; all that was asked for is done" in capsys.readouterr().out
    assert main(["report", str(folder)]) == 0
    assert str(asked()) in capsys.readouterr().out


def test_a_study_of_anybody_s_is_reported_by_who_registered(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = ModuleType("mine")
    reporter.load = lambda study: Results(study.note("mine settings"), {}, {})  # type: ignore[attr-defined]
    reporter.write_report = lambda results, folder: (print(results.settings), (folder, ()))[1]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mine", reporter)
    monkeypatch.setattr("catnat_lab.experiment._REPORTERS", {})
    with Study(path, conduct=True) as study:
        study.set_note("mine settings", {"known": 1})
    assert main(["report", str(path)]) == 2
    register("mine", "mine")
    assert main(["report", str(path)]) == 0
    assert capsys.readouterr().out.startswith("{'known': 1}")


@pytest.mark.parametrize(("given", "told"), [
    ([], "a training function must be given, as FILE.py:FUNCTION"),
    (["mine.py"], "a training function is written FILE.py:FUNCTION, or NAME=FILE.py:FUNCTION; got 'mine.py'"),
    (["/none/mine.py:train"], "there is no Python file /none/mine.py"),
    ([f"{FILE}:nobody"], f"there is no function nobody in {FILE}"),
    ([f"{FILE}:train", "--better", "best"], "better must be lower or higher; got 'best'"),
    ([f"{FILE}:train", "--search", "tau"], "search takes NAME=LOW..HIGH or NAME=CHOICE,CHOICE; got 'tau'"),
    ([f"{FILE}:train", "--search", "tau=1,2"], "train must take (head, rate, seed, tau=); it takes (head, rate, seed)"),
])  # fmt: skip
def test_what_the_command_refuses(given: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *given]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {told}") and error.count("\n") == 1


def begun(record: Path) -> list[str]:
    return record.read_text().splitlines() if record.exists() else []


def kept(folder: Path) -> tuple[str, list[tuple[str, str]]]:
    """The verdict with its table, and every run that a study holds."""
    with Study(folder / DATABASE) as study:
        results = load(study)
        trials = [(cell, key_of(f.config)) for cell in study.cells() for f in study.finished(cell)]
        assert sum(len(study._trials(cell, TrialState.COMPLETE)) for cell in study.cells()) == len(trials)
    return str(results), sorted(trials)


def killed(begin: Callable[[], int], record: Path, kills: int, seed: int = 0) -> None:
    """Let it begin, and kill -9 it at a random moment after some more runs, so many times; then let it end."""
    random = Random(seed)
    for last in [*[False] * kills, True]:
        wanted, process = len(begun(record)) + random.randint(1, 4), begin()
        while not last and len(begun(record)) < wanted and os.waitpid(process, os.WNOHANG) == (0, 0):
            time.sleep(0.001)
        if last:
            assert os.waitpid(process, 0)[1] == 0
        else:
            time.sleep(random.random() * 0.03)
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def test_a_study_that_is_killed_goes_on(
    asked: Callable[..., Compared], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, kills = tmp_path / "record", 3
    monkeypatch.setenv("RECORD", str(record))

    def begin() -> int:
        process = os.fork()  # what is imported is there, as it would not be in a new process
        if not process:
            asked(recorded, rates=RATES[:2], kept=True)
            os._exit(0)
        return process

    killed(begin, record, kills)
    monkeypatch.setenv("RECORD", str(tmp_path / "serial"))
    said = str(asked(recorded, rates=RATES[:2], folder=tmp_path / "once", kept=True))
    assert kept(tmp_path) == kept(tmp_path / "once") == (said, kept(tmp_path)[1])
    assert (
        len(kept(tmp_path)[1])
        == len(begun(tmp_path / "serial"))
        <= len(begun(record))
        <= len(kept(tmp_path)[1]) + kills
    )


@pytest.mark.slow
def test_a_command_that_is_killed_twenty_times_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, kills, jobs = tmp_path / "record", 20, 2
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    asked = [f"{FILE}:recorded", "--better", "lower", "--seeds", "8", "--heads", "softmax,better", "--prune"]

    def begin(folder: str = "killed", jobs: int = jobs) -> int:
        more = ["--jobs", str(jobs), "--output", str(tmp_path / folder)]
        return subprocess.Popen([sys.executable, "-m", "catnat_lab", "compare", *asked, *more]).pid

    monkeypatch.setenv("RECORD", str(record))
    killed(begin, record, kills)
    monkeypatch.setenv("RECORD", str(tmp_path / "serial"))
    assert os.waitpid(begin("once", 1), 0)[1] == 0
    assert kept(tmp_path / "killed") == kept(tmp_path / "once") and len(kept(tmp_path / "once")[1]) == 96
    assert 96 <= len(begun(record)) <= 96 + kills * jobs


@pytest.mark.slow  # sklearn is imported
@pytest.mark.parametrize(("name", "short"), [("compare_digits", {"epochs": 1}), ("compare_vae", {"steps": 100})])
def test_an_example_is_a_file_of_some_forty_lines_that_can_be_asked(
    asked: Callable[..., Compared], name: str, short: dict[str, int]
) -> None:
    pytest.importorskip("sklearn")
    file = Path(__file__).parents[2] / "examples" / f"{name}.py"
    assert len(file.read_text().splitlines()) <= 46
    results = asked(partial(FromFile(file, "train"), **short), ("softmax", "natural"), rates=1e-2)
    assert results.is_finished and len(results.differences) == 1 and results.finished() == 4
    assert all(run.record["curve"]["step"] for run in results.stage(("train", "natural"), "final"))
