"""What is trained: a task trains many runs as one program, and tells what they came to."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from catnat_lab.experiment import Outcome
from catnat_lab.heads import tail_head

TAILS = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.001, 0.0)
GAINED = (0.5, 0.05, 0.0)  # tails that are tried with the other gains too
GAINS = (math.sqrt(2), 2.0)
SOFTMAX, SIGMOID, PAPER = "softmax", tail_head(0.5), tail_head(0.0)
FAMILY = (*map(tail_head, TAILS), *(tail_head(tail, gain) for tail in GAINED for gain in GAINS))

Progress = Callable[[str, int, int], None]  # what is done, steps done, steps in all


class Run(NamedTuple):
    head: str
    rate: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class Outline:
    name: str
    measure: str  # what its numbers are
    lower_is_better: bool = True
    tolerance: float  # a rate is as good as the best one within this much
    rates: tuple[float, ...]  # they span a factor of a hundred
    heads: tuple[str, ...] = (SOFTMAX, *FAMILY)
    search_seeds: int
    seeds: int

    @property
    def sign(self) -> int:
        """Of its numbers, to make lower ones better."""
        return 1 if self.lower_is_better else -1


def outline_of(settings: dict[str, Any]) -> Outline:
    found: dict[str, Any] = {field.name: settings[field.name] for field in fields(Outline)}
    return Outline(**found | {"rates": tuple(found["rates"]), "heads": tuple(found["heads"])})


@dataclass(frozen=True, kw_only=True)
class Task(Outline, ABC):
    """Something to train with a categorical variable in it."""

    at_once: int  # runs that are trained as one program, at most

    @property
    def settings(self) -> dict[str, Any]:
        """What decides its numbers, as JSON can hold it; data by their checksum."""
        found = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if hasattr(value, "checksum"):
                found[field.name] = value.checksum
            elif isinstance(value, int | float | str):
                found[field.name] = value
            elif isinstance(value, tuple) and not any(isinstance(each, Tensor) for each in value):
                found[field.name] = list(value)
            elif is_dataclass(value) and not any(isinstance(part, Tensor) for part in vars(value).values()):
                found[field.name] = vars(value)
        return found

    @abstractmethod
    def train(self, runs: Sequence[Run], device: torch.device, progress: Progress) -> list[Outcome]:
        """All runs side by side, in the order they came.

        A value is the result on validation data, by which rates are chosen; the metric "test" is that on test data.
        """
