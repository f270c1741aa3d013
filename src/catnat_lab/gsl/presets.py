"""What one study of graph structure learning runs: `smoke` in seconds, `quick` in minutes on two cores, `paper` all."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from catnat_lab.errors import UserError
from catnat_lab.gsl.energy import BASELINES
from catnat_lab.heads import PAPER_HEADS, check_head

SEARCHES = ("grid", "tpe")


@dataclass(frozen=True)
class Settings:
    """All that decides the numbers of a study; kept in its database, so that it is never continued as another."""

    thetas: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 0.9)
    heads: tuple[str, ...] = (*PAPER_HEADS, "catnat")
    search: str = "grid"  # or "tpe": as many rates as both grids have, between the ends of the coarse one
    rates: tuple[float, ...] = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # the coarse grid
    refined: int = 7  # rates around the best of the coarse grid
    ratio: float = 1.25  # between neighbours of the refined grid
    search_seeds: int = 6  # by whose mean rates are compared
    widen: int = 3  # rates that may be added beyond either end of the coarse grid, while the best one is at that end
    seeds: int = 10  # runs at the chosen rate
    communities: int = 4
    pairs: int = 10_000
    epochs: int = 40
    batch: int = 64
    graphs: int = 32
    choice_graphs: int = 256
    baseline: str = "leave-one-out"

    def __post_init__(self) -> None:
        _check_all("theta", self.thetas, lambda theta: 0 < theta < 1, "lie in (0, 1)")
        _check_all("rate", self.rates, lambda rate: 0 < rate <= 1e3, "be positive and at most 1000")
        for name in self.heads:
            check_head(name)
        if not self.heads or len(set(self.heads)) < len(self.heads):
            raise UserError(f"heads must name parameterizations, each once; got {', '.join(self.heads) or 'none'}")
        least = {"refined": 0, "widen": 0, "search_seeds": 1, "seeds": 2, "communities": 1, "pairs": 20, "epochs": 1}
        for name, low in (least | {"batch": 1, "graphs": 3, "choice_graphs": 3}).items():
            if getattr(self, name) < low:
                raise UserError(f"{name} must be at least {low}; got {getattr(self, name)}")
        if not 1 < self.ratio < math.inf:
            raise UserError(f"ratio must be above 1; got {self.ratio}")
        if self.batch > self.pairs - 2 * (self.pairs // 10):
            raise UserError(f"batch must be at most the training pairs, 80% of pairs = {self.pairs}; got {self.batch}")
        if self.search == "tpe" and len(self.rates) < 2:
            raise UserError(f"rates must hold both ends of the range that tpe searches; got {self.rates[0]}")
        if self.search not in SEARCHES:
            raise UserError(f"search must be one of {', '.join(SEARCHES)}; got {self.search!r}")
        if self.baseline not in BASELINES:
            raise UserError(f"baseline must be one of {', '.join(BASELINES)}; got {self.baseline!r}")

    def as_dict(self) -> dict[str, Any]:
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def _check_all(name: str, values: tuple[float, ...], good: Any, expected: str) -> None:
    if not values:
        raise UserError(f"{name}s must hold at least one value; got none")
    for value in values:
        if not good(value):
            raise UserError(f"{name} must {expected}; got {value}")
    if len({f"{value:.3g}" for value in values}) < len(values):
        raise UserError(f"{name}s must differ in their first three digits; got {', '.join(map(str, values))}")


PAPER = Settings()
SMOKE = Settings(
    thetas=(0.5,), rates=(0.02, 0.1), refined=2, search_seeds=1, widen=1, seeds=2,
    communities=1, pairs=200, epochs=2, batch=32, graphs=8, choice_graphs=8,
)  # fmt: skip
QUICK = Settings(
    heads=("softmax", "catnat-sigmoid", "catnat-natural", "catnat"),  # as many as the paper has
    thetas=(0.5,), rates=(0.005, 0.01, 0.02, 0.05), refined=0, search_seeds=1, widen=2, seeds=4,
    pairs=4000, epochs=25, graphs=16, choice_graphs=64,
)  # fmt: skip
PRESETS = {"smoke": SMOKE, "quick": QUICK, "paper": PAPER}


def preset(name: str) -> Settings:
    if name not in PRESETS:
        raise UserError(f"preset must be one of {', '.join(PRESETS)}; got {name!r}")
    return PRESETS[name]
