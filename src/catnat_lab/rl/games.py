"""Many copies of one game, stepped together, whatever they are made by.

A game is where its random stream and the actions since its episode began have led to. That is what a checkpoint keeps:
a game goes on exactly where it was by playing them again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

Array = NDArray[Any]
SEEDS_APART = 10_007  # between runs; the copies of a run have seeds one apart


@dataclass
class Step:
    """What one step of all N games has given."""

    observation: Array  # [N, ...] of the next step; after an episode's end, the first of the next one
    reward: Array  # float32 [N], as the game counts it
    lost: Array  # bool [N]: a life, or the game; where the learner's returns end
    over: Array  # bool [N]: the episode has ended, and another has begun
    cut: dict[int, Array] = field(default_factory=dict)  # by game, the last observation of an episode that time ended
    allowed: Array | None = None  # bool [N, K]: the actions that may come next; None: all


class Games(Protocol):
    """N copies of a game."""

    name: str
    count: int
    actions: int
    observation: tuple[int, ...]  # the shape of one
    pixels: bool  # uint8 images, else float32 vectors

    def reset(self, seed: int) -> tuple[Array, Array | None]:
        """Begin anew: the first observations, and the actions that are allowed."""

    def step(self, actions: Array) -> Step:
        """Do these actions, one a game."""

    def history(self) -> dict[str, Any]:
        """All that tells where the games are, as JSON can hold it."""

    def replay(self, history: dict[str, Any]) -> tuple[Array, Array | None]:
        """Play until there again: the present observations, and the actions that are allowed."""
