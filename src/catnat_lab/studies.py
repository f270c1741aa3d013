"""Studies: which jobs are finished and what they came to, in a database that Optuna and its dashboard read.

A cell of a table is one Optuna study, a finished job one trial of it; all by Optuna's public names. One process at a
time conducts a study, held by a lock: it asks the experiment what is left, has it trained, and adds the outcomes. A job
stands in the database when it is finished, and not before. So nothing is claimed, and whatever is killed, only what was
being trained is begun again, from its checkpoint.

On a database server a call that finds it gone waits and tries again, for up to ``PATIENCE`` seconds.
"""

import json
import math
import os
import shlex
import socket
import sqlite3
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import optuna
import sqlalchemy
from filelock import FileLock, Timeout
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from catnat_lab.errors import UserError, plain
from catnat_lab.experiment import Finished, Job, Outcome, key_of, silent
from catnat_lab.files import renamed

DATABASE = "study.db"  # its name in a folder
LOCK = zlib.crc32(b"catnat")  # PostgreSQL's advisory locks are numbers, of one database each
NOTES = "catnat-lab notes"  # the reserved study that keeps the notes
PATIENCE = 600.0  # seconds to wait for a server that is gone
BUSY = 60  # seconds to wait while another process writes into a file
CONDUCTOR = "conductor"  # the note that says who conducts
OPTUNAS = {"studies", "trials", "version_info"}  # tables that every database of Optuna's has
# what a dashboard draws results against; all else of a config stands in its attributes
AXES: dict[str, FloatDistribution | IntDistribution] = {
    "rate": FloatDistribution(1e-8, 1e3, log=True),
    "seed": IntDistribution(1 - 2**31, 2**31 - 1),
}
Found = TypeVar("Found")


class StudyError(UserError): ...


