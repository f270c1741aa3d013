"""A training function of anybody's as an experiment: each head is searched, then judged on fresh seeds.

What is repeated is the whole. Repetition i of a head tries all rates with a search seed of its own, takes the one that
validates best, and trains with fresh seed i at it. So the luck of the search is among what makes a head's results
differ, and the test sees it. A search that all final runs share would hide it: docs/compare.md has by how much.
"""

import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count, product
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, cast

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import create_trial

from catnat_lab.errors import UserError, check, check_distinct, check_least
from catnat_lab.executors import ENDS
from catnat_lab.experiment import Done, Finished, Job, Outcome, Plan, RunContext
from catnat_lab.report.table import BASELINE
from catnat_lab.search import NOT_SETTINGS, OWN, RateSearch, Round, proposed, rounded
from catnat_lab.studies import quiet

NOTE = "compare settings"
STOPPED = "stopped after step"  # the metric of a run that was pruned
FEWEST = 2  # runs of a search that come to their end before any is compared with them
VALIDATION, TEST = "validation", "test"
Train = Callable[..., Any]


class Misuse(UserError):
    """What a function gives is of no use in any run."""


@dataclass(frozen=True)
class FromFile:
    """A function of a file: what is sent to another process, or another machine, is their names."""

    path: Path
    name: str

    def __post_init__(self) -> None:
        _ = self.__wrapped__  # wherever it comes to, its file is read, and what that imports is there

    def __reduce__(self) -> tuple[Any, ...]:
        return FromFile, (self.path, self.name)

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def __wrapped__(self) -> Train:
        found = getattr(_module(self.path), self.name, None)
        if not callable(found):
            raise UserError(f"there is no function {self.name} in {self.path}")
        return cast(Train, found)

    def __call__(self, *given: Any, **more: Any) -> Any:
        return self.__wrapped__(*given, **more)


