"""Open a database of Optuna studies, or say in one line why not, leaving untouched whatever is not one."""

from __future__ import annotations

import functools
import os
import shutil
import sqlite3
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import optuna
import sqlalchemy
from alembic.script import ScriptDirectory
from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from sqlalchemy import orm

from catnat_lab.errors import UserError

BUSY_SECONDS = 60  # how long a process waits while another one writes
TABLES = {*models.BaseModel.metadata.tables, "alembic_version"}


class StoreError(UserError):
    """The database cannot be used as asked."""


class Database:
    """One open database. Every change to it is made in one `writing` transaction."""

    def __init__(self, where: str | Path, *, create: bool) -> None:
        url = _url(where)
        self._is_file = url.drivername.startswith("sqlite")
        self.name = str(url.database) if self._is_file else url.render_as_string(hide_password=True)
        if self._is_file:
            _check_or_make_file(Path(self.name), create)
        self._storage = _open(url, self.name, make_tables=create and not self._is_file)

    @contextmanager
    def reading(self) -> Iterator[orm.Session]:
        """A session that only looks."""
        with self._one_line_errors(), self._session() as session:
            yield session

    @contextmanager
    def writing(self, study: int | None = None) -> Iterator[orm.Session]:
        """A transaction that holds the lock from its first statement: what it reads stays true until its end."""
        with self._one_line_errors(), self._session() as session:
            if self._is_file:
                # Python's sqlite3 would begin at the first change only, after the state was read.
                session.connection().exec_driver_sql("BEGIN IMMEDIATE")
            elif study is not None:
                session.get(models.StudyModel, study, with_for_update=True)
            yield session
            session.commit()

    def _session(self) -> orm.Session:
        return orm.Session(self._storage.engine, expire_on_commit=False)

    @contextmanager
    def _one_line_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlalchemy.exc.SQLAlchemyError as error:
            raise StoreError(f"{self.name}: {first_line(error)}") from error

    def close(self) -> None:
        """Close every connection."""
        self._storage.remove_session()
        self._storage.engine.dispose()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Optuna from logging what it does, and from warning of what is experimental, while this lasts."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)


def first_line(error: BaseException) -> str:
    """The first line of the innermost reason for ``error``."""
    reason = getattr(error, "orig", None) or error.__cause__ or error
    return (str(reason).splitlines() or [type(reason).__name__])[0].strip()


def _url(where: str | Path) -> sqlalchemy.URL:
    if isinstance(where, Path) or "://" not in where:
        url = sqlalchemy.URL.create("sqlite", database=os.path.abspath(where))
        if sqlalchemy.make_url(url.render_as_string()).database != url.database:  # before SQLAlchemy 2.1
            raise StoreError(f"{where}: a database's path cannot hold '?'")
        return url
    try:
        url = sqlalchemy.make_url(where)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        # The text is not repeated: it may hold a password.
        raise StoreError("the database's URL cannot be read; dialect://user:password@host/name was expected") from None
    if url.drivername.startswith("sqlite"):
        if url.database in (None, "", ":memory:") or str(url.database).startswith("file:"):
            raise StoreError(f"{where}: an SQLite database must be a plain file, which other processes can open too")
        url = url.set(database=os.path.abspath(str(url.database)))
    return url


def _open(url: sqlalchemy.URL, name: str, *, make_tables: bool) -> RDBStorage:
    options = {"connect_args": {"timeout": BUSY_SECONDS}} if url.drivername.startswith("sqlite") else {}
    # Optuna fills the URL in as a template.
    template = url.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}")
    try:
        with quiet():
            return RDBStorage(template, engine_kwargs=options, skip_table_creation=not make_tables)
    except Exception as error:  # every driver has its own errors; none of them is a defect of ours
        raise StoreError(f"{name}: the database cannot be opened: {first_line(error)}") from error


def _check_or_make_file(path: Path, create: bool) -> None:
    try:
        if path.is_dir():
            raise StoreError(f"{path}: it is a folder; a database file was expected")
        if not path.exists():
            if not create:
                raise StoreError(f"{path}: there is no such database")
            _make_file(path)
        _check_file(path)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from error


def _make_file(path: Path) -> None:
    """Make the tables in a file beside it and then give that its name, so that a half-made database is never seen."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        fresh.touch()  # an unwritable folder is named by the system's own words
        _open(_url(fresh), str(path), make_tables=True).engine.dispose()
        try:
            os.link(fresh, path)  # unlike renaming, never replaces what another process has made meanwhile
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            if not path.exists():
                fresh.rename(path)
    finally:
        fresh.unlink(missing_ok=True)


def _check_file(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(16) != b"SQLite format 3\0":
            raise StoreError(f"{path}: it is not an SQLite database; it was left as it is")
    for attempt in range(5):
        try:
            return _look_inside(path, path, "ro")
        except sqlite3.Error as error:
            failure = error
        if not path.with_name(f"{path.name}-journal").exists():
            break
        # A killed writer left a journal, which a reader may not roll back: look at a copy. Another process may be
        # rolling it back just now, so one bad look proves nothing.
        with tempfile.TemporaryDirectory() as folder, suppress(sqlite3.Error, FileNotFoundError):
            for name in (path.name, f"{path.name}-journal"):
                shutil.copyfile(path.with_name(name), Path(folder, name))
            return _look_inside(Path(folder, path.name), path, "rw")
        time.sleep(0.1 * attempt)
    raise StoreError(f"{path}: the database is damaged ({failure}); it was left as it is") from failure


@functools.cache
def _schema_version() -> str | None:
    return ScriptDirectory(str(Path(models.__file__).with_name("alembic"))).get_current_head()


def _look_inside(path: Path, shown: Path, mode: str) -> None:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, timeout=BUSY_SECONDS)) as connection:
        (state,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            raise sqlite3.DatabaseError(state.splitlines()[-1])
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables >= TABLES:
            raise StoreError(f"{shown}: it is an SQLite database, but not one of Optuna's; it was left as it is")
        versions = {version for (version,) in connection.execute("SELECT version_num FROM alembic_version")}
    ours = _schema_version()
    if versions != {ours}:
        theirs = ", ".join(sorted(versions)) or "none"
        raise StoreError(
            f"{shown}: its schema is of another version of Optuna ({theirs}; Optuna {optuna.__version__} has {ours}); "
            f"it was left as it is"
        )
