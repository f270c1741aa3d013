"""`compare`: what a user calls, and what is checked before anything is trained."""

import hashlib
import inspect
import pickle
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from catnat_lab.comparison.report import FINISHED, LOOKS, ORIGIN, Compared, load, write_page
from catnat_lab.comparison.study import NOTE, STOPPED, VALIDATION, Comparing, Setup, Train, grid, others_of
from catnat_lab.errors import UserError, check
from catnat_lab.executors import Unguarded, begin, conduct, executor_of, refuse_in_worker
from catnat_lab.experiment import Job, RunContext
from catnat_lab.live import Watch
from catnat_lab.provenance import continued, provenance, sources
from catnat_lab.studies import DATABASE, Study, command_line

SOURCES = "compare sources"
BETTER = (
    "lower_is_better must be said once for a folder: True (a loss) or False (an accuracy); --better lower or higher"
)


def compare(
    train: Train | None = None,
    heads: Iterable[str] = ("softmax", "natural"),
    rates: str | float | Iterable[float] = "1e-4..1e-2",
    seeds: int = 5,
    folder: str | Path = "runs/compare",
    *,
    lower_is_better: bool | None = None,
    tasks: Mapping[str, Train] | None = None,
    search: Mapping[str, Any] | None = None,
    trials: int = 20,
    train_many: Callable[..., Any] | None = None,
    at_once: int = 64,
    jobs: int = 1,
    ray: str | None = None,
    gpus: float = 0.0,
    storage: str | None = None,
    prune: bool = False,
) -> Compared:
    """Whether heads differ in a training function, each at its best settings.

    Every head is searched on validation, with seeds of its own, and judged by the test of fresh runs. What is stopped
    goes on when it is called again with the same folder; it may grow by heads, tasks and seeds.

    Args:
        train: Called as ``train(head, rate, seed)``. It returns validation and test, or a dict with these two and
            perhaps ``curves``; a generator may yield (step, validation) on its way. NaN is a result: it diverged.
        heads: What ``train`` knows what to do with. All are compared with "softmax", or with the first one.
        rates: Learning rates, or a range "low..high" with two a decade. A grid grows while its end is the best.
        seeds: Repetitions of search and final run, for every head.
        folder: Of the study, its page, CSV and JSON.
        lower_is_better: Whether a lower validation and test are better. It is asked once for every folder.
        tasks: In place of ``train``: such functions by the names of their tasks.
        search: Settings that are searched with the rate, by Optuna, and handed to ``train`` by name: ranges
            "low..high" on a logarithmic scale, or choices.
        trials: Of every such search.
        train_many: In place of ``train``: called with a list of (head, rate, seed), gives what each came to.
        at_once: The length of such a list, at most.
        jobs: Processes of this machine that train.
        ray: The address of a Ray cluster that trains instead, or "auto".
        gpus: Of a GPU, what a run on Ray takes.
        storage: The URL of the study's database, in place of a file in the folder.
        prune: Whether to stop runs of the search that look hopeless on their way. It saves time and biases.
    """
    refuse_in_worker()
    for count, given in (("jobs", jobs), ("at_once", at_once)):
        check(count, [given], lambda number: type(number) is int and number > 0, "be a whole number of at least 1")
    functions = dict(tasks) if tasks else {}
    if (train is not None) + bool(functions) + (train_many is not None) != 1:
        raise UserError("compare takes one of train, tasks and train_many")
    if not functions:
        only = train if train is not None else train_many
        functions = {getattr(only, "__name__", "train"): only}  # type: ignore[dict-item]
    check("tasks", functions, lambda name: isinstance(name, str) and "=" not in name, "have names without =")
    others = others_of({name: given for name, given in (search or {}).items() if name != "rate"})
    tried = grid((search or {}).get("rate", rates))
    if train_many is not None and others:
        raise UserError("train_many takes no settings but head, rate and seed, so search must be left out")
    if prune and train_many is not None:
        raise UserError("prune goes with train, which yields (step, validation) as it goes; train_many does not")
    folder = Path(folder)
    for name, function in functions.items():
        _check(name, function, list(others), [("softmax", 0.1, 1)] if train_many is not None else ["softmax", 0.1, 1])
        if jobs > 1:
            _check_travels(name, function)
    where = f"ray:{ray}" if ray else f"processes:{jobs}" if jobs > 1 else "here"
    with Watch() as watch, Study(storage or folder / DATABASE, conduct=True, tell=watch.tell) as study:
        known = (study.note(NOTE) or {}).get("lower_is_better")
        if lower_is_better is None and known is None:
            raise UserError(BETTER)
        lower = known if lower_is_better is None else lower_is_better
        named = tuple(f"{name}={_origin(function)[0]}" for name, function in functions.items())
        heads = (heads,) if isinstance(heads, str) else tuple(heads)
        setup = Setup(named, heads, tried, seeds, bool(lower), others, trials, prune=prune)
        asked = Comparing(setup, functions, train_many is not None)
        experiment = asked.grown(begin(asked, study))
        facts = continued(study.settle_note(ORIGIN, now := provenance(command_line())), now)
        study.set_note(ORIGIN, facts | _changed(study, functions, watch.tell))
        context = RunContext(folder.resolve(), "cuda" if gpus else "cpu", news=watch.news, tell=watch.tell)

        def counted() -> tuple[int, int]:
            return sum(len(study.finished(cell)) for cell in experiment.cells), experiment.total(study)

        def finished(job: Job) -> None:
            (found,) = study.finished(job.cell, **job.config)
            came = f"{VALIDATION} {found.metrics[VALIDATION]:.4g}"
            stopped = f"stopped after step {found.metrics[STOPPED]:g}" if STOPPED in found.metrics else ""
            watch.finished(experiment.name_of(job), stopped or came, *counted())

        watch.done, watch.total = counted()

        executor, started = executor_of(where, context, gpus or 1.0), time.monotonic()
        try:
            new = conduct(experiment, study, executor, at_once if train_many else 1, finished)
        except Unguarded as problem:  # of a script, which ends here with this one line
            raise SystemExit(f"error: {problem}") from None
        if new:
            spent = float(study.note(ORIGIN).get("seconds", 0)) + time.monotonic() - started
            study.set_note(ORIGIN, study.note(ORIGIN) | {"seconds": f"{spent:.0f}"})
        judged = sum(len(study.finished(cell, stage="final")) for cell in experiment.cells)
        study.set_note(LOOKS, sorted({*(study.note(LOOKS) or []), judged}))  # a look at more than before is another one
        study.set_note(FINISHED, experiment.settings)
        results = load(study)
    return replace(results, page=write_page(results, folder))


