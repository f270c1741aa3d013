"""`catnat report`, `status` and `figure`: what there is already."""

import shlex
import time
from dataclasses import replace
from pathlib import Path

import tyro

from catnat_lab import figure as pictures
from catnat_lab.commands.options import Figure, Gsl, Report, Status
from catnat_lab.commands.rl import is_run, report_run, status_of_run
from catnat_lab.commands.studies import gsl_settings, noted_in, report_on, say, show
from catnat_lab.errors import UserError, plain
from catnat_lab.executors import NOW
from catnat_lab.experiment import reporters
from catnat_lab.studies import CONDUCTOR, DATABASE, Study

VALUES = "values.csv"  # every finished job, in the folder of a report


def report(options: Report) -> None:
    """Read the study, or the run of `catnat rl`, and write the pages."""
    folder = Path(options.where)
    if is_run(folder):
        report_run(folder, options.output or folder)
        return
    if (folder / VALUES).exists() and not (folder / DATABASE).exists():
        report_published(folder, options.output)
        return
    where = _study(options.where)
    output = options.output or (where.parent if isinstance(where, Path) else Path("."))
    with Study(where, tell=say) as study:
        report_on(study, output)


def report_published(folder: Path, output: Path | None) -> None:
    """The page of a published study of graphs, whose numbers are kept and whose database is not."""
    from catnat_lab.gsl import report as graphs

    known = noted_in(folder)
    words = shlex.split(known.get("command", ""))
    if words[:2] != ["catnat", "gsl"]:
        raise UserError(f"{folder} holds numbers and no study; a page can be made of those of catnat gsl alone")
    if output is None:
        raise UserError(f"{folder} holds numbers and no study; say by --output where its page is to be written")
    options = tyro.cli(Gsl, args=words[2:])
    settings = gsl_settings(replace(options, heads=None))  # its heads may have other names now
    results = replace(graphs.load_published(folder, settings.as_dict()), provenance=known)
    show(lambda: graphs.write_report(results, output), known, output)


def status(options: Status) -> None:
    if is_run(Path(options.where)):
        status_of_run(Path(options.where))
        return
    with Study(_study(options.where), tell=say) as study:
        cells = study.cells()
        done = {cell: len(study.finished(cell)) for cell in cells}
        failed = {cell: len(reasons) for cell in cells if (reasons := study.failed(cell))}
        now, who = study.note(NOW) or {}, study.note(CONDUCTOR) or {}
        kind = study.note("kind")
        jobs = "runs" if kind == "catnat compare" else "jobs"
        print(f"{plain(study.name)}: a study of {plain(kind or 'nothing yet')}")
        print(f"finished: {sum(done.values()):,} {jobs}")
        if failed:
            print(f"failed: {', '.join(f'{plain(cell)} {count}' for cell, count in failed.items())}")
        new, seconds = sum(done.values()) - now.get("finished", 0), time.time() - now.get("since", time.time())
        left = now.get("left", 0) - new
        if not study.is_conducted():
            if now.get("left") == 0:
                print(f"running: nothing; all that was asked for is done{', but what failed' if failed else ''}")
            else:
                known = f"; at least {left:,} {jobs} are left" if now else ""
                print(f"running: nothing{known}")
                for command in filter(None, (_command(study, kind) for kind in reporters())):
                    print(f"to continue: {plain(command)}")
            return
        process, host, since = (plain(who.get(name)) for name in ("process", "host", "since"))
        print(f"running: process {process} on {host}, since {since}")
        print(f"this stage: {new:,} of {now.get('left', 0):,} {jobs}, by {now.get('workers', 1)} at a time")
        if new > 0 and seconds > 0:
            minutes = seconds / new / 60
            print(f"rate: {1 / minutes:.3g} {jobs} per minute; this stage takes {left * minutes:.3g} minutes more")
        else:
            print(f"rate: not known before a {jobs[:-1]} of this stage is finished")


def _command(study: Study, kind: str) -> str | None:
    """The command that began it, of a study of this kind."""
    return (study.note(f"{kind} provenance") or {}).get("command")


def _study(where: str) -> Path | str:
    """A folder's database, a file, or a database's address."""
    path = Path(where)
    if path.is_dir():
        if not (path / DATABASE).exists():
            raise UserError(f"{where} is no folder of a study: there is no {DATABASE} in it")
        return path / DATABASE
    return where if "://" in where else path


def figure(options: Figure) -> None:
    pictures.run(options.output)
