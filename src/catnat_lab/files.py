"""Files that are whole or not there: whatever is killed, no half-written one is left under its name."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Heads as they were called once, behind `catnat-natural`. The one that reflected is no more.
FORMER = {
    "": "catnat-paper",
    "-exact": "catnat-clip0",
    "-revive-fine": "catnat-revive1e-6",
    "-revive": "catnat-revive1e-4",
}


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a name to write to, which becomes this one when it is written. Makes missing folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.stem}.{os.getpid()}.partial")  # beside it: a rename must not cross disks
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write(path: Path, text: str) -> Path:
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return path


def renamed(text: str) -> str:
    """What an older version wrote, with today's names of heads and commands."""
    text = re.sub(r"\bcatnat words\b", "catnat wide-heads", text)
    return re.sub(r"catnat-natural(-exact|-revive-fine|-revive|)(?!-)", lambda found: FORMER[found[1]], text)


def read(path: Path) -> str:
    """Results, also an older version's."""
    return renamed(path.read_text(encoding="utf-8"))
