"""`catnat playground`: one HTML file that computes and draws by itself. docs/conf.py puts it into the docs too."""

import webbrowser
from pathlib import Path

from catnat_lab.commands.options import Playground

PAGE = Path(__file__).parents[1] / "playground.html"


def playground(options: Playground) -> None:
    print(PAGE)
    if options.open and not webbrowser.open(PAGE.as_uri()):
        print("no browser was found here: open that file in one")
