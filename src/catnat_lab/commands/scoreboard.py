"""`catnat scoreboard`."""

from catnat_lab.commands.options import Scoreboard
from catnat_lab.errors import UserError
from catnat_lab.scoreboard.page import write_scoreboard


def scoreboard(options: Scoreboard) -> None:
    if not options.results.is_dir():
        raise UserError(f"results must be a folder; got {options.results}")
    print(write_scoreboard(options.results, options.output or options.results))
