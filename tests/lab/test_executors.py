"""Wherever jobs are trained, whatever is killed: every job once, with the numbers of an undisturbed serial run."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from catnat_lab import executors
from catnat_lab.errors import UserError
from catnat_lab.executors import Here, Processes, begin, conduct, executor_of, reason_of
from catnat_lab.experiment import Job, Outcome, RunContext, TimeIsUp
from tests.lab.toy import Toy, table


def found(path: Path, toy: Toy, workers: int | None, batch: int = 3, **context: Any) -> tuple[list[object], list[str]]:
    """All that is finished when all is done, and why the rest of the first cell has failed."""
    from catnat_lab.studies import Study  # not in the processes that train, which read this file too

    around = RunContext(path.parent, **context)
    executor = Here(around) if workers is None else Processes(around, workers)
    with Study(path, conduct=True) as study:
        begin(toy, study)
        conduct(toy, study, executor, batch)
        return list(table(study)), list(study.failed("one").values())


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    return found(tmp_path_factory.mktemp("serial") / "study.db", Toy(), None)[0]


def test_a_process_that_trains_loads_no_database() -> None:
    """It would be most of its start."""
    code = (
        "import sys, catnat_lab.executors, tests.lab.toy; sys.exit(bool({'optuna', 'sqlalchemy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0


def test_killed_workers_are_replaced_and_their_jobs_trained(path: Path, serial: list[object]) -> None:
    told: list[str] = []
    assert found(path, Toy(kills_once=(3,)), 2, tell=told.append) == (serial, [])
    assert len(list(path.parent.glob("killed-*"))) == 2
    assert [text for text in told if text.startswith("jobs to train")] == [
        "jobs to train (search): 12, batches: 4, 2 at once",
        "jobs to train (final): 8, batches: 3, 2 at once",
    ]


def test_the_steps_of_a_batch_are_told_as_those_of_its_stage(path: Path) -> None:
    class Steps(Toy):
        def train(self, jobs: Sequence[Job], context: RunContext) -> Iterator[tuple[Job, Outcome]]:
            context.progress("", 1, 2)
            yield from super().train(jobs, context)
            context.progress("", 2, 2)

    told: list[tuple[int, int]] = []
    found(path, Steps(), None, 6, progress=lambda _, *steps: told.append(steps))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)] * 2  # two batches a stage


@pytest.mark.slow
def test_a_job_that_kills_every_worker_is_given_up(path: Path, serial: list[object]) -> None:
    done, reasons = found(path, Toy(kills=(2,)), 2, batch=1)
    assert len(done) == len(serial) - 2 and all(each in serial for each in done)
    assert reasons == ["the process ended with code -9"]


class Unsendable(Toy):
    """The outcomes of one seed go through no pipe."""

    def train(self, jobs, context):  # type: ignore[no-untyped-def]
        for job, outcome in super().train(jobs, context):
            yield job, replace(outcome, record={"curve": lambda: 0}) if job.config["seed"] == 2 else outcome


def test_a_job_that_raises_or_tells_no_plain_data_is_given_up_with_its_traceback(
    path: Path, serial: list[object]
) -> None:
    done, reasons = found(path, Unsendable(fails=(1,)), 2, batch=1)
    assert len(done) == len(serial) - 2 * 2
    untold, raised = sorted(reasons, key=lambda reason: "RuntimeError" in reason)
    assert "RuntimeError: seed 1" in raised and untold.startswith("Traceback") and "pickle" in untold


def test_a_reason_is_the_first_line_of_what_was_raised() -> None:
    try:
        raise RuntimeError("the first line\n  more of it\nthe last line")
    except RuntimeError:
        assert reason_of(traceback.format_exc()) == "RuntimeError: the first line"
    assert reason_of("the process ended with code -9") == "the process ended with code -9"


def test_what_a_user_did_wrong_ends_it_all(path: Path) -> None:
    class Wrong(Toy):
        def train(self, jobs, context):  # type: ignore[no-untyped-def]
            raise UserError("the digits are gone")

    with pytest.raises(UserError, match="the digits are gone"):
        found(path, Wrong(), None)


def wait_for(path: Path) -> None:
    """Until somebody has made it; a worker that died makes nothing."""
    ends = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < ends, f"nobody makes {path.name}"
        time.sleep(0.01)


class Clash(Toy):
    """Of two batches the first ends the run, when the second has told two outcomes."""

    def train(self, jobs, context):  # type: ignore[no-untyped-def]
        told, ended = context.folder / "told", context.folder / "ended"
        if jobs[0].config["seed"] == 1:
            wait_for(told)
            ended.touch()
            raise UserError("the digits are gone")
        for job in jobs:
            yield job, Outcome(1.0, {}, {})
        told.touch()
        while True:  # until who conducts ends it
            time.sleep(1)


def test_what_came_beside_an_error_is_kept(tmp_path: Path) -> None:
    batches = [[Job("one", {"seed": 1})], [Job("one", {"seed": 2}), Job("one", {"seed": 3})]]
    run = Processes(RunContext(tmp_path), 2).run(Clash(), batches)
    kept = [next(run)]
    wait_for(tmp_path / "ended")
    with pytest.raises(UserError, match="the digits are gone"):
        for each in run:
            kept.append(each)
    assert [job.config["seed"] for job, _ in kept] == [2, 3]


class Weak(Toy):
    """The first batch ends at once; the second fails twice, when it is told to begin."""

    def train(self, jobs, context):  # type: ignore[no-untyped-def]
        if jobs[0].config["seed"] == 2:
            wait_for(context.folder / "go")
            tries = context.folder / f"tried-{len(list(context.folder.glob('tried-*')))}"
            tries.touch()
            if tries.name != "tried-2":
                raise RuntimeError(tries.name)
        yield jobs[0], Outcome(1.0, {"process": os.getpid()}, {})
        (context.folder / "told").touch()


def test_the_death_of_a_worker_that_waits_costs_no_try(tmp_path: Path) -> None:
    run = Processes(RunContext(tmp_path), 2).run(Weak(), [[Job("one", {"seed": seed})] for seed in (1, 2)])
    _, first = next(run)
    assert isinstance(first, Outcome)
    wait_for(tmp_path / "told")
    time.sleep(0.3)  # by now it waits; were it killed before, this would be another test, which passes
    idle = next(each for each in multiprocessing.active_children() if each.pid == first.metrics["process"])
    idle.kill()
    idle.join()
    (tmp_path / "go").touch()
    assert [(job.config["seed"], isinstance(found, Outcome)) for job, found in run] == [(2, True)]


class Late(Toy):
    """Of three batches the first has no time left; the second goes on to its own end."""

    def train(self, jobs, context):  # type: ignore[no-untyped-def]
        late = context.folder / "late"
        if jobs[0].config["seed"] == 1:
            late.touch()
            raise TimeIsUp
        wait_for(late)
        time.sleep(0.5)
        yield jobs[0], Outcome(1.0, {}, {})


def test_when_time_is_up_what_is_in_training_comes_to_its_own_end(tmp_path: Path) -> None:
    run = Processes(RunContext(tmp_path), 2).run(Late(), [[Job("one", {"seed": seed})] for seed in (1, 2, 3)])
    kept = []
    with pytest.raises(TimeIsUp):
        for each in run:
            kept.append(each)
    assert [job.config["seed"] for job, _ in kept] == [2]


class Stuck(Late):
    def train(self, jobs, context):  # type: ignore[no-untyped-def]
        yield from () if jobs[0].config["seed"] == 2 else super().train(jobs, context)
        while True:
            time.sleep(1)


def test_when_time_is_up_nobody_waits_for_what_is_stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "GRACE", 0.2)
    with pytest.raises(TimeIsUp):
        list(Processes(RunContext(tmp_path), 2).run(Stuck(), [[Job("one", {"seed": seed})] for seed in (1, 2)]))


def test_who_conducts_takes_no_worker_with_it(path: Path) -> None:
    before = set(multiprocessing.active_children())
    processes = Processes(RunContext(path.parent), 2)
    run = processes.run(Toy(), [[job] for job in Toy().left(_Nothing())])
    next(run)
    assert len(set(multiprocessing.active_children()) - before) == 2
    run.close()  # as Ctrl-C does
    assert set(multiprocessing.active_children()) <= before


class _Nothing:
    given_up: ClassVar[set[Job]] = set()

    def finished(self, cell: str, **match: object) -> list[object]:
        return []


def test_where_is_checked(tmp_path: Path) -> None:
    context = RunContext(tmp_path)
    assert executor_of("here", context).workers == 1 and executor_of("processes:4", context).workers == 4
    for bad in ("there", "processes", "processes:0", "processes:x", ""):
        with pytest.raises(UserError, match=r"on must be here, processes:N, ray or ray:ADDRESS; got"):
            executor_of(bad, context)
