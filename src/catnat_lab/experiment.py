"""The contract of an experiment: settings, what is left to do given what is done, how some of it is trained, a report.

A job is one run, or one stack that cannot be parted: a small configuration in one cell of a table. Training is pure:
jobs in, outcomes out, plain data both, with a folder at hand for checkpoints. Who keeps the outcomes (`studies`) and
where training happens (`executors`) is none of an experiment's business. Beside it stands a module that reads a study
back (`load`) and writes its report (`write_report`); `catnat report` knows them all.
"""

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from catnat_lab.errors import UserError

Config = dict[str, Any]  # plain values by name
# By the first word of the note with a study's settings, the module that reads it back.
_REPORTERS = {
    "gsl": "catnat_lab.gsl.report",
    "vae": "catnat_lab.vae.report",
    "rl": "catnat_lab.rl.report",
    "minatar": "catnat_lab.rl.report",
    "words": "catnat_lab.wide_heads.report",
    "compare": "catnat_lab.comparison.report",
}


def register(kind: str, reporter: str) -> None:
    """Have `catnat report` and `catnat status` know studies whose settings stand in the note "KIND settings".

    ``reporter`` is a module with ``load(study)`` and ``write_report(results, folder)``. A package registers its own
    by an entry point of the group ``catnat_lab.reporters``, named KIND.
    """
    _REPORTERS[kind] = reporter


def reporters() -> dict[str, str]:
    """By kind, the modules of all that is registered."""
    return {entry.name: entry.value for entry in entry_points(group="catnat_lab.reporters")} | _REPORTERS


