"""`catnat compare`: from words to what `catnat_lab.compare` takes."""

from pathlib import Path

from catnat_lab.commands.options import Compare
from catnat_lab.comparison.run import compare as ask
from catnat_lab.comparison.study import FromFile, Train
from catnat_lab.errors import UserError

BETTER = {"lower": True, "higher": False}


def compare(options: Compare) -> None:
    if not options.what:
        raise UserError("a training function must be given, as FILE.py:FUNCTION")
    if options.better not in (None, *BETTER):
        raise UserError(f"better must be lower or higher; got {options.better!r}")
    results = ask(
        tasks=dict(map(task, options.what)),
        heads=options.heads.split(","),
        rates=options.rates,
        seeds=options.seeds,
        folder=options.output,
        lower_is_better=None if options.better is None else BETTER[options.better],
        search=dict(map(setting, options.search)),
        trials=options.trials,
        jobs=options.jobs,
        ray=options.ray,
        gpus=options.gpus,
        storage=options.storage,
        prune=options.prune,
    )
    print(results)
    print(f"\nreport: {results.page}")


def task(text: str) -> tuple[str, Train]:
    """Of FILE.py:FUNCTION, or NAME=FILE.py:FUNCTION."""
    name, _, place = text.rpartition("=")
    file, colon, function = place.rpartition(":")
    if not (file and colon and function):
        raise UserError(f"a training function is written FILE.py:FUNCTION, or NAME=FILE.py:FUNCTION; got {text!r}")
    return name or function, FromFile(Path(file).resolve(), function)


def setting(text: str) -> tuple[str, str | list[str | float]]:
    """Of NAME=LOW..HIGH, or NAME=CHOICE,CHOICE."""
    name, equals, given = text.partition("=")
    if not equals:
        raise UserError(f"search takes NAME=LOW..HIGH or NAME=CHOICE,CHOICE; got {text!r}")
    return name, given if ".." in given else [_plain(choice) for choice in given.split(",")]


def _plain(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text
