"""What a user did wrong, said in one line. The command line prints it and ends with code 2."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

Chosen = TypeVar("Chosen")


class UserError(Exception):
    """Bad input: the message names the argument, what came and what was expected."""


def plain(text: object) -> str:
    """In one line, without what a terminal would obey."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "?", str(text))


# -- checks of settings ----------------------------------------------------------------------------------------------


def check(name: str, values: Iterable[Any], good: Callable[[Any], bool], expected: str) -> None:
    """Raise unless every value is good; ``expected`` completes "name must ..."."""
    for value in values:
        if not good(value):
            raise UserError(f"{name} must {expected}; got {value!r}")


def check_known(name: str, values: Iterable[str], known: Collection[str]) -> None:
    check(name, values, known.__contains__, f"be one of {', '.join(known)}")


def check_least(given: object, **least: int) -> None:
    for name, low in least.items():
        if getattr(given, name) < low:
            raise UserError(f"{name} must be at least {low}; got {getattr(given, name)}")


def check_distinct(given: object, *names: str) -> None:
    """Raise unless every setting holds some values, each once."""
    for name in names:
        values = getattr(given, name)
        if not values or len(set(values)) < len(values):
            told = ", ".join(map(str, values)) or "none"
            raise UserError(f"{name} must hold at least one value, each once; got {told}")


def pick(name: str, presets: Mapping[str, Chosen], what: str = "preset") -> Chosen:
    check_known(what, [name], presets)
    return presets[name]
