"""The command line. Bad input is one line and exit code 2. Nothing heavy is imported before a command is known."""

import importlib
import re
import sys
from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any

import tyro

import catnat
from catnat_lab.commands.options import COMMANDS
from catnat_lab.errors import UserError, plain

ABOUT = "The paper's experiments on catnat: run them, stop and go on, and see them beside the paper's numbers."


def _parsed(given: list[str]) -> Any:
    """The command that was asked for, alone where it is known, so that help and errors are of its own options."""
    for kind in COMMANDS:
        name = re.sub("(?<=[a-z])(?=[A-Z])", "-", kind.__name__).lower()
        if given[:1] == [name]:
            return tyro.cli(kind, prog=f"catnat {name}", args=given[1:])
    return tyro.cli(reduce(or_, COMMANDS), prog="catnat", description=ABOUT, args=given)  # a union of them all


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        print(f"catnat {catnat.__version__}")
        return 0
    if given[:1] == ["rl"] and given[1:2] and given[1] in ("sweep", "minatar", "watch"):
        print(f"error: the command is catnat rl-{given[1]}", file=sys.stderr)
        return 2
    command = _parsed(given)
    try:
        module = importlib.import_module(f"catnat_lab.commands.{COMMANDS[type(command)]}")
        getattr(module, given[0].replace("-", "_"))(command)
    except UserError as error:
        print(f"error: {plain(error)}", file=sys.stderr)
        return 2
    except OSError as error:  # a disk that is full, a folder that may not be written
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {plain(where)}{plain(error.strerror or error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; give the same command to continue", file=sys.stderr)
        return 130
    return 0
