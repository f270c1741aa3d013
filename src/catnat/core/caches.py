"""What is kept because it is worked out often: bounded by its bytes, and dropped on request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from threading import RLock
from typing import Any

MAX_BYTES = 1 << 30  # of one cache: two trees of a million classes, or many thousands of small ones
_CACHES: list[dict[Any, Any]] = []
_LOCK = RLock()  # for changes; a look-up needs none


class Frozen:
    """What is kept is shared, so nothing may change it once it is `made`."""

    made = False

    def __setattr__(self, name: str, value: object) -> None:
        if self.made:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super().__setattr__(name, value)


class Kept(dict[Any, Any]):
    """Values by their keys, made where they are missing. Where they outgrow a cache's bytes, the first made go first.

    The last one made always stays, however large: else every call would make it anew.
    """

    def __init__(self, nbytes: Callable[[Any], int], make: Callable[[Any], Any] | None = None) -> None:
        super().__init__()
        self.nbytes, self.make, self.total = nbytes, make, 0
        _CACHES.append(self)

    def __missing__(self, key: Any) -> Any:
        if self.make is None:
            raise KeyError(key)
        return self.keep(key, self.make(key))

    def keep(self, key: Any, value: Any) -> Any:
        """Keep a value; of two that threads made at the same time the first one."""
        size = self.nbytes(value)
        with _LOCK:
            if key in self:
                return self[key]
            while self and self.total + size > MAX_BYTES:
                self.total -= self.nbytes(self.pop(next(iter(self))))
            self[key] = value
            self.total += size
        return value

    def clear(self) -> None:
        """Drop everything."""
        with _LOCK:
            super().clear()
            self.total = 0


def clear_caches() -> None:
    """Drop the tables of trees and parameterizations that were used; those in use are made anew when next needed.

    Example:
        >>> import catnat
        >>> catnat.clear_caches()
    """
    for cache in _CACHES:
        cache.clear()
