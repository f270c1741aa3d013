"""One study: its trials planned, claimed, told and read, each change in one transaction. Made by `Store.study`.

A trial is one row for life: waiting, running, finished; and waiting again when its process is lost. The first result
told counts, a later one is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sql
from optuna.distributions import BaseDistribution, json_to_distribution
from optuna.storages._rdb import models
from optuna.trial import TrialState
from sqlalchemy import orm

from catnat_lab.database import StoreError
from catnat_lab.trials import Config, Range, Search, attributes_of, is_gone, key_of, new_trial, put, value_of

if TYPE_CHECKING:
    from catnat_lab.store import Store

Trial, Attribute = models.TrialModel, models.TrialUserAttributeModel
OPEN = (TrialState.WAITING, TrialState.RUNNING)


@dataclass(frozen=True)
class Claim:
    """A trial that this process has taken, by the name of its study. ``attempt`` counts from 1."""

    study: str
    number: int
    config: Config = field(compare=False)
    attempt: int = field(compare=False)
    trial_id: int = field(repr=False)


@dataclass(frozen=True)
class Finished:
    """A trial and its result."""

    number: int
    config: Config
    value: float
    metrics: dict[str, float]
    record: dict[str, Any]


@dataclass(frozen=True)
class _Known:
    """What planning has to know of a trial; its record stays in the database."""

    state: TrialState
    config: Config
    value: float | None


def set_waiting(trial: models.TrialModel) -> None:
    """Put a running trial back among those that wait."""
    trial.state, trial.datetime_start = TrialState.WAITING, None


class Study:
    """One study: trials planned, claimed, told. Lower values are better. Made by `Store.study`."""

    def __init__(self, store: Store, name: str, study_id: int) -> None:
        self.store, self.name = store, name
        self._id = study_id
        self._searches: list[Search] = []

    def plan(self, configs: Iterable[Mapping[str, Any]]) -> int:
        """Add the trials that are not there yet, and those that failed in an earlier run; return how many."""
        wanted = {key_of(config): dict(config) for config in configs}
        with self.store.database.writing(self._id) as session:
            known = {key_of(trial.config) for trial in self._known(session)}
            missing = [config for key, config in wanted.items() if key not in known]
            self._add(session, missing)
        return len(missing)

    def search(
        self,
        space: Mapping[str, Range],
        fixed: Mapping[str, Any],
        count: int,
        *,
        seed: int = 0,
        parallel: int | None = None,
    ) -> None:
        """Let `ask` add trials of its own choice until ``count`` of them are finished.

        Args:
            space: The range of every searched entry: (low, high), log-uniform, or one of Optuna's distributions.
            fixed: The other entries.
            count: How many trials to finish. Those of earlier runs count; a larger count goes on.
            seed: The sampler's seed.
            parallel: How many may be unfinished at once, over all processes. None: as many as are asked for.
        """
        ranges = {name: (float(e[0]), float(e[1])) if isinstance(e, tuple) else e for name, e in space.items()}
        new = Search(ranges, dict(fixed), count, seed, parallel)
        self._searches = [search for search in self._searches if search.key != new.key] + [new]

    def ask(self, limit: int) -> list[Claim]:
        """Claim up to ``limit`` trials: waiting ones first, then what the searches propose."""
        if limit < 1:
            return []
        with self.store.database.writing(self._id) as session:
            for search in self._searches:
                self._propose(session, search, limit - self._count(session, TrialState.WAITING))
            waiting = self._rows(TrialState.WAITING).limit(limit)
            claims = [self._claim(trial) for trial in session.scalars(waiting).all()]
            self.store.keep_alive(claim.trial_id for claim in claims)
        return claims

    def tell(
        self, claim: Claim, value: float, metrics: Mapping[str, float], record: Mapping[str, Any] | None = None
    ) -> bool:
        """Finish a trial. False means that it was finished before, by a process that took it over, and that counts.

        A value that is not a number (a run that diverged) is kept as infinity, the worst there is.
        """
        result: dict[str, Any] = {f"metric.{name}": float(metric) for name, metric in metrics.items()}
        result |= {"record": json.loads(json.dumps(dict(record or {}))), "owner": self.store.owner}
        number = math.inf if math.isnan(value) else float(value)
        with self.store.database.writing(self._id) as session:
            trial = self._get(session, claim)
            # A trial that was taken away, and not finished since, may still be told: the work is done.
            counts = trial.state in OPEN
            if counts:
                stored, kind = models.TrialValueModel.value_to_stored_repr(number)
                trial.values.append(models.TrialValueModel(objective=0, value=stored, value_type=kind))
                put(trial, result)
                trial.state, trial.datetime_complete = TrialState.COMPLETE, datetime.now()
        self.store.held.discard(claim.trial_id)
        return counts

    def fail(self, claim: Claim, reason: str | BaseException) -> None:
        """Record that a trial raised. It is tried again when a later run plans it."""
        with self.store.database.writing(self._id) as session:
            trial = self._get(session, claim)
            if trial.state == TrialState.RUNNING and self.store.owns(trial):
                put(trial, {"reason": reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}"})
                trial.state, trial.datetime_complete = TrialState.FAIL, datetime.now()
                self.store.failed.add(claim.trial_id)
        self.store.held.discard(claim.trial_id)

    def release(self) -> int:
        """Give back every trial that this store holds here and has not told; return how many."""
        return self._put_back(lambda trial, now: self.store.owns(trial))

    def rescue(self) -> int:
        """Put back the trials whose process is gone, or has shown no sign of life for too long; return how many."""
        return self._put_back(self._is_lost)

    def finished(self, **match: Any) -> list[Finished]:
        """The finished trials whose config has these entries, in trial order, one for every config."""
        found: dict[str, Finished] = {}
        with self.store.database.reading() as session:
            for trial in session.scalars(self._rows(TrialState.COMPLETE)):
                attributes = attributes_of(trial)
                config = attributes["config"]
                if all(name in config and config[name] == value for name, value in match.items()):
                    metrics = {key[7:]: value for key, value in attributes.items() if key.startswith("metric.")}
                    result = Finished(trial.number, config, value_of(trial), metrics, attributes.get("record", {}))
                    found.setdefault(key_of(config), result)
        return list(found.values())

    def waiting(self) -> int:
        """How many trials wait to be claimed, with those that the searches have still to propose."""
        with self.store.database.reading() as session:
            to_come = sum(max(0, search.count - len(self._known(session, search))) for search in self._searches)
            return self._count(session, TrialState.WAITING) + to_come

    def running(self) -> int:
        """How many trials are claimed, by any process, and not told."""
        with self.store.database.reading() as session:
            return self._count(session, TrialState.RUNNING)

    def _propose(self, session: orm.Session, search: Search, limit: int) -> None:
        """Add up to ``limit`` of the search's next trials. Under the lock, so that they never become too many."""
        trials = self._known(session, search)
        room = min(limit, search.room(trial.state for trial in trials))
        if room <= 0:
            return
        keys = {key_of(trial.config) for trial in self._known(session)}
        results = [(trial.config, trial.value) for trial in trials if trial.state != TrialState.FAIL]
        chosen: list[Config] = []
        for config in search.proposals(results, self._count(session)):
            if key_of(config) not in keys:
                keys.add(key_of(config))
                chosen.append(config)
            if len(chosen) == room:
                break
        self._add(session, chosen, search=search.key)

    def _add(self, session: orm.Session, configs: Sequence[Config], **attributes: Any) -> None:
        param = models.TrialParamModel
        used = sql.select(param.param_name, param.distribution_json).join(Trial, Trial.trial_id == param.trial_id)
        kinds: dict[str, BaseDistribution] = {}
        for name, text in session.execute(used.where(Trial.study_id == self._id).distinct()):
            kinds.setdefault(name, json_to_distribution(text))
        first = self._count(session)
        session.add_all(new_trial(self._id, first + i, config, kinds, **attributes) for i, config in enumerate(configs))
        session.flush()

    def _claim(self, trial: models.TrialModel) -> Claim:
        held = attributes_of(trial)
        claim = Claim(self.name, int(trial.number), held["config"], held.get("attempt", 0) + 1, int(trial.trial_id))
        put(trial, {"owner": self.store.owner, "attempt": claim.attempt})
        trial.state, trial.datetime_start = TrialState.RUNNING, datetime.now()
        # The first beat is part of the claim: a process that is killed right after it is missed like any other.
        if not trial.heartbeats:
            trial.heartbeats.append(models.TrialHeartbeatModel())
        trial.heartbeats[0].heartbeat = sql.func.current_timestamp()
        return claim

    def _put_back(self, which: Callable[[models.TrialModel, datetime], bool]) -> int:
        with self.store.database.reading() as session:  # most often there is nothing to do, and so no lock to take
            if not self._count(session, TrialState.RUNNING):
                return 0
        with self.store.database.writing(self._id) as session:
            now = session.execute(sql.select(sql.func.current_timestamp())).scalar_one().replace(tzinfo=None)
            running = session.scalars(self._rows(TrialState.RUNNING)).all()
            chosen = [trial for trial in running if which(trial, now)]
            for trial in chosen:
                set_waiting(trial)
        self.store.held.difference_update(trial.trial_id for trial in chosen)
        return len(chosen)

    def _is_lost(self, trial: models.TrialModel, now: datetime) -> bool:
        silent = any(now - beat.heartbeat > timedelta(seconds=self.store.grace) for beat in trial.heartbeats)
        return silent or is_gone(attributes_of(trial).get("owner", {}))

    def _get(self, session: orm.Session, claim: Claim) -> models.TrialModel:
        trial = session.get(Trial, claim.trial_id, with_for_update=True)
        if trial is None or trial.study_id != self._id:
            raise StoreError(f"{self.store.database.name}: trial {claim.number} is not in the study {self.name!r}")
        return trial

    def _mine(self) -> sql.ColumnElement[bool]:
        """Trials of this study that were planned here; Optuna's own ones have no config."""
        ours = sql.exists().where(Attribute.trial_id == Trial.trial_id, Attribute.key == "config")
        return sql.and_(Trial.study_id == self._id, ours)

    def _rows(self, state: TrialState) -> sql.Select[Any]:
        parts = (Trial.user_attributes, Trial.values, Trial.heartbeats)
        loaded = [orm.selectinload(part) for part in parts]
        return sql.select(Trial).where(self._mine(), Trial.state == state).order_by(Trial.number).options(*loaded)

    def _count(self, session: orm.Session, state: TrialState | None = None) -> int:
        which = Trial.study_id == self._id if state is None else sql.and_(self._mine(), Trial.state == state)
        return session.scalar(sql.select(sql.func.count(Trial.trial_id)).where(which)) or 0

    def _known(self, session: orm.Session, search: Search | None = None) -> list[_Known]:
        """The trials, of this search, that need not be added again: all but those that failed in other runs."""
        value = models.TrialValueModel
        query = (
            sql.select(Trial.trial_id, Trial.state, Attribute.value_json, value.value, value.value_type)
            .join(Attribute, sql.and_(Attribute.trial_id == Trial.trial_id, Attribute.key == "config"))
            .outerjoin(value, value.trial_id == Trial.trial_id)
            .where(Trial.study_id == self._id)
        )
        if search is not None:
            mark = orm.aliased(Attribute)
            query = query.join(mark, sql.and_(mark.trial_id == Trial.trial_id, mark.key == "search"))
            query = query.where(mark.value_json == json.dumps(search.key))
        return [
            _Known(state, json.loads(text), None if kind is None else value.stored_repr_to_value(number, kind))
            for trial_id, state, text, number, kind in session.execute(query)
            if state != TrialState.FAIL or trial_id in self.store.failed
        ]
