"""Commands that run a study, and how a study is run. Each command imports its own experiment alone."""

import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from catnat_lab.commands.options import Demo, Gsl, RlMinatar, RlSweep, Vae, WideHeads
from catnat_lab.errors import UserError, plain
from catnat_lab.executors import begin, conduct, executor_of, reason_of
from catnat_lab.experiment import Experiment, RunContext, TimeIsUp, listed, reporters, silent
from catnat_lab.files import write
from catnat_lab.provenance import continued, provenance
from catnat_lab.report.page import terminal
from catnat_lab.report.table import Table, judge, verdict
from catnat_lab.studies import DATABASE, Study, command_line

if TYPE_CHECKING:
    from catnat_lab.gsl import train as graphs
    from catnat_lab.vae.study import Settings

PROVENANCE = "provenance.json"
TOLD_EVERY = 60.0  # seconds between two lines of a log
SMOKE = "the preset smoke shows that everything runs; by itself it trains far too little to compare heads"
FOR_A_GPU = ("paper", "full")
Chosen = TypeVar("Chosen")
ON_CPU = 8  # runs trained as one program: few, so that little is lost with a killed one


# -- the commands -----------------------------------------------------------------------------------------------------


def demo(options: Demo) -> None:
    """Two trainings with discrete latents; or, as `catnat gsl`, a graph."""
    if options.what == "graph":
        say("stages: what the true graph reaches (optimal), a search of rates (coarse), new seeds at the best (final)")
        gsl(Gsl(preset="quick", output=options.output / "graph", device="cpu"))
        say("few seeds of a small problem; docs/evidence-graphs.md has the study of the paper's size")
        return
    from catnat_lab.demo import page, study

    say("each head is searched over the same rates, then judged on fresh seeds at its best one")
    folder = options.output / f"latents-{options.seed}"
    found = study.run(study.Demo(options.seed), folder)
    for sentence in found.sentences():
        print(sentence)
    path = page.write_page(found, folder, provenance(command_line()))
    say(f"the page: {path}\nto run it again from the start, delete {folder}")


def gsl_settings(options: Gsl) -> "graphs.Settings":
    from catnat_lab.gsl.train import PRESETS

    return chosen(PRESETS[options.preset], options)


def gsl(options: Gsl) -> None:
    from catnat_lab.gsl.train import GraphLearning

    experiment, device = GraphLearning(gsl_settings(options)), device_of(options.device, options.preset)
    run_study(experiment, options, options.output, device, stacked(options, device, 256))


def vae_settings(options: Vae) -> "Settings":
    from catnat_lab.vae.study import preset

    given = options if options.searched else replace(options, searched=options.cells)
    return chosen(preset(options.preset, options.table), given)


def vae(options: Vae) -> None:
    from catnat_lab.vae.digits import load_digits
    from catnat_lab.vae.study import CHECKPOINTS, SOURCE, Autoencoders

    settings, device = vae_settings(options), device_of(options.device, options.preset)
    output, at_once = options.output or Path(f"runs/vae-{options.table}"), stacked(options, device, 64)
    digits = load_digits(options.digits)

    def same_digits(study: Study) -> None:
        held = {"checksum": digits.checksum, "source": digits.source}
        before = study.settle_note(SOURCE, held)
        if before["checksum"] != held["checksum"]:
            raise UserError(f"this study was begun with other digits: {before['source']}; now {held['source']}")

    run_study(Autoencoders(settings, digits), options, output, device, at_once, check=same_digits)
    for left in (output / CHECKPOINTS).glob("*"):  # of stacks that went on in other company
        left.unlink(missing_ok=True)


def stacked(options: Gsl | Vae, device: torch.device, on_gpu: int) -> int:
    if options.stacked is not None and options.stacked < 1:
        raise UserError(f"stacked must be at least 1; got {options.stacked}")
    return options.stacked or (on_gpu if device.type == "cuda" else ON_CPU)


def wide_heads(options: WideHeads) -> None:
    from catnat_lab.wide_heads import train
    from catnat_lab.wide_heads.corpus import Corpus

    device = device_of(options.device, options.preset)
    name = options.preset if options.preset != "auto" else "full" if device.type == "cuda" else "smoke"
    if name != options.preset:
        say(f"the preset is {name}: {'there is a GPU' if name == 'full' else 'full is for a GPU, and there is none'}")
    plan = chosen(train.PRESETS[name][options.task], options)
    corpus = Corpus.load(options.output / f"{plan.task}.npz", plan.task, plan.classes, plan.tokens)
    experiment = train.WideHeads(plan, corpus)

    def timed(held: Study) -> None:
        """Before anything else runs on the device."""
        if set(held.note(train.CLOCK) or {}) < set(plan.heads):
            held.set_note(train.CLOCK, train.clock(experiment, device))
            torch.cuda.empty_cache()  # other processes may train on the same GPU
        seconds = train.whole_time(plan, held.note(train.CLOCK))
        say(f"one after the other, all runs take about {seconds / 60:.1f} minutes and their judging")

    run_study(experiment, replace(options, preset=name), options.output / plan.task, device, 1, check=timed)


