"""What a user did wrong, said in one line. The command line prints it and ends with code 2."""

from __future__ import annotations


class UserError(Exception):
    """Bad input: the message names the argument, what came and what was expected."""