def key_of(config: Mapping[str, Any]) -> str:
    """The text that two configs share if they mean the same job: neither order counts, nor 1 against 1.0."""
    for name, value in config.items():
        if not isinstance(name, str) or not isinstance(value, (str, int, float, bool, type(None))):
            raise TypeError(f"config must hold plain values by name; got {name!r}: {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"config must hold finite numbers; got {name!r}: {value!r}")
    whole = {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in config.items()}
    return json.dumps(whole, sort_keys=True)


@dataclass(frozen=True)
class Plan:
    """All that decides numbers: checked when it is made, and kept with them, so that nothing goes on as another."""

    @property
    def has_search(self) -> bool:
        """Whether rates are searched, or there is one that is taken."""
        return True

    @property
    def own_search(self) -> bool:
        """Whether every final seed searches for itself; else they share one search."""
        return False

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it: with lists in place of tuples."""
        plan: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plan

    def grown(self, settings: Mapping[str, Any]) -> Self:
        """The same with a study's settings, as JSON has them."""
        known = {each.name: settings[each.name] for each in fields(self)}
        return replace(self, **{name: tuple(x) if isinstance(x, list) else x for name, x in known.items()})


@dataclass(frozen=True)
class Job:
    """What is trained at a time, at least: a configuration in a cell."""

    cell: str
    config: Config = field(compare=False)
    beside: tuple[tuple[float, ...], ...] = field(default=(), compare=False, repr=False)  # curves that it is told of
    key: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", key_of(self.config))  # frozen; this is its one moment of making


@dataclass(frozen=True)
class Outcome:
    """What a job came to. Lower values are better; one that is not a number counts as infinite."""

    value: float
    metrics: dict[str, float]
    record: dict[str, Any]  # as JSON can hold it


@dataclass(frozen=True)
class Finished(Outcome):
    """What a job came to, and its configuration."""

    config: Config


class Done(Protocol):
    given_up: set[Job]  # they have failed so often that this run does without them

    def finished(self, cell: str, **match: Any) -> list[Finished]:
        """The jobs of a cell whose configurations have these entries."""


def silent(*_: object) -> None: ...


@dataclass
class RunContext:
    folder: Path  # of checkpoints and trained models
    device: str = "cpu"
    ends: float = math.inf  # on the monotonic clock: what is not done by then stops, with a checkpoint
    progress: Callable[[str, int, int], None] = silent  # what is done, steps done, steps in all
    tell: Callable[[str], None] = silent
    news: Callable[[str, float, float], None] = silent  # of a run under way: its name, the step and a value

    @property
    def is_late(self) -> bool:
        return time.monotonic() >= self.ends


class TimeIsUp(Exception):
    """What was begun has its checkpoint; the same command goes on."""


class Experiment(ABC):
    """Settings that are checked when it is made, and what follows from them. It can be pickled."""

    plan: Any
    kind: ClassVar[str]  # the command, by which a study knows whose it is
    note: ClassVar[str]  # under which a study keeps the settings
    growing: ClassVar[tuple[str, ...]] = ()  # settings that a study may go on with more of
    unsaid: ClassVar[dict[str, Any]] = {}  # settings that older studies do not say, and what they were

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides its numbers, as JSON can hold it."""
        return dict(self.plan.as_dict())

    def settled(self, before: dict[str, Any]) -> dict[str, Any]:
        """A study's settings, which may grow by what is asked for now."""
        return settled(self.unsaid | before, self.settings, self.growing)

    def grown(self, settings: dict[str, Any]) -> Self:
        """The same with a study's settings, which may be more than is asked for now."""
        return replace(self, plan=self.plan.grown(settings))  # type: ignore[type-var]

    @abstractmethod
    def stages(self, done: Done) -> Iterator[list[Job]]:
        """The jobs of one stage after the other; each is asked for when those before it are done."""

    def left(self, done: Done) -> list[Job]:
        """What can be trained now; none when all is done. It is asked again when all of that is trained."""
        return next((jobs for stage in self.stages(done) if (jobs := missing(done, stage))), [])

    def name_of(self, job: Job) -> str:
        """A job, for whoever watches."""
        return f"{job.cell} {job.config}"

    @abstractmethod
    def train(self, jobs: Sequence[Job], context: RunContext) -> Iterator[tuple[Job, Outcome]]:
        """All of these, in any order."""

    def batches(self, jobs: Sequence[Job], size: int) -> list[list[Job]]:
        """Jobs that train as one program."""
        return [list(jobs[first : first + size]) for first in range(0, len(jobs), size)]


@dataclass(frozen=True)
class Results:
    """What a study has found so far: finished jobs by the words that name their cells."""

    settings: dict[str, Any]
    trials: dict[Any, list[Finished]]  # by tuples
    provenance: dict[str, str]

    def stage(self, place: tuple[str, ...], *stages: str) -> list[Finished]:
        """The jobs of some stages of one cell, by rank where they have one, and by seed."""
        found = [trial for trial in self.trials.get(place, []) if trial.config["stage"] in stages]
        return sorted(found, key=lambda trial: (trial.config.get("rank", 0), trial.config["seed"]))

    def final(self, place: tuple[str, ...], measure: str) -> tuple[float, ...]:
        return tuple(trial.metrics[measure] for trial in self.stage(place, "final"))

    def finished(self) -> int:
        return sum(map(len, self.trials.values()))


def missing(done: Done, jobs: Iterable[Job]) -> list[Job]:
    """Those that are neither finished nor given up, each once."""
    wanted = dict.fromkeys(jobs)
    finished = {Job(cell, trial.config) for cell in {job.cell for job in wanted} for trial in done.finished(cell)}
    return [job for job in wanted if job not in finished and job not in done.given_up]


def settled(
    before: dict[str, Any], now: dict[str, Any], growing: Sequence[str], what: str = "this study"
) -> dict[str, Any]:
    """A study's settings, which may grow by what is asked for now; an error that names what else is different."""
    both = {key: _larger(before.get(key), value) if key in growing else value for key, value in now.items()}
    wrong = [key for key in now if both[key] is None or (key not in growing and before.get(key) != now[key])]
    if wrong:
        told = "; ".join(f"{key} was {listed(before.get(key))}, now {listed(now[key])}" for key in wrong)
        grow = f" ({', '.join(growing)} may grow)" if growing else ""
        raise UserError(f"{what} was begun with other settings{grow}; give another --output, or change back: {told}")
    return both


def listed(setting: Any) -> str:
    """As a command line has it."""
    return " ".join(map(str, setting)) if isinstance(setting, list | tuple) else str(setting)


def _larger(before: Any, now: Any) -> Any:
    """The larger of two settings of which one holds all of the other, in the order it had before; else None."""
    if before is None:
        return now
    if isinstance(now, int):
        return max(now, before)
    new = [each for each in now if each not in before]
    return None if new and any(each not in now for each in before) else [*before, *new]