def rl_sweep(options: RlSweep) -> None:
    from catnat_lab.rl.search import PolicySweep, sweep_plan

    experiment = PolicySweep(chosen(sweep_plan(options.preset), options), options.threads)
    run_study(experiment, options, options.output, device_of(options.device, options.preset), 1)


def rl_minatar(options: RlMinatar) -> None:
    try:
        import gymnax  # noqa: F401
        import jax
    except ImportError as missing:
        raise UserError(f"in catnat's folder: pip install '.[minatar]' ({missing})") from None
    from catnat_lab.rl.search import MinAtar, minatar_plan

    experiment = MinAtar(chosen(minatar_plan(options.preset), options))
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or one process has all of a GPU's memory
    tell_of_size(options.preset, jax.devices()[0].platform != "cpu")
    facts = {"jax": jax.__version__, "jax on": str(jax.devices()[0])}
    run_study(experiment, options, options.output, torch.device("cpu"), 1, facts=facts)


# -- how a study is run -----------------------------------------------------------------------------------------------


def device_of(name: str, preset: str = "") -> torch.device:
    """The device of that name; auto takes a GPU where there is one, and tells when a preset asks for one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
        tell_of_size(preset, name == "cuda")
        return torch.device(name)
    found = re.fullmatch(r"cpu(?::0)?|cuda(?::(0|[1-9]\d*))?", name)
    if found is None:
        raise UserError(f"device must be auto, cpu, cuda or cuda:N; got {name!r}")
    if name.startswith("cuda") and int(found[1] or 0) >= (count := torch.cuda.device_count()):
        here = f"there are {count} GPUs here" if count else "there is no GPU here: give cpu or auto"
        raise UserError(f"device must be one that is there, and {here}; got {name!r}")
    return torch.device(name)


def tell_of_size(preset: str, has_gpu: bool) -> None:
    if preset in FOR_A_GPU and not has_gpu:
        say(f"the preset {preset} is for a GPU, and there is none; the command's --help says what else there is")


def end_of(minutes: float | None) -> float:
    """When so many are over, on the monotonic clock."""
    if minutes is not None and not minutes >= 0:
        raise UserError(f"minutes must be at least 0; got {minutes}")
    return math.inf if minutes is None else time.monotonic() + 60 * minutes


def chosen(preset: Chosen, options: object) -> Chosen:
    """The preset with what was given instead of it."""
    given = {each.name: getattr(options, each.name, None) for each in fields(preset)}  # type: ignore[arg-type]
    return replace(preset, **{name: value for name, value in given.items() if value is not None})  # type: ignore[type-var]


@dataclass
class Log:
    """Lines for whoever watches, at most one a minute."""

    told: float = -math.inf
    finished: int = 0

    def tell(self, text: str) -> None:
        if time.monotonic() - self.told > TOLD_EVERY:
            say(text)
            self.told = time.monotonic()

    def count(self, job: object) -> None:
        """What is trained elsewhere has no bar here."""
        self.finished += 1
        self.tell(f"jobs finished in this run: at least {self.finished:,}")


@contextmanager
def bars() -> Iterator[Callable[[str, int, int], None]]:
    """A bar with the time left for every stage, from what is done, the steps done and the steps in all."""
    what_is_done = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
    columns = (what_is_done, BarColumn(20), MofNCompleteColumn(), TextColumn("steps,"))
    left = (TimeRemainingColumn(compact=True), TextColumn("left"))
    log = Log()
    console = Console(stderr=True)
    with Progress(*columns, *left, console=console, disable=not console.is_terminal, expand=True) as shown:

        def step(what: str, done: int, total: int) -> None:
            nonlocal log
            if not shown.tasks or done <= shown.tasks[-1].completed:  # another stage, or a stack that goes on
                shown.add_task(what, total=total)
                log = Log()
            if not console.is_terminal:  # a log has no moving bars
                (log.tell if done < total else say)(f"{what}: {done:,} of {total:,} steps")
            shown.update(shown.tasks[-1].id, completed=done, description=what)

        yield step


def say(text: str) -> None:
    """To whoever watches; results go to stdout."""
    print(text, file=sys.stderr, flush=True)


def run_study(
    experiment: Experiment,
    options: Any,
    output: Path,
    device: torch.device,
    batch: int,
    *,
    facts: dict[str, str] | None = None,
    check: Callable[[Study], None] = silent,
) -> None:
    """Train what is not trained yet, keep with the study where its numbers come from, and report.

    ``check`` may refuse a study that was begun otherwise.
    """
    on, minutes = getattr(options, "on", "here"), getattr(options, "minutes", None)
    context = RunContext(output.resolve(), str(device), end_of(minutes), tell=say)
    executor = executor_of(on, context, getattr(options, "job_gpus", 1.0))  # with its checks, before there is a study
    with Study(options.storage or output / DATABASE, conduct=True, tell=say) as study:
        whole = experiment.grown(begin(experiment, study))
        check(study)
        if more := list(_more(experiment, whole)):
            say(f"this study holds more than this command asks for, and goes on with all of it: {'; '.join(more)}")
        if held := sum(len(study.finished(cell)) for cell in study.cells()):
            say(f"finished jobs that this study keeps, and does not run again: {held:,}")
        note = experiment.note.replace("settings", "provenance")
        now = provenance(command_line(), device) | (facts or {})
        if options.preset == "smoke":
            now["set aside"] = SMOKE
        study.set_note(note, continued(study.settle_note(note, now), now))
        started = time.monotonic()
        with bars() as context.progress:
            try:
                told = silent if on == "here" else Log(time.monotonic()).count
                trained = conduct(whole, study, executor, batch, told) > 0
            except TimeIsUp:
                trained = True
                say(f"stopped after {minutes:g} minutes; give the same command to continue")
        if trained:
            known = study.note(note)
            spent = float(known.get("seconds", "0").split()[0]) + time.monotonic() - started
            known["seconds"] = f"{spent:.0f} of training and bookkeeping, start-up not counted"
            if device.type == "cuda" and on == "here":  # of other processes it is not known
                known["peak GPU memory"] = f"{torch.cuda.max_memory_allocated(device) / 1e9:.1f} GB"
            study.set_note(note, known)
        for cell in study.cells():
            if reasons := list(study.failed(cell).values()):
                last = plain(reason_of(reasons[-1]))
                say(f"{cell}: {len(reasons)} of its jobs failed, the last by {last}; the same command tries them again")
        report_on(study, output)


def _more(asked: Experiment, whole: Experiment) -> Iterator[str]:
    """What a study holds beyond what is asked for now, setting by setting."""
    for name in asked.growing:
        now, held = asked.settings[name], whole.settings[name]
        if held > now if isinstance(held, int) else any(each not in now for each in held):
            yield f"{name} {listed(held)} (asked: {listed(now)})"


def report_on(study: Study, output: Path) -> None:
    """Read a study back, write its report, and print its tables."""
    known = reporters()
    found = [module for kind, module in known.items() if study.note(f"{kind} settings") is not None]
    if not found:
        raise UserError(f"{study.name} holds no study of {', '.join(known)}")
    reporter = import_module(found[0])
    results = reporter.load(study)
    results = replace(results, provenance=results.provenance | remarks(noted_in(output), results.provenance))
    show(lambda: reporter.write_report(results, output), results.provenance, output)


def remarks(before: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """What somebody wrote beside where the same study comes from, such as what it leaves out."""
    same = all(before.get(key) == known.get(key) for key in ("command", "commit", "date"))
    return {key: value for key, value in before.items() if same and key not in known}


def noted_in(folder: Path) -> dict[str, Any]:
    """Where a folder's numbers come from, as far as it is known."""
    path = folder / PROVENANCE
    try:
        return dict(json.loads(path.read_text())) if path.exists() else {}
    except ValueError as problem:
        raise UserError(f"{path} is broken ({problem}); delete it") from None


def show(write_report: Callable[[], tuple[Path, Sequence[Table]]], known: dict[str, Any], output: Path) -> None:
    try:
        page, tables = write_report()
        write(output / PROVENANCE, json.dumps(known | remarks(noted_in(output), known), indent=2) + "\n")
    except OSError as problem:
        raise UserError(f"cannot write the report into {output}: {problem.strerror}") from None
    console = Console(width=None if sys.stdout.isatty() else 120)
    for table in tables:
        if table.begun_groups:
            console.print(terminal(table, console.width))
    if tables:
        console.print(f"\n{verdict(judge(tables[0]))}", markup=False, highlight=False)
    if "peak GPU memory" in known:
        console.print(f"peak GPU memory: {known['peak GPU memory']}")
    console.print(f"report: {page}", soft_wrap=True)
    if "set aside" in known:
        say(known["set aside"])
