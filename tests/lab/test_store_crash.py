"""No trial is run twice or lost, whatever is killed whenever, with any number of processes on one database.

The processes are this file, run as a program (see `main`). Each writes what it starts and what it has told into a log.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from catnat_lab.store import Claim, Store, work

pytestmark = pytest.mark.slow  # processes are killed and waited for

CONFIGS = [{"stage": "coarse", "rate": 0.1 / (1 + k), "seed": k} for k in range(24)]


class Lab:
    """A database, a log, and the processes at work on them."""

    def __init__(self, folder: Path) -> None:
        self.database, self.log, self.gate = folder / "lab.db", folder / "log", folder / "gate"
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, job: str, *, stuck_after: int = 999) -> subprocess.Popen[bytes]:
        """Start a process that waits for the gate, and is stuck in training, once it has told so many trials."""
        arguments = [str(self.database), str(self.log), str(self.gate), job, str(stuck_after)]
        self.processes.append(subprocess.Popen([sys.executable, __file__, *arguments]))
        return self.processes[-1]

    def lines(self, what: str, *, pid: int | None = None) -> list[str]:
        """The trials that were started, or told, in the order of time."""
        rows = [line.split(maxsplit=2) for line in self.log.read_text().splitlines()] if self.log.exists() else []
        return [name for kind, who, name in rows if kind == what and pid in (None, int(who))]

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "the processes did not come so far"
            time.sleep(0.01)

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """Stop a process, but not while it writes: whoever stalls with the lock in hand stops everybody."""
        while True:
            os.kill(process.pid, signal.SIGSTOP)
            try:
                with closing(sqlite3.connect(self.database, timeout=0.3, isolation_level=None)) as connection:
                    connection.execute("BEGIN IMMEDIATE")
                    return
            except sqlite3.OperationalError:
                os.kill(process.pid, signal.SIGCONT)
                time.sleep(0.05)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill without waiting: a process nobody has waited for still has its number."""
        os.kill(process.pid, signal.SIGKILL)
        self.until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    yield lab
    for process in lab.processes:
        process.kill()
        process.wait()


def write(log: Path, what: str, claim: Claim) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{what} {os.getpid()} {claim.number} {claim.config}\n".encode())
    os.close(descriptor)


def do(database: Path, log: Path, job: str, *, seconds: float = 0.0, stuck_after: int = 999, grace: int = 60) -> None:
    """Plan, or search, and work until nothing is left."""
    told: list[Claim] = []

    def train(claims: list[Claim]) -> Iterator[Any]:
        for claim in claims:
            write(log, "start", claim)
        for claim in claims:
            time.sleep(seconds)
            while len(told) >= stuck_after and not log.with_name("wake").exists():
                time.sleep(0.01)
            yield claim, float(os.getpid()), {"rate": claim.config["rate"]}, {"curve": [1.0] * 100}

    def tell(claim: Claim) -> None:
        told.append(claim)
        write(log, "told", claim)

    with Store(database, heartbeat=1, grace=grace) as store:
        study = store.study("cell")
        if job == "search":
            study.search({"rate": (1e-4, 1.0)}, {"stage": "search"}, 14)
        else:
            study.plan(CONFIGS)
        work([study], train, batch=3, on_progress=tell, pause=0.1)


def configs_of(store: Store) -> list[str]:
    return sorted(str(result.config) for result in store.study("cell", create=False).finished())


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see that a process has ended")
def test_after_a_kill_the_finished_are_kept_and_the_rest_is_run(lab: Lab) -> None:
    lab.gate.touch()
    process = lab.start("plan", stuck_after=5)
    lab.until(lambda: len(lab.lines("told")) == 5)
    lab.kill(process)
    with Store(lab.database, create=False) as store:
        before = store.study("cell").finished()
        assert (len(before), store.study("cell").running()) == (5, 1)
        assert store.study("cell").rescue() == 1  # a dead process of this machine is seen at once
    do(lab.database, lab.log, "plan")
    with Store(lab.database, create=False) as store:
        after = store.study("cell").finished()
        assert configs_of(store) == sorted(map(str, CONFIGS))
    assert {result.number: result for result in before}.items() <= {result.number: result for result in after}.items()
    again = lab.lines("start", pid=os.getpid())
    assert len(again) == len(set(again)) == len(CONFIGS) - len(before)
    assert not {f"{result.number} {result.config}" for result in before} & set(again)


@pytest.mark.parametrize("count", [2, 3])
def test_processes_that_begin_together_share_the_work(lab: Lab, count: int) -> None:
    processes = [lab.start("plan") for _ in range(count)]
    lab.until(lambda: len(list(lab.gate.parent.glob("gate.*"))) == count)
    lab.gate.touch()  # there is no database yet: all make it, and plan, at this moment
    assert [process.wait(60) for process in processes] == [0] * count
    assert Counter(lab.lines("start")) == Counter(f"{k} {config}" for k, config in enumerate_as_planned(lab))
    assert all(lab.lines("told", pid=process.pid) for process in processes)
    with Store(lab.database, create=False) as store:
        assert configs_of(store) == sorted(map(str, CONFIGS))


def enumerate_as_planned(lab: Lab) -> Iterator[tuple[int, dict[str, Any]]]:
    with Store(lab.database, create=False) as store:
        for result in store.study("cell", create=False).finished():
            yield result.number, result.config


def test_a_process_that_stalls_and_wakes_is_not_counted_twice(lab: Lab) -> None:
    lab.gate.touch()
    process = lab.start("plan", stuck_after=1)
    lab.until(lambda: len(lab.lines("told")) == 1)
    lab.stop(process)
    do(lab.database, lab.log, "plan", grace=2)
    (lab.database.parent / "wake").touch()
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait(60) == 0  # a refused result is no error
    assert len(lab.lines("told", pid=process.pid)) == 3
    with Store(lab.database, create=False) as store:
        finished = store.study("cell").finished()
        assert configs_of(store) == sorted(map(str, CONFIGS))
    assert Counter(result.value for result in finished) == {process.pid: 1, os.getpid(): len(CONFIGS) - 1}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see that a process has ended")
def test_after_a_kill_a_search_ends_at_its_count(lab: Lab) -> None:
    lab.gate.touch()
    process = lab.start("search", stuck_after=2)
    lab.until(lambda: len(lab.lines("told")) == 2)
    other = lab.start("search")
    lab.until(lambda: len(lab.lines("told")) >= 3)
    lab.kill(process)
    do(lab.database, lab.log, "search")
    assert other.wait(60) == 0
    with Store(lab.database, create=False) as store:
        study = store.study("cell")
        assert len(study.finished()) == len({result.config["rate"] for result in study.finished()}) == 14
        assert [study.waiting(), study.running()] == [0, 0]
        assert max(result.number for result in study.finished()) == 13


def main() -> None:
    database, log, gate, job, stuck_after = sys.argv[1:]
    gate_path = Path(gate)
    gate_path.with_name(f"gate.{os.getpid()}").touch()
    while not gate_path.exists():
        time.sleep(0.001)
    do(Path(database), Path(log), job, seconds=0.05, stuck_after=int(stuck_after))


if __name__ == "__main__":
    main()
