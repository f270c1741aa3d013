"""A search ends with exactly as many finished trials as it was asked for, and learns on the way."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from catnat_lab.store import Claim, Store, work
from catnat_lab.trials import Range


def bowl(claims: list[Claim]) -> Iterator[Any]:
    for claim in claims:
        yield claim, math.log10(claim.config["rate"] / 0.03) ** 2, {}, None


def test_a_search_ends_at_its_count_and_goes_on_with_a_larger_one(store: Store) -> None:
    study = store.study("cell")
    study.plan([{"stage": "grid", "rate": 0.1}])
    study.search({"rate": (1e-4, 1.0)}, {"stage": "search"}, 5, parallel=2)
    assert study.waiting() == 1 + 5
    work([study], bowl, batch=4)
    work([study], bowl, batch=4)
    found = study.finished(stage="search")
    assert len(found) == 5
    assert len(study.finished()) == 1 + 5
    assert all(1e-4 <= result.config["rate"] <= 1.0 for result in found)
    study.search({"rate": (1e-4, 1.0)}, {"stage": "search"}, 7)
    study.search({"rate": (1e-4, 1.0)}, {"stage": "other"}, 2)
    work([study], bowl, batch=4)
    assert len(study.finished(stage="search")) == 7
    assert len(study.finished(stage="other")) == 2
    assert len({result.config["rate"] for result in study.finished(stage="search")}) == 7


def test_a_search_learns_from_its_results(store: Store) -> None:
    study = store.study("cell")
    study.search({"rate": (1e-6, 1e2)}, {}, 40)
    work([study], bowl, batch=5)
    values = [result.value for result in study.finished()]
    assert sorted(values[20:])[10] < 0.5 * sorted(values[:10])[5]


def test_a_search_keeps_at_most_parallel_trials_open(path: Path, store: Store) -> None:
    study = store.study("cell")
    study.search({"rate": (1e-4, 1.0)}, {}, 9, parallel=3)
    claims = study.ask(8)
    assert len(claims) == 3
    assert study.ask(8) == []
    study.tell(claims[0], 1.0, {})
    assert len(study.ask(8)) == 1


def test_a_search_whose_trials_all_fail_comes_to_an_end(path: Path) -> None:
    def failing(claims: list[Claim]) -> Iterator[Any]:
        for claim in claims:
            study.fail(claim, "always")
        yield from ()

    with Store(path) as store:
        study = store.study("cell")
        study.search({"rate": (1e-4, 1.0)}, {}, 4)
        work([study], failing, batch=2)
        assert study.waiting() == 0
    with Store(path) as later:
        study = later.study("cell")
        study.search({"rate": (1e-4, 1.0)}, {}, 4)
        work([study], bowl, batch=2)
        assert len(study.finished()) == 4


@pytest.mark.parametrize("space", [{"rate": (0.0, 1.0)}, {"rate": (1.0, 1.0)}, {"rate": (1.0, math.inf)}, {}])
def test_a_search_of_nothing_is_refused(store: Store, space: dict[str, tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="space"):
        store.study("cell").search(space, {}, 3)


def test_optuna_is_silent(path: Path, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder) -> None:
    level = optuna.logging.get_verbosity()
    with Store(path) as store:
        study = store.study("cell")
        study.search({"rate": (1e-4, 1.0)}, {}, 12)
        work([study], bowl, batch=3)
    assert capfd.readouterr() == ("", "")
    assert [str(warning.message) for warning in recwarn] == []
    assert optuna.logging.get_verbosity() == level


def test_a_search_takes_optunas_ranges(store: Store) -> None:
    """Whole numbers in steps, plain and logarithmic floats; and what was drawn is kept as it was."""
    study = store.study("cell")
    space: dict[str, Range] = {
        "rate": FloatDistribution(1e-5, 1e-2, log=True),
        "clip": FloatDistribution(0.0, 0.9),
        "rollout": IntDistribution(32, 512, step=32),
    }
    study.search(space, {"stage": "tpe"}, 12)
    claims = []
    while found := study.ask(3):
        for claim in found:
            study.tell(claim, abs(claim.config["rollout"] - 256), {})
        claims += found
    assert len(claims) == 12
    for claim in claims:
        config = claim.config
        assert isinstance(config["rollout"], int) and config["rollout"] % 32 == 0 and 32 <= config["rollout"] <= 512
        assert 1e-5 <= config["rate"] <= 1e-2 and 0 <= config["clip"] <= 0.9
    again = store.study("cell")
    again.search(space, {"stage": "tpe"}, 12)
    assert again.ask(3) == []  # the same search, which is finished
