"""What libraries of reinforcement learning call an action space, in terms of catnat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from catnat import Parameterization
from catnat.torch import Catnat, MultiCatnat

Parameterizations = Parameterization | Sequence[Parameterization] | None


class Actions:
    """Actions of one or more parts, each a class id: how many scores they take, and the policy that scores give.

    Args:
        nvec: number of classes of every part.
        parameterization: one for all parts, or a list of one a part; None is the default of so many classes.
    """

    def __init__(self, nvec: Sequence[int], parameterization: Parameterizations = None) -> None:
        self.nvec = tuple(map(int, nvec))
        each: Sequence[Any] = self.nvec
        if parameterization is not None:
            several = isinstance(parameterization, (list, tuple))
            each = parameterization if several else [parameterization] * len(self.nvec)  # type: ignore[assignment]
        if len(each) != len(self.nvec):
            raise ValueError(f"parameterization must name one a part: {len(self.nvec)}; got {len(each)}")
        self.parameterizations = tuple(Catnat(kind).parameterization for kind in each)
        found = tuple(kind.num_classes for kind in self.parameterizations)
        if found != self.nvec:
            raise ValueError(f"parameterization must have the action space's {self.nvec} classes; it has {found}")
        self.num_scores = sum(self.nvec) - len(self.nvec)

    def policy(self, scores: Tensor, mask: Tensor | None = None) -> MultiCatnat:
        """The distribution over actions, from [..., `num_scores`] scores."""
        if scores.shape[-1] != self.num_scores:
            wanted = f"{self.num_scores} outputs, one fewer than the classes of every part {self.nvec}"
            raise ValueError(f"the policy's last layer must have {wanted}; got {scores.shape[-1]}")
        return MultiCatnat(scores, self.parameterizations, mask=mask)


def classes_of(space: Any) -> tuple[int, ...]:
    """Number of classes of every part of a gymnasium action space; a Discrete one has one part."""
    from gymnasium import spaces  # here, because TorchRL does without

    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return tuple(map(int, space.nvec))
    if isinstance(space, spaces.MultiBinary) and len(space.shape) == 1:
        return (2,) * space.shape[0]
    raise ValueError(f"the action space must be Discrete, or a flat MultiDiscrete or MultiBinary; got {space}")
