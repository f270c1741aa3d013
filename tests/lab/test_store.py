"""A trial is finished exactly once, and a database that is not the store's is left untouched."""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
import pytest

from catnat_lab.store import Claim, Store, StoreError, work

CONFIGS: list[dict[str, Any]] = [{"stage": "coarse", "rate": 10.0**-k, "seed": s} for k in (1, 2) for s in range(3)]


def train(claims: list[Claim]) -> Iterator[tuple[Claim, float, dict[str, float], dict[str, Any] | None]]:
    for claim in claims:
        yield claim, claim.config["rate"], {"loss": 2 * claim.config["rate"]}, {"curve": [1.0, 0.5]}


def execute(path: Path, statement: str, *values: object) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(statement, values).fetchall()
        connection.commit()
        return rows


# ---------------------------------------------------------------- plan, ask, tell


def test_every_planned_trial_is_finished_once_with_what_was_told(store: Store) -> None:
    study = store.study("cell")
    assert study.plan(CONFIGS) == len(CONFIGS)
    work([study], train, batch=4)
    finished = study.finished()
    assert [result.config for result in finished] == CONFIGS
    assert [result.number for result in finished] == list(range(len(CONFIGS)))
    for result in finished:
        assert result.value == result.config["rate"]
        assert result.metrics == {"loss": 2 * result.config["rate"]}
        assert result.record == {"curve": [1.0, 0.5]}
    assert study.waiting() == study.running() == 0


def test_planning_again_adds_nothing_whatever_the_state(store: Store) -> None:
    study = store.study("cell")
    study.plan(CONFIGS)
    finished, running, *_ = study.ask(2)
    study.tell(finished, 1.0, {})
    assert study.plan(CONFIGS) == 0
    assert running.config == CONFIGS[1]
    again = [dict(reversed(config.items())) for config in CONFIGS] + [
        {**config, "seed": float(config["seed"])} for config in CONFIGS
    ]
    assert study.plan(again) == 0
    assert study.plan([{**CONFIGS[0], "seed": 9}, {**CONFIGS[0], "seed": 9.0}]) == 1


def test_a_trial_is_claimed_by_one_store_only(path: Path, store: Store) -> None:
    study = store.study("cell")
    study.plan(CONFIGS)
    with Store(path) as second:
        taken = study.ask(4) + second.study("cell").ask(4)
        assert sorted(claim.number for claim in taken) == list(range(len(CONFIGS)))
        assert study.ask(4) == study.ask(0) == []
        assert study.running() == len(CONFIGS)


def test_finished_trials_are_matched_by_config(store: Store) -> None:
    study = store.study("cell")
    study.plan([*CONFIGS, {"other": None}])
    for claim in study.ask(99):
        study.tell(claim, 0.0, {})
    assert len(study.finished(seed=1)) == 2
    assert [result.config for result in study.finished(seed=1, rate=0.1)] == [CONFIGS[1]]
    assert len(study.finished(other=None)) == 1
    assert study.finished(seed=77) == []


def test_a_value_that_is_not_a_number_is_the_worst_and_metrics_are_kept_as_told(store: Store) -> None:
    study = store.study("cell")
    study.plan(CONFIGS[:2])
    first, second = study.ask(2)
    study.tell(first, math.nan, {"loss": math.nan, "top": math.inf})
    study.tell(second, -math.inf, {})
    one, other = study.finished()
    assert one.value == math.inf
    assert math.isnan(one.metrics["loss"])
    assert one.metrics["top"] == math.inf
    assert other.value == -math.inf


@pytest.mark.parametrize("config", [{"a": [1]}, {"a": {"b": 1}}, {1: 2}, {"a": math.nan}, {"a": math.inf}])
def test_a_config_that_is_not_plain_is_refused(store: Store, config: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="config must hold"):
        store.study("cell").plan([config])


def test_a_result_that_cannot_be_kept_leaves_the_trial_running(store: Store) -> None:
    study = store.study("cell")
    study.plan(CONFIGS[:1])
    (claim,) = study.ask(1)
    with pytest.raises(TypeError):
        study.tell(claim, 1.0, {}, {"curve": object()})
    assert study.running() == 1
    assert study.tell(claim, 1.0, {})


def test_a_claim_is_told_to_its_own_study(store: Store) -> None:
    study, other = store.study("cell"), store.study("other")
    study.plan(CONFIGS[:1])
    (claim,) = study.ask(1)
    with pytest.raises(StoreError, match="not in the study 'other'"):
        other.tell(claim, 1.0, {})
    assert study.running() == 1


