"""Trials that are finished exactly once, kept where Optuna and its dashboard can read them.

A study is one named Optuna study; many share one database. Every change is one transaction that holds the lock:
SQLite's write lock, or the study's row on a server. Optuna's own calls do not give that: on SQLite its `Study.ask`
reads a trial's state before it locks, so two processes can take one trial, and `enqueue_trial` can add one twice. So
Optuna makes the tables, samples from them and shows them, and the lab writes them.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import sqlalchemy as sql
from optuna.storages._rdb import models
from optuna.study import StudyDirection
from optuna.trial import TrialState

from catnat_lab.database import Database, StoreError
from catnat_lab.study import Claim, Finished, Study, set_waiting
from catnat_lab.trials import attributes_of, this_process

__all__ = ["Store", "Study", "Claim", "Finished", "StoreError", "work"]

NOTES = "catnat-lab notes"  # the reserved study that keeps the notes
Trial, Attribute, Heartbeat = models.TrialModel, models.TrialUserAttributeModel, models.TrialHeartbeatModel
Outcome = tuple[Claim, float, Mapping[str, float], Mapping[str, Any] | None]  # a claim, its value, metrics and record


class Store:
    """All studies of one database. While it is open it beats for every trial it has claimed.

    Args:
        where: A file's path (SQLite), or the URL of any database that SQLAlchemy knows.
        create: Whether to make the file, its folders and its tables where they are missing.
        heartbeat: Seconds between two signs of life.
        grace: Seconds without one after which a trial counts as lost.
    """

    def __init__(self, where: str | Path, *, create: bool = True, heartbeat: int = 15, grace: int = 60) -> None:
        if not 0 < heartbeat < grace:
            raise ValueError(f"heartbeat must lie between 0 and grace; got {heartbeat} and {grace}")
        self.database = Database(where, create=create)
        self.heartbeat, self.grace = heartbeat, grace
        self.owner = this_process(uuid.uuid4().hex)
        self.held: set[int] = set()  # the trials claimed here and not yet told
        self.failed: set[int] = set()  # the trials that failed here: not tried again by this store
        self._closing = threading.Event()
        self._beating: threading.Thread | None = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def study(self, name: str, *, create: bool = True) -> Study:
        """The study of this name, made if it is missing and ``create`` is true."""
        if not 0 < len(name) <= models.MAX_INDEXED_STRING_LENGTH or name == NOTES:
            raise StoreError(f"{name!r} cannot be the name of a study")
        if not create and name not in self.names():
            known = ", ".join(map(repr, self.names())) or "none"
            raise StoreError(f"{self.database.name}: there is no study {name!r}; known: {known}")
        return Study(self, name, self._study_id(name))

    def names(self) -> list[str]:
        """The names of all studies, oldest first."""
        with self.database.reading() as session:
            rows = sql.select(models.StudyModel.study_name).order_by(models.StudyModel.study_id)
            return [name for name in session.scalars(rows) if name != NOTES]

    def set_note(self, key: str, value: Any) -> None:
        """Keep a JSON value with the database."""
        study_id = self._study_id(NOTES)
        with self.database.writing(study_id) as session:
            notes = session.get_one(models.StudyModel, study_id)
            kept = [row for row in notes.user_attributes if row.key == key]
            row = kept[0] if kept else models.StudyUserAttributeModel(study_id=study_id, key=key)
            row.value_json = json.dumps(value)
            session.add(row)

    def settle_note(self, key: str, value: Any) -> Any:
        """Keep a JSON value unless there is one already; return the one that is kept. Safe between processes."""
        study_id = self._study_id(NOTES)
        with self.database.writing(study_id) as session:
            notes = session.get_one(models.StudyModel, study_id)
            for row in notes.user_attributes:
                if row.key == key:
                    return json.loads(row.value_json)
            session.add(models.StudyUserAttributeModel(study_id=study_id, key=key, value_json=json.dumps(value)))
        return value

    def note(self, key: str) -> Any:
        """The value kept under ``key``, or None."""
        row = models.StudyUserAttributeModel
        query = sql.select(row.value_json).join(models.StudyModel, models.StudyModel.study_id == row.study_id)
        with self.database.reading() as session:
            text = session.scalar(query.where(models.StudyModel.study_name == NOTES, row.key == key))
        return None if text is None else json.loads(text)

    def close(self) -> None:
        """Give back the trials that were claimed and not told, and close the database. Safe to call again."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._beating is not None:
            self._beating.join()
        if self.held:
            # If the database cannot be reached, the heartbeats end, and that is enough.
            with suppress(StoreError), self.database.writing() as session:
                mine = sql.select(Trial).where(Trial.trial_id.in_(self.held), Trial.state == TrialState.RUNNING)
                for trial in session.scalars(mine.with_for_update()).all():
                    if self.owns(trial):
                        set_waiting(trial)
        self.held.clear()
        self.database.close()

    def owns(self, trial: models.TrialModel) -> bool:
        """Whether this store made the last claim on the trial."""
        return bool(attributes_of(trial).get("owner") == self.owner)

    def keep_alive(self, trial_ids: Iterable[int]) -> None:
        """Beat for these trials too, from now until they are told."""
        self.held.update(trial_ids)
        if self.held and self._beating is None:
            self._beating = threading.Thread(target=self._beat_until_closed, name="catnat-lab-heartbeat", daemon=True)
            self._beating.start()

    def _beat_until_closed(self) -> None:
        while not self._closing.wait(self.heartbeat):
            with suppress(StoreError):  # the next beat may find the database free again
                self.beat()

    def beat(self) -> None:
        """One sign of life for every trial held, in one write, save those that another process has taken over."""
        if not self.held:
            return
        with self.database.writing() as session:
            claimed = Attribute.key == "owner", Attribute.value_json == json.dumps(self.owner)
            mine = sql.select(Attribute.trial_id).where(Attribute.trial_id.in_(list(self.held)), *claimed)
            beats = sql.update(Heartbeat).where(Heartbeat.trial_id.in_(session.scalars(mine).all()))
            session.execute(
                beats.values(heartbeat=sql.func.current_timestamp()), execution_options={"synchronize_session": False}
            )

    def _study_id(self, name: str) -> int:
        query = sql.select(models.StudyModel.study_id).where(models.StudyModel.study_name == name)
        with self.database.reading() as session:
            found = session.scalar(query)
        if found is None:
            # On a server another process may make it at this moment, and then this one cannot.
            with suppress(StoreError), self.database.writing() as session:
                if session.scalar(query) is None:
                    goal = models.StudyDirectionModel(objective=0, direction=StudyDirection.MINIMIZE)
                    session.add(models.StudyModel(study_name=name, directions=[goal]))
            with self.database.reading() as session:
                found = session.scalar(query)
        if found is None:
            raise StoreError(f"{self.database.name}: the study {name!r} cannot be made; is the database writable?")
        return int(found)


