"""What one trial's row holds, who owns it, and which trial a search tries next."""

from __future__ import annotations

import json
import math
import os
import socket
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)
from optuna.storages._rdb import models
from optuna.trial import TrialState, create_trial

from catnat_lab.database import quiet

Config = dict[str, Any]
Range = tuple[float, float] | FloatDistribution | IntDistribution  # two numbers: log-uniform between them


def key_of(config: Mapping[str, Any]) -> str:
    """The text that two configs share if they mean the same trial: neither order counts, nor 1 against 1.0."""
    for name, value in config.items():
        if not isinstance(name, str) or not isinstance(value, (str, int, float, bool, type(None))):
            raise TypeError(f"config must hold plain values by name; got {name!r}: {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"config must hold finite numbers; got {name!r}: {value!r}")
    whole = {name: _whole(value) for name, value in config.items()}
    return json.dumps(whole, sort_keys=True)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


# ---------------------------------------------------------------- rows


def put(trial: models.TrialModel, attributes: Mapping[str, Any]) -> None:
    """Set user attributes of a trial."""
    held = {attribute.key: attribute for attribute in trial.user_attributes}
    for key, value in attributes.items():
        text = json.dumps(value)
        if key in held:
            held[key].value_json = text
        else:
            trial.user_attributes.append(models.TrialUserAttributeModel(key=key, value_json=text))


def attributes_of(trial: models.TrialModel) -> dict[str, Any]:
    """The user attributes of a trial."""
    return {attribute.key: json.loads(attribute.value_json) for attribute in trial.user_attributes}


def value_of(trial: models.TrialModel) -> float:
    """The value of a finished trial."""
    (row,) = trial.values
    return models.TrialValueModel.stored_repr_to_value(row.value, row.value_type)


def new_trial(
    study: int, number: int, config: Config, kinds: dict[str, BaseDistribution], **attributes: Any
) -> models.TrialModel:
    """A waiting trial. Numbers become Optuna's parameters, the rest attributes, so that the dashboard shows them all.

    Optuna wants one kind of distribution for every parameter's name in a study. ``kinds`` has those in use; the first
    value of a name settles its kind, and a value that does not fit it becomes an attribute.
    """
    params = []
    for name, value in config.items():
        kind = _kind(value, kinds.get(name))
        if kind is None:
            attributes[f"config.{name}"] = value
            continue
        kinds.setdefault(name, kind)
        params.append(
            models.TrialParamModel(
                param_name=name, param_value=float(value), distribution_json=distribution_to_json(kind)
            )
        )
    trial = models.TrialModel(study_id=study, number=number, state=TrialState.WAITING, params=params)
    put(trial, {"config": config, **attributes})
    return trial


def _kind(value: Any, settled: BaseDistribution | None) -> BaseDistribution | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    kinds: list[FloatDistribution | IntDistribution] = [FloatDistribution(-1e9, 1e9)]
    if value > 0:
        kinds.insert(0, FloatDistribution(1e-8, 1e3, log=True))
    if isinstance(value, int):
        kinds.insert(0, IntDistribution(1 - 2**31, 2**31 - 1))
    for kind in kinds:
        if kind.low <= value <= kind.high and (settled is None or _same_kind(kind, settled)):
            return kind
    return None


def _same_kind(one: FloatDistribution | IntDistribution, other: BaseDistribution) -> bool:
    return type(one) is type(other) and one.log == getattr(other, "log", None)


# ---------------------------------------------------------------- owners


def this_process(store: str) -> dict[str, Any]:
    """What tells this process, and one store in it, from every other."""
    pid = os.getpid()
    return {"host": _host(), "pid": pid, "start": _start(pid), "store": store}


def is_gone(owner: Mapping[str, Any]) -> bool:
    """Whether the owner is a process of this very machine that no longer exists. Of others only heartbeats tell."""
    if owner.get("host") != _host():
        return False
    start = _start(owner["pid"])
    return start is None or (start != "" and start != owner["start"])


def _host() -> str:
    # Containers may share a host's name, and a process number means nothing after a restart.
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _start(pid: int) -> str | None:
    """When the process began, in the system's ticks; empty where that is not told; None if there is none such."""
    if os.name != "posix":
        return ""  # there os.kill would end it
    with suppress(OSError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else fields[18]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ""


# ---------------------------------------------------------------- searches


@dataclass(frozen=True)
class Search:
    """``count`` trials of ``fixed`` together with values from ``space``, chosen by TPE as results come in."""

    space: dict[str, Range]
    fixed: Config
    count: int
    seed: int
    parallel: int | None

    def __post_init__(self) -> None:
        key_of(self.fixed)
        for name, ends in self.space.items():
            if isinstance(ends, tuple) and not 0 < ends[0] < ends[1] < math.inf:
                raise ValueError(f"space[{name!r}] must be (low, high) with 0 < low < high; got {ends}")
            if name in self.fixed:
                raise ValueError(f"{name!r} stands both in space and in fixed")
        if not self.space or self.count < 0 or (self.parallel is not None and self.parallel < 1):
            raise ValueError("a search needs a space, a count of at least 0, and parallel of at least 1 or None")

    @property
    def key(self) -> str:
        """What marks this search's trials. A larger count goes on with the same search."""
        space = {name: e if isinstance(e, tuple) else distribution_to_json(e) for name, e in self.space.items()}
        return json.dumps([space, self.fixed], sort_keys=True)

    def room(self, states: Iterable[TrialState]) -> int:
        """How many more trials to try now, when those that count so far are in these states."""
        held = list(states)
        unfinished = sum(not state.is_finished() for state in held)
        now = math.inf if self.parallel is None else self.parallel - unfinished
        return max(0, int(min(self.count - len(held), now)))

    def proposals(self, results: Iterable[tuple[Config, float | None]], number: int) -> Iterator[Config]:
        """Configs to try next as trial ``number``; a result of None is still to come."""
        spaces: dict[str, BaseDistribution] = {
            name: FloatDistribution(*ends, log=True) if isinstance(ends, tuple) else ends
            for name, ends in self.space.items()
        }
        # A new seed with every trial: whoever goes on does not draw again what was drawn before.
        seed = zlib.crc32(f"{self.seed} {self.key} {number}".encode())
        with quiet():
            study = optuna.create_study(sampler=optuna.samplers.TPESampler(constant_liar=True, seed=seed))
            for config, value in results:
                params = {name: config[name] for name in spaces}
                state = TrialState.RUNNING if value is None else TrialState.COMPLETE
                study.add_trial(create_trial(state=state, value=value, params=params, distributions=spaces))
        while True:
            yield {**self.fixed, **study.ask(spaces).params}
