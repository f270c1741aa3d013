"""The command line. A bad value is one line, a bad option tyro's box; both end with exit code 2.

Nothing heavy is imported before a command is known.
"""

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import tyro

import catnat
from catnat_lab.commands.options import COMMANDS
from catnat_lab.errors import UserError, plain

ABOUT = (
    "Ask whether catnat helps in your own training (compare), or run the paper's experiments; stop them whenever you "
    "like, go on, and see them beside the paper's numbers."
)


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        print(f"catnat {catnat.__version__}")
        return 0
    if given[:1] == ["rl"] and given[1:2] and given[1] in ("sweep", "minatar", "watch"):
        print(f"error: the command is catnat rl-{given[1]}", file=sys.stderr)
        return 2
    name = given[0].replace("_", "-") if given else ""
    if name and not name.startswith("-") and name not in COMMANDS:
        print(f"error: there is no command {plain(name)!r}; one of {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    if name not in COMMANDS:  # help, or an error that lists the commands
        known: dict[str, Any] = {each: options for each, (options, _) in COMMANDS.items()}
        tyro.extras.subcommand_cli_from_dict(known, prog="catnat", description=ABOUT, args=given)
        return 2
    kind, module = COMMANDS[name]
    options: object = tyro.cli(kind, prog=f"catnat {name}", args=given[1:])  # help and errors of its own options
    try:
        getattr(importlib.import_module(f"catnat_lab.commands.{module}"), name.replace("-", "_"))(options)
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
