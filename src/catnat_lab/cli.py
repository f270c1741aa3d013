"""The command line: `catnat demo | gsl | vae | rl | tails | figure | report`. Bad input is one line and exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from catnat_lab import figure
from catnat_lab.commands.gsl import Demo, Gsl
from catnat_lab.commands.parts import DATABASE, show
from catnat_lab.commands.rl import Rl, RlMinatar, RlSweep, RlWatch
from catnat_lab.commands.tails import Tails
from catnat_lab.commands.vae import Vae
from catnat_lab.errors import UserError
from catnat_lab.report import gsl as gsl_report
from catnat_lab.report import rl as rl_report
from catnat_lab.report import vae as vae_report
from catnat_lab.rl.sweep import MINATAR_NOTE
from catnat_lab.rl.sweep import NOTE as RL_NOTE
from catnat_lab.studies import Study
from catnat_lab.vae.search import NOTE as VAE_NOTE

ABOUT = "The paper's experiments on catnat: run them, stop and go on, and see them beside the paper's numbers."


@dataclass(frozen=True)
class Report:
    """Write a study's report again, finished or not."""

    output: Path = Path("runs/gsl")
    """Folder of the study; the report goes there too."""
    storage: str | None = None
    """Database URL, if the study is not in that folder."""

    def run(self) -> None:
        """Read the store, write the pages."""
        with Study(self.storage or self.output / DATABASE) as study:
            if study.note(VAE_NOTE) is not None:
                found = vae_report.load(study)
                show(vae_report.write_report, vae_report.tables_of(found), found, self.output)
                return
            if study.note(MINATAR_NOTE) is not None:
                from catnat_lab.report import minatar as minatar_report  # needs JAX

                many = minatar_report.load(study)
                show(minatar_report.write_report, [minatar_report.table_of(many)], many, self.output)
                return
            if study.note(RL_NOTE) is not None:
                played = rl_report.load(study)
                show(rl_report.write_report, [rl_report.table_of(played)], played, self.output)
                return
            results = gsl_report.load(study)
        show(gsl_report.write_report, [gsl_report.table_of(results)], results, self.output)


@dataclass(frozen=True)
class Figure:
    """The paper's first figure: loss landscapes of three classes with gradient descent on them, and Fisher matrices."""

    output: Path = Path("demo-output")
    """Folder of the picture."""

    def run(self) -> None:
        """Print and draw."""
        figure.run(self.output)


Command = (
    Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Gsl, tyro.conf.subcommand("gsl")]
    | Annotated[Vae, tyro.conf.subcommand("vae")]
    | Annotated[Rl, tyro.conf.subcommand("rl")]
    | Annotated[RlSweep, tyro.conf.subcommand("rl-sweep")]
    | Annotated[RlMinatar, tyro.conf.subcommand("rl-minatar")]
    | Annotated[RlWatch, tyro.conf.subcommand("rl-watch")]
    | Annotated[Tails, tyro.conf.subcommand("tails")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Figure, tyro.conf.subcommand("figure")]
)
RL_PARTS = ("sweep", "minatar", "watch")  # `catnat rl watch` is the command rl-watch


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["rl"] and given[1:2] and given[1] in RL_PARTS:
        given[:2] = [f"rl-{given[1]}"]
    command: Any = tyro.cli(Command, prog="catnat", description=ABOUT, args=given)
    try:
        command.run()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return 130
    return 0
