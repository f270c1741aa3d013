"""catnat inside other libraries, one module per library, each with an extra of its name.

No library is imported here: `import catnat.integrations.sb3` imports Stable-Baselines3, and no other.
"""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(module: str, release: str, *, extra: str | None = None) -> Iterator[None]:
    """Say, where what is imported is missing, which release a module needs and how to get it."""
    try:
        yield
    except ImportError as missing:  # ray without rllib's own needs raises this, and no ModuleNotFoundError
        install = f"in catnat's folder: pip install '.[{extra or module.rpartition('.')[2]}]'"
        raise ModuleNotFoundError(f"{module} needs {release} or newer; {install}") from missing
