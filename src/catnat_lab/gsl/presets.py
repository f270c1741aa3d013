"""What one study of graph structure learning runs: `smoke` in seconds, `quick` in minutes on two cores, `paper` all."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from catnat_lab.errors import UserError, check, check_distinct, check_known, check_least, pick
from catnat_lab.experiment import Plan
from catnat_lab.gsl.energy import BASELINES
from catnat_lab.heads import PAPER_HEADS, parameterization_of


@dataclass(frozen=True)
class Settings(Plan):
    thetas: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 0.9)
    heads: tuple[str, ...] = (*PAPER_HEADS, "catnat")
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
        _check_numbers("theta", self.thetas, lambda theta: 0 < theta < 1, "lie in (0, 1)")
        _check_numbers("rate", self.rates, lambda rate: 0 < rate <= 1e3, "be positive and at most 1000")
        for name in self.heads:
            parameterization_of(name, 2)  # for its check: an edge is there or not
        check_distinct(self, "heads")
        check_least(self, refined=0, widen=0, search_seeds=1, seeds=2, communities=1, pairs=20, epochs=1)
        check_least(self, batch=1, graphs=3, choice_graphs=3)
        check("ratio", [self.ratio], lambda ratio: 1 < ratio < math.inf, "be above 1")
        most = self.pairs - 2 * (self.pairs // 10)
        told = f"be at most the training pairs, 80% of pairs = {self.pairs}"
        check("batch", [self.batch], lambda batch: batch <= most, told)
        check_known("baseline", [self.baseline], BASELINES)


def _check_numbers(name: str, values: tuple[float, ...], good: Callable[[float], bool], expected: str) -> None:
    if not values:
        raise UserError(f"{name}s must hold at least one value; got none")
    check(name, values, good, expected)
    if len({f"{value:.3g}" for value in values}) < len(values):
        raise UserError(f"{name}s must differ in their first three digits; got {', '.join(map(str, values))}")


PAPER = Settings()
SMOKE = Settings(
    thetas=(0.5,), rates=(0.02, 0.1), refined=2, search_seeds=1, widen=1, seeds=2,
    communities=1, pairs=200, epochs=2, batch=32, graphs=8, choice_graphs=8,
)  # fmt: skip
QUICK = Settings(
    heads=("softmax", "catnat-sigmoid", "catnat-paper", "catnat"),  # as many as the paper has
    thetas=(0.5,), rates=(0.005, 0.01, 0.02, 0.05), refined=0, search_seeds=1, widen=2, seeds=4,
    pairs=4000, epochs=25, graphs=16, choice_graphs=64,
)  # fmt: skip
PRESETS = {"smoke": SMOKE, "quick": QUICK, "paper": PAPER}


def preset(name: str) -> Settings:
    return pick(name, PRESETS)