@cache
def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UserError(f"there is no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # for what looks itself up there, as dataclasses do
    if (folder := str(path.parent)) not in sys.path:
        sys.path.insert(0, folder)  # its neighbours
    spec.loader.exec_module(module)
    return module


# -- what is asked for -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setup(Plan):
    tasks: tuple[str, ...]  # NAME=FILE:FUNCTION, so that a study goes on with the same functions
    heads: tuple[str, ...]
    rates: tuple[float, ...]
    seeds: int  # repetitions
    lower_is_better: bool
    others: dict[str, Any] = field(default_factory=dict)  # searched beside the rate: [low, high], or a dict of choices
    trials: int = 20  # of every search of more than the rate
    prune: bool = False
    widen: int = 3  # rates that a repetition may add at either end of the grid, while its best is there

    def __post_init__(self) -> None:
        check_distinct(self, "heads", "rates", "tasks")
        for name in ("seeds", "trials"):
            check(name, [getattr(self, name)], lambda count: type(count) is int, "be a whole number")
        check("heads", self.heads, lambda head: isinstance(head, str) and bool(head.strip()), "be names")
        check("rates", self.rates, lambda rate: 0 < rate < math.inf, "be positive numbers")
        check_least(self, seeds=2, widen=0, trials=2)
        check("seeds", [self.seeds], lambda seeds: seeds <= OWN, f"be at most {OWN}")
        if len(self.heads) < 2:
            raise UserError(f"heads must be two or more, to be compared; got {self.heads[0]}")
        cells = [cell_of(task.partition("=")[0], head) for task, head in product(self.tasks, self.heads)]
        if len(set(cells)) < len(cells):
            told = "; ".join(", ".join(names) for names in (self.tasks, self.heads))
            raise UserError(
                f"tasks and heads must have names that do not run together, as x, x y with y, z; got {told}"
            )

    @property
    def has_search(self) -> bool:
        return bool(self.others) or len(self.rates) > 1

    @property
    def own_search(self) -> bool:
        return True

    @property
    def baseline(self) -> str:
        return BASELINE if BASELINE in self.heads else self.heads[0]

    @property
    def space(self) -> dict[str, BaseDistribution]:
        """What Optuna samples from, where more than the rate is searched."""
        ranges = {"rate": [min(self.rates), max(self.rates)]} if len(self.rates) > 1 else {}
        ranges |= {name: given for name, given in self.others.items() if isinstance(given, list)}
        choices = {name: given["choices"] for name, given in self.others.items() if isinstance(given, dict)}
        return {
            **{name: FloatDistribution(low, high, log=True) for name, (low, high) in ranges.items()},
            **{name: CategoricalDistribution(given) for name, given in choices.items()},
        }


def grid(rates: str | float | Iterable[float]) -> tuple[float, ...]:
    """Rates as they are given; "low..high" has two a decade."""
    if isinstance(rates, str) and ".." in rates:
        low, high = ends("rates", rates)
        count = 1 + max(2, round(2 * math.log10(high / low)))
        return tuple(rounded(float(rate)) for rate in np.geomspace(low, high, count))
    if rates is None:
        raise UserError("rates must be numbers, or a range such as 1e-4..1e-2; got None")
    given = rates.split(",") if isinstance(rates, str) else [rates] if isinstance(rates, (int, float)) else rates
    return tuple(_number("rates", each) for each in given)


def ends(name: str, text: str) -> list[float]:
    low, high = (_number(name, end) for end in text.split("..", 1))
    if not 0 < low < high < math.inf:
        raise UserError(f"{name} must go from a positive number to a larger one, such as 1e-4..1e-2; got {text}")
    return [low, high]


def _number(name: str, given: Any) -> float:
    try:
        return float(given)
    except (TypeError, ValueError):
        raise UserError(f"{name} must be numbers, or a range such as 1e-4..1e-2; got {given!r}") from None


def others_of(search: Mapping[str, Any]) -> dict[str, Any]:
    """Settings beside the rate: "low..high" is a range on a logarithmic scale, a sequence holds choices."""
    found: dict[str, Any] = {}
    for name, given in search.items():
        if isinstance(given, str) and ".." in given:
            found[name] = ends(name, given)
        elif isinstance(given, Sequence) and not isinstance(given, str) and len(given) > 1:
            found[name] = {"choices": list(given)}
        else:
            raise UserError(f"search must have a range such as '0.1..1', or choices, for {name}; got {given!r}")
    return found


# -- the experiment ----------------------------------------------------------------------------------------------------


@dataclass
class Comparing(RateSearch):
    """Every run is a call of a user's function; of ``many`` runs where it trains so many at a time."""

    plan: Setup
    tasks: Mapping[str, Train]
    many: bool = False

    kind: ClassVar[str] = "catnat compare"
    note: ClassVar[str] = NOTE
    growing: ClassVar[tuple[str, ...]] = ("tasks", "heads", "seeds")
    searching: ClassVar[tuple[str, ...]] = ("search", "wider")
    beyond: ClassVar[str] = "wider"
    unsaid: ClassVar[dict[str, Any]] = {"prune": False}

    def settled(self, before: dict[str, Any]) -> dict[str, Any]:
        """Whatever is added, the heads are compared with the same one."""
        both = super().settled(before)
        was, now = (self.plan.grown(settings).baseline for settings in (before, both))
        if now != was:
            raise UserError(
                f"this study compares all heads with {was}, and {now} would take its place; give another --output"
            )
        return both

    @property
    def cells(self) -> dict[str, tuple[str, str]]:
        return {cell_of(*place): place for place in product(self.tasks, self.plan.heads)}

    def stages(self, done: Done) -> Iterator[list[Job]]:
        for number, stage in enumerate(self.every_stage(done)):
            if number == 0:  # what is wrong with a function shows in the first run
                first = {job.cell: job for job in reversed(stage)}.values()
                yield [job for job in stage if job in first]
                if failed := [self.name_of(job) for job in first if job in done.given_up]:
                    told = "; ".join(failed)
                    raise UserError(f"a first run failed, and the study ends here ({told}): its traceback is above")
            yield stage

    def every_stage(self, done: Done) -> Iterator[list[Job]]:
        yield from self.searches(done)
        yield [job for cell in self.cells for job in self.final(done, cell, cell)]

    def searches(self, done: Done) -> Iterator[list[Job]]:
        if self.plan.others:
            every = list(product(self.cells, self.rounds))
            for number in range(self.plan.trials):
                tried = [(cell, one, self.tried(done, cell, one)) for cell, one in every]
                yield [self.beside(self.proposed(*each), each[-1]) for each in tried if len(each[-1]) == number]
        elif self.plan.has_search:
            grid, before = self.coarse(self.cells), set[float]()
            for wave in self.waves():
                yield [
                    self.beside(job, (run for run in done.finished(job.cell) if run.config["rate"] in before))
                    for job in grid
                    if job.config["rate"] in wave
                ]
                before.update(wave)
            yield self.wider(done, self.cells)  # never stopped: what learns late may have its best out there

    def waves(self) -> list[list[float]]:
        """Rates that are tried side by side: all of them, or, of a search that prunes, few at a time.

        From the middle of the grid to its ends. A run is compared with those of earlier waves, and so with the same
        ones wherever it is trained, whoever is faster, and whatever was stopped and went on.
        """
        if not self.plan.prune:
            return [list(self.rates)]
        rising = sorted(self.rates)
        ranked = sorted(rising, key=lambda rate: abs(2 * rising.index(rate) - len(rising) + 1))
        return [ranked[:FEWEST], *([rate] for rate in ranked[FEWEST:])]

    def beside(self, job: Job, runs: Iterable[Finished]) -> Job:
        """Of a search that prunes: with the curves of its repetition's runs, of these, that ended with a number."""
        if not self.plan.prune:
            return job
        ended = [run for run in runs if run.config["seed"] == job.config["seed"] and math.isfinite(run.value)]
        curves = tuple(tuple(run.record.get("curve", {}).get(VALIDATION, ())) for run in ended)
        return replace(job, beside=curves if len(curves) >= FEWEST else ())

    @property
    def rates(self) -> Sequence[float]:
        return self.plan.rates

    def next_rate(self, best: float, neighbour: float) -> float:
        """As far from the end as that is from its neighbour."""
        return float(f"{best**2 / neighbour:.2g}")

    def proposed(self, cell: str, one: Round, tried: Sequence[Finished]) -> Job:
        (seed,) = one.searched
        fixed = {"stage": "search", "seed": seed, "trial": len(tried), "rate": self.plan.rates[0]}
        return Job(cell, proposed(f"{cell} {seed}", self.plan.space, fixed, tried).config)

    def total(self, done: Done) -> int:
        """How many runs there are, as far as it is known."""
        grid = len(self.plan.rates) if self.plan.has_search else 0
        wider = sum(len(done.finished(cell, stage="wider")) for cell in self.cells)
        return len(self.cells) * self.plan.seeds * (1 + (self.plan.trials if self.plan.others else grid)) + wider

    def name_of(self, job: Job) -> str:
        """A run, for whoever watches."""
        task, head = self.cells[job.cell]
        known = [(name, value) for name, value in job.config.items() if name not in NOT_SETTINGS]
        settings = [f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in known]
        words = [task, head] if len(self.tasks) > 1 else [head]
        return ", ".join([*words, *settings, f"{job.config['stage']} seed {job.config['seed']}"])

    def train(self, jobs: Sequence[Job], context: RunContext) -> Iterator[tuple[Job, Outcome]]:
        try:
            yield from self._together(jobs) if self.many else ((job, self._run(job, context)) for job in jobs)
        except Misuse:
            raise
        except ENDS as problem:  # a file that is missing, say: it ends this run, and not the study
            raise RuntimeError(f"{type(problem).__name__}: {problem}") from problem

    def _run(self, job: Job, context: RunContext) -> Outcome:
        task, head = self.cells[job.cell]
        others = {name: job.config[name] for name in self.plan.others}
        came = self.tasks[task](head, job.config["rate"], job.config["seed"], **others)
        if not inspect.isgenerator(came):
            if self.plan.prune:
                raise Misuse(
                    f"prune takes a train that yields (step, validation) as it goes; it gave {_described(came)}"
                )
            return outcome_of(came, self.plan.lower_is_better)
        is_hopeless = hopeless(job.beside, self.plan.lower_is_better) if job.beside else lambda value: False
        came, curve, stopped = _followed(came, partial(context.news, self.name_of(job)), is_hopeless)
        if stopped:
            return Outcome(
                math.inf, {VALIDATION: math.nan, TEST: math.nan, STOPPED: curve["step"][-1]}, {"curve": curve}
            )
        return outcome_of(came, self.plan.lower_is_better, curve)

    def _together(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
        (train,) = self.tasks.values()
        runs = [(self.cells[job.cell][1], job.config["rate"], job.config["seed"]) for job in jobs]
        try:
            found = [outcome_of(came, self.plan.lower_is_better) for came in list(train(runs))]
        except ENDS:
            raise
        except Exception:
            if len(jobs) == 1:
                raise
            yield from self._apart(jobs)
        else:
            yield from zip(jobs, found, strict=True)

    def _apart(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
        """Each by itself: no run, and no head, is lost by the fault of another."""
        failed: Exception | None = None
        for job in jobs:
            try:
                yield from self._together([job])
            except ENDS:
                raise
            except Exception as problem:
                failed = problem
        if failed is not None:
            raise failed


def cell_of(task: str, head: str) -> str:
    return f"compare {task} {head}"


# -- what a function gives ---------------------------------------------------------------------------------------------

WANTED = "train must return (validation, test), or a dict with these two"


def outcome_of(came: Any, lower_is_better: bool, curve: Mapping[str, list[float]] | None = None) -> Outcome:
    """What a run came to. A validation that is no number is the worst there is: the run diverged."""
    curves = dict(curve or {})
    if isinstance(came, Mapping):
        if not {VALIDATION, TEST} <= set(came):
            raise Misuse(f"{WANTED}; got a dict with {', '.join(map(str, came)) or 'nothing in it'}")
        for name, values in dict(came.get("curves", {})).items():
            curves[str(name)] = [_one(f"curves {name}", value) for value in values]
        pairs = {str(name): value for name, value in came.items() if name != "curves"}
    elif isinstance(came, (tuple, list)) and len(came) == 2:
        pairs = dict(zip((VALIDATION, TEST), came, strict=True))
    else:
        raise Misuse(f"{WANTED}; got {_described(came)}")
    metrics = {name: _one(name, value) for name, value in pairs.items()}
    if curves:
        curves.setdefault("step", [float(step) for step in range(1, 1 + max(map(len, curves.values())))])
    value = metrics[VALIDATION] if lower_is_better else -metrics[VALIDATION]
    return Outcome(value if math.isfinite(value) else math.inf, metrics, {"curve": curves} if curves else {})


def hopeless(beside: Sequence[Sequence[float]], lower_is_better: bool) -> Callable[[float], bool]:
    """Told one validation after the other, whether a run is to be stopped: Optuna's rule of the median.

    Its best so far is worse than the median of the others at the same point. A third of their length it is let be.
    """
    patience = max(map(len, beside)) // 3
    pruner = optuna.pruners.MedianPruner(n_startup_trials=FEWEST, n_warmup_steps=patience)
    with quiet():
        study = optuna.create_study(direction="minimize" if lower_is_better else "maximize", pruner=pruner)
        for curve in beside:
            study.add_trial(create_trial(value=0.0, intermediate_values=dict(enumerate(curve))))
        trial, point = study.ask(), count()

    def is_hopeless(value: float) -> bool:
        trial.report(value, next(point))
        return trial.should_prune()

    return is_hopeless


def _followed(
    run: Generator[Any, Any, Any], tell: Callable[[float, float], None], is_hopeless: Callable[[float], bool]
) -> tuple[Any, dict[str, list[float]], bool]:
    """What a generator returns at its end, what it yielded on its way, and whether it was stopped before its end."""
    curve: dict[str, list[float]] = {"step": [], VALIDATION: []}
    while True:
        try:
            came = next(run)
        except StopIteration as end:
            return end.value, curve if curve["step"] else {}, False
        if not isinstance(came, (tuple, list)) or len(came) != 2:
            raise Misuse(f"train must yield (step, validation) as it goes; got {_described(came)}")
        step, value = _one("the step", came[0]), _one("the validation on the way", came[1])
        curve["step"].append(step)
        curve[VALIDATION].append(value)
        tell(step, value)
        if is_hopeless(value):
            run.close()
            return None, curve, True


def _one(name: str, given: Any) -> float:
    """A number, also one that lies in a tensor, on whatever device."""
    if not isinstance(given, (str, bytes, bool)):
        try:
            return float(given)
        except (TypeError, ValueError, RuntimeError):
            pass
    raise Misuse(f"{name} must be one number; got {_described(given)}")


def _described(given: Any) -> str:
    if isinstance(given, (int, float)):
        return f"one number, {given}"
    if given is None or isinstance(given, str):
        return repr(given)[:60]
    known = [f"{name} {value}" for name in ("shape", "device") if (value := getattr(given, name, None)) is not None]
    return " of ".join([f"a {type(given).__name__}", *[", ".join(known)] * bool(known)])
