"""What libraries of reinforcement learning call an action space, in terms of catnat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from catnat import Activation, Parameterization
from catnat.torch import MultiCatnat

ParameterizationLike = Parameterization | Activation | str


class Actions:
    """Actions of one or more parts, each a class id: how many scores they take, and the policy that scores give.

    Args:
        nvec: number of classes of every part.
        parameterization: the name (or value) of an activation or a `Parameterization` for all parts, or one a part.
    """

    def __init__(
        self, nvec: Sequence[int], parameterization: ParameterizationLike | Sequence[ParameterizationLike] = "natural"
    ) -> None:
        self.nvec = tuple(map(int, nvec))
        each = isinstance(parameterization, Sequence) and not isinstance(parameterization, str)
        kinds: list[Any] = list(parameterization) if each else [parameterization] * len(self.nvec)  # type: ignore
        if len(kinds) != len(self.nvec):
            raise ValueError(f"parameterization must name one a part: {len(self.nvec)}; got {len(kinds)}")
        # with K in it, so that scores of another width are refused
        self.parameterizations = [
            kind if isinstance(kind, Parameterization) else Parameterization(n, kind)
            for n, kind in zip(self.nvec, kinds, strict=True)
        ]
        found = tuple(kind.num_classes for kind in self.parameterizations)
        if found != self.nvec:
            raise ValueError(f"parameterization must have the action space's {self.nvec} classes; it has {found}")
        self.num_scores = sum(self.nvec) - len(self.nvec)

    def policy(self, scores: Tensor, mask: Tensor | None = None) -> MultiCatnat:
        """The distribution over actions, from [..., `num_scores`] scores."""
        if scores.shape[-1] != self.num_scores:
            raise ValueError(
                f"the policy's last layer must have {self.num_scores} outputs, one fewer than the classes of every "
                f"part {self.nvec}; got {scores.shape[-1]}"
            )
        return MultiCatnat(scores, self.parameterizations, mask=mask)


def classes_of(space: Any) -> tuple[int, ...]:
    """Number of classes of every part of a gymnasium action space; a Discrete one has one part."""
    from gymnasium import spaces  # here, because TorchRL does without

    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return tuple(map(int, space.nvec))
    raise ValueError(f"the action space must be Discrete, or MultiDiscrete with a flat nvec; got {space}")
