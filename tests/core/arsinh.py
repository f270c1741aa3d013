"""An activation of a user's own, from outside the library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from catnat import Activation


@dataclass(frozen=True)
class Arsinh(Activation):
    """z = asinh(x - C): the log-odds grow like a logarithm."""

    def logit(self, offset: Any, xp: Any) -> Any:
        return xp.arcsinh(offset)

    def slope(self, offset: Any, xp: Any) -> Any:
        return 1 / xp.hypot(offset, xp.ones_like(offset))

    def inverse(self, logit: Any, xp: Any) -> Any:
        return xp.sinh(logit)
