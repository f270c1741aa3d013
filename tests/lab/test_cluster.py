"""A real PostgreSQL and a real Ray cluster of two nodes, while workers, a node, the database and the conductor die."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from catnat_lab.executors import Here, begin, conduct
from catnat_lab.experiment import Job, Outcome, RunContext
from catnat_lab.studies import Study, StudyError
from tests.lab.toy import Toy, started, table

pytest.importorskip("psycopg")
SERVERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not SERVERS, reason="there is no PostgreSQL here")]
PASSWORD = "hunter2@x"


class Server:
    """A PostgreSQL of its own in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"postgresql+psycopg://me:hunter2%40x@127.0.0.1:{self.port}/postgres"
        secret = folder / "password"
        secret.write_text(PASSWORD)
        if os.geteuid() == 0:  # PostgreSQL will not run as root
            shutil.chown(folder, "postgres")
            shutil.chown(secret, "postgres")
        how = ["-U", "me", "-A", "scram-sha-256", f"--pwfile={secret}"]
        self._run("initdb", "-D", str(folder / "data"), *how)
        self._run("pg_ctl", "-D", str(folder / "data"), "-w", "-o", self._options, "-l", str(folder / "log"), "start")

    @property
    def _options(self) -> str:
        return f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1"

    def _run(self, name: str, *arguments: str) -> None:
        user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        command = [*user, str(SERVERS[-1] / name), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder)

    def stop(self) -> None:
        """At once, as if the power had failed."""
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "stop")

    def start(self) -> None:
        """Again."""
        data, log = str(self.folder / "data"), str(self.folder / "log")
        self._run("pg_ctl", "-D", data, "-w", "-o", self._options, "-l", log, "start")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("postgres")
    for parent in (folder, *folder.parents[:3]):
        with suppress(PermissionError):
            parent.chmod(parent.stat().st_mode | 0o055)  # its user must come here
    server = Server(folder)
    yield server
    server.stop()


def serial(folder: Path, seeds: int) -> list[object]:
    with Study(folder / "serial.db", conduct=True) as study:
        toy = Toy(seeds=seeds)
        begin(toy, study)
        conduct(toy, study, Here(RunContext(folder)), 3)
        return list(table(study))


def test_a_study_on_a_server(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            server.start()

    with Study(server.url, conduct=True, tell=told.append) as study:
        assert PASSWORD not in study.name and "127.0.0.1" in study.name  # an address, without its secrets
        study.add(Job("cell", {"seed": 1}), Outcome(1.0, {}, {}))
        with pytest.raises(StudyError, match=r"another process conducts this study: process \d+ on .+, since"):
            Study(server.url, conduct=True)
        server.stop()
        with monkeypatch.context() as patch:
            patch.setattr("catnat_lab.studies.time.sleep", nap)  # it is away for three tries
            study.add(Job("cell", {"seed": 2}), Outcome(2.0, {}, {}))
        assert len(naps) == 3
        assert told == [f"{study.name} does not answer; trying again for 10 minutes"]
        with pytest.raises(StudyError, match="another process conducts this study"):  # held again
            Study(server.url, conduct=True)
    with Study(server.url, conduct=True) as study:  # it is restarted while nobody asks for anything
        server.stop()
        server.start()
        study.add(Job("cell", {"seed": 3}), Outcome(3.0, {}, {}))
        with pytest.raises(StudyError, match="another process conducts this study"):
            Study(server.url, conduct=True)
    with Study(server.url) as study:
        assert [each.config["seed"] for each in study.finished("cell")] == [1, 2, 3]
    wrong = server.url.replace("hunter2", "wrong")
    for conducted in (True, False):
        with pytest.raises(StudyError, match="password authentication failed") as caught:
            Study(wrong, conduct=conducted)
        assert "wrong" not in str(caught.value) and "\n" not in str(caught.value)


def test_whatever_dies_every_job_is_finished_once(server: Server, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    second = cluster.add_node(num_cpus=2)
    seeds, url = 94, f"{server.url.rsplit('/', 1)[0]}/template1"
    arguments = (url, "0.15", str(seeds), f"ray:{cluster.address}", str(tmp_path))
    kills, done = 0, 0
    try:
        process = started(*arguments)
        while True:
            assert process.stdout is not None
            if not process.stdout.readline():
                process.wait()
                assert process.returncode == 0
                break
            done += 1
            if done % 15 == 10 and kills < 6:
                while not kill_a_worker():
                    time.sleep(0.01)
                kills += 1
            if done == 60:
                cluster.remove_node(second, allow_graceful=False)
            if done == 90:
                server.stop()
                time.sleep(2)
                server.start()
            if done == 120:
                process.send_signal(signal.SIGKILL)
                process.wait()
                process = started(*arguments)
    finally:
        process.kill()
        cluster.shutdown()
    assert kills == 6 and done >= 200
    with Study(url) as study:
        assert table(study) == serial(tmp_path, seeds)


def kill_a_worker() -> bool:
    """The first that is at work; whether there was one."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if (entry / "cmdline").read_bytes().startswith(b"ray::_train_all"):
                os.kill(int(entry.name), signal.SIGKILL)
                return True
    return False