def _check(name: str, function: Any, others: list[str], given: list[Any]) -> None:
    if not callable(function):
        raise UserError(f"{name} must be a function; got a {type(function).__name__}")
    try:
        taken = inspect.signature(function)
    except ValueError:  # of what is written in C nothing is known
        return
    try:
        taken.bind(*given, **dict.fromkeys(others))
    except TypeError as problem:
        wanted = ", ".join([*(["runs"] if len(given) == 1 else ["head", "rate", "seed"]), *(f"{n}=" for n in others)])
        raise UserError(f"{name} must take ({wanted}); it takes {taken}: {problem}") from None


def _check_travels(name: str, function: Train) -> None:
    try:
        pickle.dumps(function)
    except Exception as problem:
        raise UserError(
            f"{name} cannot be handed to other processes ({problem}): define it at the top of a file, or jobs=1"
        ) from None


def _origin(function: Any) -> tuple[str, Path | None]:
    """By what name a function is known, and its file."""
    inner = inspect.unwrap(function)
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    try:
        file = Path(inspect.getfile(inner))
    except TypeError:
        return name, None
    return (f"{file.name}:{name}", file) if file.is_file() else (name, None)


def _changed(study: Study, functions: Mapping[str, Train], tell: Callable[[str], None]) -> dict[str, str]:
    """Whether a function's file, or one that it imports from beside it, changed since the study was begun.

    Finished runs are kept, and it is told.
    """
    files = [file for function in functions.values() if (file := _origin(function)[1])]
    read = {path.relative_to(file.parent): path.read_bytes() for file in files for path in sources(file)}
    now = {path.as_posix(): hashlib.sha256(code).hexdigest() for path, code in read.items()}
    before = study.settle_note(SOURCES, now)
    study.set_note(SOURCES, now | before)
    changed = [name for name, code in now.items() if before.get(name, code) != code]
    if not changed:
        return {}
    told = f"{', '.join(changed)} changed after some runs"
    tell(f"{told}; they are kept")
    return {"changed": told}