class Study(AbstractContextManager["Study"]):
    """All finished jobs of one database, and the notes that are kept with them.

    Args:
        where: A file's path (SQLite), or the URL of any database that Optuna can use.
        conduct: Whether to add to it: then it is made if it is missing, and held against a second conductor.
        tell: Called with a line for whoever watches.
    """

    def __init__(self, where: str | Path, *, conduct: bool = False, tell: Callable[[str], None] = silent) -> None:
        self.url = _url(where)
        self._is_file = self.url.drivername.startswith("sqlite")
        # a file's path, or a server's address; a password that holds an @ begins before the last one
        server = f"{self.url.drivername}://{(self.url.host or '').rpartition('@')[2]}/{self.url.database or ''}"
        self.name = str(self.url.database) if self._is_file else server
        self._tell, self._conducts = tell, conduct
        self._held = ExitStack()  # the lock
        self._lock: sqlalchemy.Connection | None = None  # of a server: it is held as long as this lives
        if self._is_file:
            _check_file(Path(str(self.url.database)), conduct)
        if conduct:
            self._held.enter_context(self._locked())
        try:
            self._storage = self._opened()
            self._known: dict[str, optuna.Study] = {}  # by name: to look one up anew costs as much as to write
            self._cells: dict[str, dict[str, Finished]] = {}
            self.given_up: set[Job] = set()
            if conduct:
                now = datetime.now(UTC).isoformat(timespec="seconds")
                self.set_note(CONDUCTOR, {"host": socket.gethostname(), "process": os.getpid(), "since": now})
        except BaseException:
            self._held.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another process conduct. Safe to call again."""
        self._held.close()
        self._storage.remove_session()

    def is_conducted(self) -> bool:
        """Whether a process is at work on it."""
        with suppress(StudyError), self._locked():
            return False
        return True

    # -- what is finished ------------------------------------------------------------------------------------------

    def cells(self) -> list[str]:
        return [name for name in self._stored() if name != NOTES]

    def _stored(self) -> dict[str, str]:
        """By today's names, what the studies are called in the database."""
        return {renamed(name): name for name in self._ask(lambda: optuna.get_all_study_names(self._storage))}

    def finished(self, cell: str, **match: Any) -> list[Finished]:
        """The finished jobs of a cell whose configurations have these entries, each once, in their order."""
        found = self._done(cell).values()
        return [f for f in found if all(k in f.config and f.config[k] == v for k, v in match.items())]

    def add(self, job: Job, outcome: Outcome) -> None:
        """Keep what a job came to; the first outcome counts."""
        self._hold_on()
        value = math.inf if math.isnan(outcome.value) else float(outcome.value)
        metrics = {name: float(metric) for name, metric in outcome.metrics.items()}
        one = Finished(value, metrics, json.loads(json.dumps(outcome.record)), job.config)
        attributes = {"config": job.config, "record": one.record}
        axes = {name: axis for name, axis in AXES.items() if axis.low <= job.config.get(name, -math.inf) <= axis.high}
        trial = create_trial(
            value=value,
            params={name: job.config[name] for name in axes},
            distributions=dict(axes),
            user_attrs=attributes | {f"metric.{name}": metric for name, metric in metrics.items()},
        )
        if job.key not in self._done(job.cell):
            self._ask(lambda: self._cell(job.cell).add_trial(trial))
            self._done(job.cell)[job.key] = one

    def fail(self, job: Job, reason: str) -> None:
        """Keep why a job could not be finished. This run gives it up, a later one tries it again."""
        self.given_up.add(job)
        self._hold_on()
        trial = create_trial(state=TrialState.FAIL, user_attrs={"config": job.config, "reason": reason})
        self._ask(lambda: self._cell(job.cell).add_trial(trial))

    def failed(self, cell: str) -> dict[str, str]:
        """By their keys, the last reasons of jobs of this cell that failed and were not finished since."""
        held = [trial.user_attrs for trial in self._trials(cell, TrialState.FAIL) if "reason" in trial.user_attrs]
        reasons = {key_of(each["config"]): str(each["reason"]) for each in held}
        return {key: reason for key, reason in reasons.items() if key not in self._done(cell)}

    def _done(self, cell: str) -> dict[str, Finished]:
        """By their keys, the finished jobs of a cell; read once."""
        if cell not in self._cells:
            found: dict[str, Finished] = {}
            for trial in self._trials(cell, TrialState.COMPLETE):
                held = trial.user_attrs
                if trial.values is not None and len(trial.values) == 1:
                    metrics = {name[7:]: value for name, value in held.items() if name.startswith("metric.")}
                    one = Finished(trial.values[0], metrics, held.get("record", {}), held["config"])
                    found.setdefault(key_of(one.config), one)
            self._cells[cell] = found
        return self._cells[cell]

    def _trials(self, cell: str, state: TrialState) -> list[FrozenTrial]:
        """Those whose attributes are a job's; of others it is told how many there are."""
        if cell not in self.cells():
            return []
        trials = self._ask(lambda: self._cell(cell).get_trials(deepcopy=False, states=(state,)))
        kept = [trial for trial in trials if _is_config(trial.user_attrs.get("config"))]
        if broken := len(trials) - len(kept):
            self._tell(f"{plain(cell)}: {broken} rows of the database are left out, for they say no configuration")
        return kept

    def _cell(self, name: str) -> optuna.Study:
        """Who conducts makes it if it is missing."""
        if name not in self._known:
            opened = partial(optuna.create_study, load_if_exists=True) if self._conducts else optuna.load_study
            with quiet():
                self._known[name] = opened(storage=self._storage, study_name=self._stored().get(name, name))
        return self._known[name]

    # -- notes -----------------------------------------------------------------------------------------------------

    def note(self, key: str) -> Any:
        """The JSON value kept under a key, or None. Of addresses that hold a password the password is left out."""
        if NOTES not in self._stored():
            return None
        held = self._ask(lambda: self._cell(NOTES).user_attrs).get(key)
        return without_secrets(json.loads(renamed(json.dumps(held))))

    def set_note(self, key: str, value: Any) -> None:
        self._ask(lambda: self._cell(NOTES).set_user_attr(key, value))

    def settle_note(self, key: str, value: Any) -> Any:
        """Keep a JSON value unless there is one already; the one that is kept."""
        before = self.note(key)
        if before is None:
            self.set_note(key, value)
        return value if before is None else before

    # -- the database ----------------------------------------------------------------------------------------------

    def _opened(self) -> RDBStorage:
        """A file is made under another name first, so that a half-made one is never seen."""
        path = Path(str(self.url.database))
        if self._is_file and self._conducts and not path.exists():
            fresh = path.with_name(f"{path.name}.new")
            fresh.unlink(missing_ok=True)
            self._open(self.url.set(database=str(fresh)), make_tables=True).remove_session()
            fresh.replace(path)
        return self._open(self.url, make_tables=self._conducts and not self._is_file)

    def _open(self, url: sqlalchemy.URL, *, make_tables: bool) -> RDBStorage:
        options: dict[str, Any] = {"connect_args": {"timeout": BUSY}} if self._is_file else {"pool_pre_ping": True}
        # Optuna fills the URL in as a template.
        template = url.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}")
        try:
            with quiet():
                return RDBStorage(template, engine_kwargs=options, skip_table_creation=not make_tables)
        except Exception as error:  # every driver has its own errors; none of them is a defect of ours
            raise StudyError(f"{self.name}: the database cannot be opened: {self._reason(error)}") from None

    def _ask(self, call: Callable[[], Found]) -> Found:
        """What the call gives; on a server that is gone, after it has come back."""
        ends, told = time.monotonic() + PATIENCE, False
        while True:
            try:
                return call()
            except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
                if self._is_file or not _is_gone(error) or time.monotonic() > ends:
                    raise StudyError(f"{self.name}: {self._reason(error)}") from None
                if not told:
                    self._tell(f"{self.name} does not answer; trying again for {PATIENCE / 60:g} minutes")
                    told = True
                time.sleep(1.0)

    def _hold_on(self) -> None:
        """On a server, before something is written: if the lock is no longer ours, take it again."""
        if self._lock is None:
            return
        try:
            self._lock.execute(sqlalchemy.text("SELECT 1"))
            self._lock.commit()
        except sqlalchemy.exc.SQLAlchemyError:  # it went with its connection
            self._held.close()
            self._ask(lambda: self._held.enter_context(self._locked()))
            self._cells.clear()  # another process may have conducted meanwhile

    def _reason(self, error: BaseException) -> str:
        """The first line of the innermost reason, without the password."""
        while inner := getattr(error, "orig", None) or error.__cause__:
            error = inner
        line = (str(error).splitlines() or [type(error).__name__])[0].strip()
        for secret in (self.url.password, *(held for name, held in self.url.query.items() if _is_secret(name))):
            for written in filter(None, (str(secret or ""), quote(str(secret or "")))):
                line = line.replace(written, "***")
        return plain(without_secrets(line))

    def _locked(self) -> AbstractContextManager[object]:
        """The lock, held as long as this lasts."""
        if not self._is_file:
            return self._locked_server()
        try:
            return FileLock(f"{self.url.database}.lock", timeout=0).acquire()
        except Timeout:
            raise self._is_held() from None
        except OSError as problem:
            raise StudyError(f"{self.name}: cannot write beside it: {problem.strerror}") from None

    def _locked_server(self) -> AbstractContextManager[object]:
        """A lock that ends with the connection; MySQL's and PostgreSQL's, of which others have none."""
        mysql = "SELECT GET_LOCK('catnat study', 0)"
        queries = {"postgresql": f"SELECT pg_try_advisory_lock({LOCK})", "mysql": mysql, "mariadb": mysql}
        held = ExitStack()
        try:
            engine = sqlalchemy.create_engine(self.url)
            held.callback(engine.dispose)
            query = queries.get(engine.dialect.name)
            if query is None:
                told = f"no lock is known for {engine.dialect.name}; see to it that one process conducts"
                self._tell(f"{self.name}: {told}")
                return held
            held.enter_context(suppress(sqlalchemy.exc.SQLAlchemyError))  # it may be gone when it is closed
            connection = held.enter_context(engine.connect())
            got = connection.execute(sqlalchemy.text(query)).scalar()
        except Exception as error:  # a driver that is missing, say
            if self._lock is not None and _is_gone(error):
                raise  # it is waited for
            raise StudyError(f"{self.name}: the database cannot be opened: {self._reason(error)}") from None
        if not got:
            held.close()
            raise self._is_held()
        connection.commit()
        self._lock = connection
        return held

    def _is_held(self) -> StudyError:
        who = None
        with suppress(StudyError), Study(self.url.render_as_string(hide_password=False)) as other:
            who = other.note(CONDUCTOR)
        told = f": process {who['process']} on {plain(who['host'])}, since {plain(who['since'])}" if who else ""
        return StudyError(f"{self.name}: another process conducts this study{told}; stop it, or give another --output")


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


