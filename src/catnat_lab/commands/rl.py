"""`catnat rl`, and what belongs to it: `rl-sweep`, `rl-minatar` and `rl-watch`. Each imports what it runs alone."""

import json
import os
from functools import cache
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from catnat_lab.commands.options import Rl, RlMinatar, RlSweep, RlWatch
from catnat_lab.commands.parts import (
    PROVENANCE,
    bars,
    chosen,
    device_of,
    end_of,
    noted_in,
    run_study,
    say,
    show,
)
from catnat_lab.errors import UserError
from catnat_lab.experiment import RunContext
from catnat_lab.files import write
from catnat_lab.provenance import continued, provenance
from catnat_lab.rl import ppo
from catnat_lab.studies import DATABASE, command_line


def rl(options: Rl) -> None:
    if options.threads < 0:
        raise UserError(f"threads must not be negative; got {options.threads}")
    settings = chosen(ppo.preset(options.preset, options.game), options)
    device, ends = device_of(options.device), end_of(options.minutes)
    folder = options.output or Path(f"runs/rl/{settings.game.replace('/', '-')}-{settings.head}-{settings.seed}")
    facts = provenance(command_line(), device) | {"settings": settings.as_dict()}

    @cache  # once
    def note() -> None:
        """Of a run that goes on, where it was begun and what is different now."""
        write(folder / PROVENANCE, json.dumps(continued(noted_in(folder) or facts, facts), indent=2) + "\n")

    with bars() as step:

        def progress(what: str, done: int, total: int) -> None:
            note()  # not before: a folder of another run is refused and stays as it is
            step(what, done, total)

        result = ppo.train(settings, RunContext(folder, str(device), ends, progress, say), options.threads)
    print(f"{settings.game} by {settings.head}, seed {settings.seed}: {result.steps:,} steps, {_came_to(result)}")
    if result.diverged:
        say("it has diverged: its losses are no numbers any more; try a lower --rate")
    elif not result.finished:
        say(f"stopped after {options.minutes:g} minutes; give the same command to continue")
    print(f"curves: {folder}")


def _came_to(result: ppo.Result) -> str:
    ended = f"score {result.score:.1f} (mean of the last {ppo.LAST})" if result.episodes else "none has ended"
    return f"{len(result.episodes):,} episodes, {ended}"


def rl_sweep(options: RlSweep) -> None:
    from catnat_lab.rl.search import PolicySweep, sweep_plan

    experiment = PolicySweep(chosen(sweep_plan(options.preset), options), options.threads)
    run_study(experiment, options, options.output, device_of(options.device), 1)


def rl_minatar(options: RlMinatar) -> None:
    try:
        import gymnax  # noqa: F401
        import jax
    except ImportError as missing:
        raise UserError(f"in catnat's folder: pip install '.[minatar]' ({missing})") from None
    from catnat_lab.rl.search import MinAtar, minatar_plan

    experiment = MinAtar(chosen(minatar_plan(options.preset), options))
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or one process has all of a GPU's memory
    facts = {"jax": jax.__version__, "jax on": str(jax.devices()[0])}
    run_study(experiment, options, options.output, torch.device("cpu"), 1, facts=facts)


def rl_watch(options: RlWatch) -> None:
    from catnat_lab.rl.watch import play, write_gif

    score, length, pictures = play(options.run, seed=options.seed, greedy=options.greedy, steps=options.steps)
    print(f"score {score:g} after {length} steps")
    if not pictures:
        print("no picture: gymnasium draws by pygame, which the extra watch has")
        return
    path = options.gif or options.run / "play.gif"
    write_gif(pictures, path)
    print(f"picture: {path}")


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run of `catnat rl`."""
    return (folder / ppo.CHECKPOINT).exists() and not (folder / DATABASE).exists()


def report_run(folder: Path, output: Path) -> None:
    """What one run has come to so far."""
    from catnat_lab.rl.report import load_run, words_of_run, write_run_report

    results = load_run(folder, noted_in(folder))
    show(lambda: write_run_report(results, output), results.provenance, output)
    print("\n".join(words_of_run(results)))


def status_of_run(folder: Path) -> None:
    """How far one run is by its checkpoint, and whether it is being trained."""
    settings, result = ppo.result_in(folder)
    print(f"{folder}: a run of catnat rl, {settings.game} by {settings.head}, seed {settings.seed}")
    print(f"checkpoint: {result.steps:,} of {settings.updates * settings.batch:,} steps, {_came_to(result)}")
    try:
        with FileLock(folder / ppo.LOCK, timeout=0):
            pass
    except Timeout:
        print("running: a process trains it")
        return
    print(f"running: nothing{'; all that was asked for is done' if result.finished else ''}")
    if not result.finished and (command := noted_in(folder).get("command")):
        print(f"to continue: {command}")