def test_optuna_reads_what_the_store_writes(path: Path, store: Store) -> None:
    mixed = [*CONFIGS, {"rate": 0.0, "seed": 0, "stage": "fine"}, {"rate": 1, "seed": 2.5, "on": True, "seed2": 2**40}]
    study = store.study("cell")
    study.plan(mixed)
    work([study], train, batch=8)
    read = optuna.load_study(study_name="cell", storage=f"sqlite:///{path}")
    assert [trial.user_attrs["config"] for trial in read.trials] == mixed
    assert read.trials[0].params == {"rate": 0.1, "seed": 0}
    assert read.trials[0].user_attrs["config.stage"] == "coarse"
    assert read.trials[0].user_attrs["metric.loss"] == 0.2
    assert read.best_value == 0.0
    for trial in read.trials:  # one kind of distribution a name, and every entry shown
        shown = {**{k[7:]: v for k, v in trial.user_attrs.items() if k.startswith("config.")}, **trial.params}
        assert shown == trial.user_attrs["config"]
        for name, kind in trial.distributions.items():
            optuna.distributions.check_distribution_compatibility(read.trials[0].distributions[name], kind)


# ---------------------------------------------------------------- failures, losses


def test_a_failed_trial_keeps_its_reason_and_is_tried_again_by_a_later_run_only(path: Path) -> None:
    def failing(claims: list[Claim]) -> Iterator[Any]:
        for claim in claims:
            if claim.config["seed"] == 1:
                study.fail(claim, ValueError("no luck"))
            else:
                yield from train([claim])

    with Store(path) as store:
        study = store.study("cell")
        study.plan(CONFIGS)
        work([study], failing, batch=2)
        assert study.plan(CONFIGS) == 0
        assert len(study.finished()) == 4
    reasons = execute(path, "SELECT value_json FROM trial_user_attributes WHERE key = 'reason'")
    assert reasons == [('"ValueError: no luck"',)] * 2
    with Store(path) as later:
        study = later.study("cell")
        assert study.plan(CONFIGS) == 2
        work([study], train, batch=8)
        assert sorted(map(str, (result.config for result in study.finished()))) == sorted(map(str, CONFIGS))


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_whatever_train_raises_nothing_is_lost(store: Store, error: BaseException) -> None:
    def raising(claims: list[Claim]) -> Iterator[Any]:
        yield from train(claims[:2])
        raise error

    studies = [store.study("one"), store.study("two")]
    for study in studies:
        study.plan(CONFIGS[:3])
    with pytest.raises(type(error)):
        work(studies, raising, batch=5)
    assert [(study.waiting(), study.running(), len(study.finished())) for study in studies] == [(1, 0, 2), (3, 0, 0)]
    work(studies, train, batch=5)
    assert [len(study.finished()) for study in studies] == [3, 3]


def test_train_that_forgets_a_trial_is_told_so(store: Store) -> None:
    study = store.study("cell")
    study.plan(CONFIGS)
    with pytest.raises(RuntimeError, match="without a result for 1 of 3 trials"):
        work([study], lambda claims: train(claims[1:]), batch=3)
    assert (study.waiting(), study.running(), len(study.finished())) == (4, 0, 2)


def test_a_closed_store_gives_back_its_trials(path: Path) -> None:
    with Store(path) as store:
        study = store.study("cell")
        study.plan(CONFIGS)
        told, *_ = study.ask(3)
        study.tell(told, 1.0, {})
    with Store(path, create=False) as later:
        study = later.study("cell", create=False)
        assert (study.waiting(), study.running(), len(study.finished())) == (5, 0, 1)
        assert [claim.attempt for claim in study.ask(9)] == [2, 2, 1, 1, 1]


def silence(path: Path, seconds: int = 1000) -> None:
    execute(path, "UPDATE trial_heartbeats SET heartbeat = datetime(heartbeat, ?)", f"-{seconds} seconds")


def test_the_first_result_counts_and_the_late_one_is_refused(path: Path, store: Store) -> None:
    slow = store.study("cell")
    slow.plan(CONFIGS[:1])
    (claim,) = slow.ask(1)
    silence(path)
    with Store(path) as second:
        quick = second.study("cell")
        assert quick.rescue() == 1
        (again,) = quick.ask(1)
        assert (again.number, again.attempt) == (claim.number, 2)
        slow.fail(claim, "too late to say")
        assert slow.release() == 0
        assert quick.tell(again, 2.0, {"by": 2.0})
        assert not slow.tell(claim, 1.0, {"by": 1.0})
        assert [(result.value, result.metrics) for result in quick.finished()] == [(2.0, {"by": 2.0})]