def without_secrets(value: Any) -> Any:
    """The same text, such as a command line, or JSON value, without what may be a password in an address in it."""
    if isinstance(value, dict):
        return {key: without_secrets(each) for key, each in value.items()}
    if isinstance(value, list):
        return [without_secrets(each) for each in value]
    return masked(value) if isinstance(value, str) else value


def masked(text: str) -> str:
    """A text without all that follows an address's scheme, if there may be a secret in it.

    Nothing behind it is kept: where a password ends nobody knows that was not quoted. `***@` is of older versions.
    """
    scheme, _, rest = text.partition("://")
    return f"{scheme}://***" if "@" in rest.replace("***@", "") or _is_secret(rest.partition("?")[2]) else text


def _is_secret(name: str) -> bool:
    return any(word in unquote(name).lower() for word in ("pass", "pwd", "secret", "token", "odbc"))


def command_line() -> str:
    """As it was typed, but for passwords; a shell takes it as it stands."""
    program = Path(sys.argv[0])
    begun = ["python", sys.argv[0]] if program.suffix == ".py" and program.stem != "__main__" else ["catnat"]
    return shlex.join([*begun, *map(masked, sys.argv[1:])])


def _is_config(held: Any) -> bool:
    try:
        return isinstance(held, dict) and bool(key_of(held))
    except (TypeError, ValueError):
        return False


