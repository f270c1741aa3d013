"""`catnat rl`, and what belongs to it: `rl-sweep`, `rl-minatar` and `rl-watch`."""

import json
import os
from functools import cache
from pathlib import Path

import torch

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
from catnat_lab.experiment import Finished, Results, RunContext
from catnat_lab.files import write
from catnat_lab.provenance import continued, provenance
from catnat_lab.report.page import Report, write_pages
from catnat_lab.rl import minatar_study
from catnat_lab.rl import report as rl_report
from catnat_lab.rl import sweep as studied
from catnat_lab.rl import train as training
from catnat_lab.rl.settings import preset
from catnat_lab.rl.watch import play, write_gif
from catnat_lab.studies import command_line


def rl(options: Rl) -> None:
    if options.threads < 0:
        raise UserError(f"threads must not be negative; got {options.threads}")
    settings = chosen(preset(options.preset, options.game), options)
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

        result = training.train(settings, RunContext(folder, str(device), ends, progress, say), options.threads)
    print(f"{settings.game} by {settings.head}, seed {settings.seed}: {result.steps:,} steps, ", end="")
    ended = f"score {result.score:.1f} (mean of the last 100)" if result.episodes else "none has ended"
    print(f"{len(result.episodes)} episodes, {ended}")
    if result.diverged:
        say("it has diverged: its losses are no numbers any more; try a lower --rate")
    elif not result.finished:
        say(f"stopped after {options.minutes:g} minutes; give the same command to continue")
    print(f"curves: {folder}")


def rl_sweep(options: RlSweep) -> None:
    experiment = studied.PolicySweep(chosen(studied.plan_of(options.preset), options), options.threads)
    run_study(experiment, options, options.output, device_of(options.device), 1)


def rl_minatar(options: RlMinatar) -> None:
    try:
        import gymnax  # noqa: F401
        import jax
    except ImportError as missing:
        raise UserError(f"in catnat's folder: pip install '.[minatar]' ({missing})") from None
    experiment = minatar_study.MinAtar(chosen(minatar_study.plan_of(options.preset), options))
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or one process has all of a GPU's memory
    facts = {"jax": jax.__version__, "jax on": str(jax.devices()[0])}
    run_study(experiment, options, options.output, torch.device("cpu"), 1, facts=facts)


def rl_watch(options: RlWatch) -> None:
    score, length, pictures = play(options.output, seed=options.seed, greedy=options.greedy, steps=options.steps)
    print(f"score {score:g} after {length} steps")
    if not pictures:
        print("no picture: gymnasium draws by pygame, which the extra watch has")
        return
    path = options.gif or options.output / "play.gif"
    write_gif(pictures, path)
    print(f"picture: {path}")


def report_run(folder: Path, output: Path) -> None:
    """What one run has come to so far: its score, its curve, and a page."""
    settings, result = training.result_in(folder)
    curve = studied.curve_of(result)
    run = Finished(-result.score, {"score": result.score}, {"curve": curve}, {"stage": "final", "seed": settings.seed})
    sizes = {"steps": result.steps, "trials": 0, "seeds": 1}
    plan = {"kind": "rl", "games": [settings.game], "heads": [settings.head], **sizes}
    known = noted_in(folder)
    results = Results(plan, {(settings.game, settings.head): [run]}, known)
    table, figures = rl_report.table_of(results), tuple(rl_report.figures_of(results))
    every = range(0, len(curve["step"]), max(1, len(curve["step"]) // 10))
    points = ", ".join(f"{curve['score'][i]:.1f} ({curve['step'][i]:,.0f})" for i in every)
    words = f"Score {result.score:.1f}, of the last 100 of {len(result.episodes):,} episodes in {result.steps:,} steps."
    page = Report(f"PPO on {settings.game} by {settings.head}", words, known, (table,), figures=figures)
    numbers = {"curves.csv": rl_report.curves_of(results)}
    show(lambda: write_pages(page, output, numbers), known, output)
    print(f"{words}\nOver training (steps): {points or 'no episode has ended'}")
