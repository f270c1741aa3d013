"""Files that are whole or not there: whatever is killed, no half-written one is left under its name."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