def _is_gone(error: BaseException) -> bool:
    """Whether the server, or the connection, has gone away."""
    inner = error if isinstance(error, sqlalchemy.exc.SQLAlchemyError) else error.__cause__
    gone = isinstance(inner, (sqlalchemy.exc.OperationalError, sqlalchemy.exc.InterfaceError))
    return gone or bool(getattr(inner, "connection_invalidated", False))


def _url(where: str | Path) -> sqlalchemy.URL:
    if isinstance(where, Path) or "://" not in where:
        url = sqlalchemy.URL.create("sqlite", database=os.path.realpath(where))
        if sqlalchemy.make_url(url.render_as_string()).database != url.database:  # before SQLAlchemy 2.1
            raise StudyError(f"{where}: a database's path cannot hold '?'")
        return url
    try:
        url = sqlalchemy.make_url(where)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        # The text is not repeated: it may hold a password.
        raise StudyError("the database's URL cannot be read; dialect://user:password@host/name was expected") from None
    if url.drivername.startswith("sqlite"):
        if url.database in (None, "", ":memory:") or str(url.database).startswith("file:"):
            raise StudyError(f"{where}: an SQLite database must be a plain file, which other processes can open too")
        return url.set(database=os.path.realpath(str(url.database)))
    return url


def _check_file(path: Path, create: bool) -> None:
    """Say what is wrong with a file, and leave it as it is."""
    try:
        if path.is_dir():
            raise StudyError(f"{path}: it is a folder; a database file was expected")
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            if not create:
                raise StudyError(f"{path}: there is no such study, neither folder nor database")
            return
        with path.open("rb") as file:
            if file.read(16) != b"SQLite format 3\0":
                raise StudyError(f"{path}: it is not an SQLite database; it was left as it is")
    except OSError as error:
        raise StudyError(f"{path}: {error.strerror or error}") from None
    try:
        with closing(sqlite3.connect(path, timeout=BUSY)) as connection:
            (state,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if state != "ok":
                raise sqlite3.DatabaseError(state.splitlines()[-1])
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error as error:
        damaged = f"damaged ({plain(error)}); it was left as it is"
        what = "locked by another process" if "locked" in str(error) else damaged
        raise StudyError(f"{path}: the database is {what}") from None
    if not tables >= OPTUNAS:
        raise StudyError(f"{path}: it is an SQLite database, but not one of Optuna's; it was left as it is")
