"""What a user did wrong, said in one line. The command line prints it and ends with code 2."""

from __future__ import annotations

import re


class UserError(Exception):
    """Bad input: the message names the argument, what came and what was expected."""


def plain(text: object) -> str:
    """In one line, without what a terminal would obey."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "?", str(text))
