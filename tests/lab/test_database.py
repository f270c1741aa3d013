"""A database that is not the store's is refused in one line, and left untouched."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from catnat_lab.errors import UserError
from catnat_lab.store import Store, StoreError

CONFIGS: list[dict[str, Any]] = [{"rate": 0.1, "seed": seed} for seed in range(200)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lab.db"


def execute(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()


def foreign(path: Path) -> None:
    execute(path, "CREATE TABLE studies (name TEXT)")


def damaged(path: Path) -> None:
    with Store(path) as store:
        store.study("cell").plan(CONFIGS)
    content = bytearray(path.read_bytes())
    content[5 * 4096 : 20 * 4096] = b"\xa5" * (15 * 4096)
    path.write_bytes(content)


def truncated(path: Path) -> None:
    with Store(path) as store:
        store.study("cell").plan(CONFIGS)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def other_version(path: Path) -> None:
    Store(path).close()
    execute(path, "UPDATE alembic_version SET version_num = 'v2.4.0.a'")


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_text("rate,loss\n0.1,2.0\n"), "not an SQLite database"),
        (lambda path: path.write_bytes(b""), "not an SQLite database"),
        (lambda path: path.write_bytes(b"SQLite format 3\0" + b"\1" * 500), "damaged"),
        (foreign, "not one of Optuna's"),
        (lambda path: execute(path, "VACUUM"), "not one of Optuna's|not an SQLite"),
        (damaged, "damaged"),
        (truncated, "damaged"),
        (other_version, r"another version of Optuna \(v2\.4\.0\.a"),
    ],
)
def test_what_is_not_a_store_is_refused_and_left_untouched(path: Path, make: Any, message: str, create: bool) -> None:
    make(path)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=message) as caught:
        Store(path, create=create)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_folder_and_a_path_through_a_file_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for bad in (tmp_path, tmp_path / "file" / "lab.db", tmp_path / "file" / "deeper" / "lab.db"):
        for create in (True, False):
            with pytest.raises(StoreError) as caught:
                Store(bad, create=create)
            assert str(bad) in str(caught.value)
    assert (tmp_path / "file").read_text() == "x"


def test_folders_are_made_with_create_and_never_without(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "{b} %c#?" / "lab.db"
    with pytest.raises(StoreError, match="no such database"):
        Store(deep, create=False)
    assert list(tmp_path.iterdir()) == []
    with Store(deep) as store:
        store.study("cell")
    assert [entry.name for entry in deep.parent.iterdir()] == ["lab.db"]
    with Store(deep, create=False) as store:
        assert store.names() == ["cell"]


def test_a_path_and_its_url_are_the_same_database(path: Path) -> None:
    with Store(f"sqlite:///{path}") as store:
        store.study("cell")
    with Store(str(path), create=False) as store:
        assert store.names() == ["cell"]


@pytest.mark.parametrize(
    "url",
    [
        "nosuch://host/db",
        "postgresql+nosuch://host/db",
        "postgresql://user:secret@127.0.0.1:1/db",
        "mysql://user:secret@127.0.0.1:1/db",
        "sqlite://",
        "sqlite:///:memory:",
        "://",
        "sqlite:////proc/none/lab.db",
    ],
)
def test_a_url_that_leads_nowhere_is_refused_in_one_line(url: str) -> None:
    with pytest.raises(UserError) as caught:
        Store(url)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_journal_left_by_a_killed_writer_is_rolled_back(path: Path) -> None:
    with Store(path) as store:
        store.study("cell").plan(CONFIGS)
    killed = (
        "import os, sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "c.execute('PRAGMA cache_size = 1'); c.execute('BEGIN');"
        "c.execute('DELETE FROM trial_user_attributes'); c.execute('DELETE FROM trial_params');"
        "c.executemany('INSERT INTO studies (study_name) VALUES (?)', [(str(k) * 99,) for k in range(4000)]);"
        "os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", killed, str(path)], check=False)
    assert path.with_name("lab.db-journal").stat().st_size > 0
    with Store(path) as store:
        assert store.names() == ["cell"]
        assert [claim.config for claim in store.study("cell").ask(999)] == CONFIGS