def work(
    studies: Iterable[Study],
    train: Callable[[list[Claim]], Iterable[Outcome]],
    *,
    batch: int,
    on_progress: Callable[[Claim], None] | None = None,
    on_wait: Callable[[], None] | None = None,
    pause: float = 1.0,
) -> None:
    """Train until every trial of these studies is finished or failed, together with any other process that does so.

    Whatever ends this early, the trials claimed and not told wait again. Use one `Store` for one `work` at a time.

    Args:
        studies: Where to claim trials; those of the first are claimed first.
        train: Called with claims; yields ``(claim, value, metrics, record)`` as trials finish, in any order. For a
            trial that cannot be finished it calls `Study.fail` instead.
        batch: How many trials to train at once at most.
        on_progress: Called after each trial that was told.
        on_wait: Called once, when other processes have all trials that are left.
        pause: Seconds between two looks, while other processes have the last trials.
    """
    if batch < 1:
        raise ValueError(f"batch must be at least 1; got {batch}")
    by_name = {study.name: study for study in studies}
    try:
        _rescue(by_name.values())  # first, so that trials which were trained together come together again
        while True:
            claims = _claim(by_name.values(), batch)
            if len(claims) < batch and _rescue(by_name.values()):
                claims += _claim(by_name.values(), batch - len(claims))
            if claims:
                _train(by_name, train, claims, on_progress)
            elif not any(study.waiting() or study.running() for study in by_name.values()):
                return
            else:
                if on_wait is not None:
                    on_wait()
                    on_wait = None
                time.sleep(pause)
    except BaseException:
        for study in by_name.values():
            with suppress(StoreError):  # what went wrong first is what has to be told
                study.release()
        raise


def _rescue(studies: Iterable[Study]) -> bool:
    return sum(study.rescue() for study in studies) > 0


def _claim(studies: Iterable[Study], limit: int) -> list[Claim]:
    claims: list[Claim] = []
    for study in studies:
        if len(claims) < limit:
            claims += study.ask(limit - len(claims))
    return claims


def _train(
    by_name: Mapping[str, Study],
    train: Callable[[list[Claim]], Iterable[Outcome]],
    claims: Sequence[Claim],
    on_progress: Callable[[Claim], None] | None,
) -> None:
    for claim, value, metrics, record in train(list(claims)):
        by_name[claim.study].tell(claim, value, metrics, record)
        if on_progress is not None:
            on_progress(claim)
    left = [claim for claim in claims if claim.trial_id in by_name[claim.study].store.held]
    if left:
        raise RuntimeError(f"train ended without a result for {len(left)} of {len(claims)} trials, first {left[0]}")
