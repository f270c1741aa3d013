"""`catnat rl` and `rl-watch`, and what `report` and `status` say of one run."""

import json
from functools import cache
from pathlib import Path

from filelock import FileLock, Timeout

from catnat_lab.commands.options import Rl, RlWatch
from catnat_lab.commands.studies import PROVENANCE, bars, chosen, device_of, end_of, noted_in, say, show
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
    large = "" if "-v" in options.game else options.preset  # gymnasium's are small whatever the preset
    device, ends = device_of(options.device, large), end_of(options.minutes)
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