def test_a_late_result_counts_if_it_is_the_first(path: Path, store: Store) -> None:
    slow = store.study("cell")
    slow.plan(CONFIGS[:1])
    (claim,) = slow.ask(1)
    silence(path)
    with Store(path) as second:
        quick = second.study("cell")
        quick.rescue()
        (again,) = quick.ask(1)
        assert slow.tell(claim, 1.0, {})
        assert not quick.tell(again, 2.0, {})
        assert [result.value for result in quick.finished()] == [1.0]


def test_trials_of_another_host_are_lost_by_silence_only(path: Path, store: Store) -> None:
    study = store.study("cell")
    study.plan(CONFIGS)
    study.ask(3)
    owner = '{"host": "elsewhere", "pid": 1, "start": "0", "store": "x"}'
    execute(path, "UPDATE trial_user_attributes SET value_json = ? WHERE key = 'owner'", owner)
    with Store(path, heartbeat=15, grace=60) as second:
        assert second.study("cell").rescue() == 0
        silence(path, 50)
        assert second.study("cell").rescue() == 0
        store.beat()  # no longer ours: the other host's silence goes on
        silence(path, 50)
        assert second.study("cell").rescue() == 3
        assert second.study("cell").rescue() == 0
        work([second.study("cell")], train, batch=9)
        assert len(study.finished()) == len(CONFIGS)


def test_a_store_that_lives_beats(path: Path) -> None:
    with Store(path, heartbeat=1, grace=3) as store, Store(path, heartbeat=1, grace=3) as second:
        study = store.study("cell")
        study.plan(CONFIGS)
        study.ask(2)
        time.sleep(4.5)
        assert second.study("cell").rescue() == 0


def test_a_process_waits_for_the_last_trials_of_others(path: Path, store: Store) -> None:
    study = store.study("cell")
    study.plan(CONFIGS)
    (claim,) = study.ask(1)
    with Store(path) as second:
        waits: list[str] = []
        how = {"batch": 9, "pause": 0.05, "on_wait": lambda: waits.append("once")}
        worker = threading.Thread(target=work, args=([second.study("cell")], train), kwargs=how)
        worker.start()
        worker.join(0.7)
        assert worker.is_alive()
        study.tell(claim, 1.0, {})
        worker.join(10)
        assert not worker.is_alive()
        assert len(study.finished()) == len(CONFIGS)
        assert waits == ["once"]


def test_work_claims_over_all_studies_and_reports_each_trial(store: Store) -> None:
    studies = [store.study("one"), store.study("two"), store.study("empty")]
    for study in studies[:2]:
        study.plan(CONFIGS[:3])
    sizes: list[int] = []
    told: list[Claim] = []

    def watched(claims: list[Claim]) -> Iterator[Any]:
        sizes.append(len(claims))
        yield from train(claims)

    work(studies, watched, batch=4, on_progress=told.append)
    assert sizes == [4, 2]
    assert {(claim.study, claim.number) for claim in told} == {(name, k) for name in ("one", "two") for k in range(3)}
    assert len(told) == 6


# ---------------------------------------------------------------- names and notes


def test_names_and_notes(path: Path, store: Store) -> None:
    assert (store.names(), store.note("preset")) == ([], None)
    store.set_note("preset", {"seeds": 3})
    store.set_note("preset", {"seeds": 5})
    store.set_note("other", [1, None])
    store.study("b"), store.study("a"), store.study("b")
    with Store(path, create=False) as second:
        assert second.names() == ["b", "a"]
        assert (second.note("preset"), second.note("other"), second.note("none")) == ({"seeds": 5}, [1, None], None)
        with pytest.raises(StoreError, match=r"no study 'c'; known: 'b', 'a'"):
            second.study("c", create=False)
        with pytest.raises(StoreError, match="cannot be the name"):
            second.study("")
        assert second.names() == ["b", "a"]


def test_the_first_note_settles_it(tmp_path: Path) -> None:
    with Store(tmp_path / "lab.db") as one, Store(tmp_path / "lab.db") as other:
        assert one.settle_note("settings", {"epochs": 2}) == {"epochs": 2}
        assert other.settle_note("settings", {"epochs": 3}) == {"epochs": 2} == one.note("settings")
