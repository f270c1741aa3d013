"""TorchRL: an actor whose module gives K-1 scores.

Example:
    >>> import torch
    >>> from tensordict import TensorDict
    >>> from tensordict.nn import TensorDictModule
    >>> from torchrl.data import Categorical
    >>> from catnat.integrations.torchrl import catnat_actor
    >>> scores = TensorDictModule(torch.nn.Linear(4, 6 - 1), in_keys=["observation"], out_keys=["scores"])
    >>> actor = catnat_actor(scores, Categorical(6), return_log_prob=True)
    >>> actor(TensorDict({"observation": torch.randn(3, 4)}, [3]))["action"].shape
    torch.Size([3])

`torchrl.modules.ProbabilisticActor` takes the distributions of `catnat.torch` as they are, by their keyword ``scores``;
`catnat_actor` chooses among them by the action's spec, and tells them how many classes there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from catnat.integrations import needs

with needs(__name__, "TorchRL 0.14"):
    from tensordict.nn import TensorDictModuleBase
    from torchrl.data import Categorical, MultiCategorical, OneHot, TensorSpec
    from torchrl.modules import ProbabilisticActor

import torch
from torch import Tensor

from catnat.integrations._actions import Actions, Parameterizations
from catnat.torch import CatnatCategorical, MultiCatnat, OneHotCatnat

__all__ = ["OneHotActions", "catnat_actor"]


class OneHotActions(OneHotCatnat):
    """`catnat.torch.OneHotCatnat` with samples of integers, as TorchRL's one-hot actions are."""

    def sample(self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw one-hot vectors."""
        return super().sample(sample_shape, generator=generator).long()

    @property
    def mode(self) -> Tensor:
        """The likeliest class, one-hot."""
        probs = self.probs  # super().mode is what torch.compile cannot trace
        return torch.nn.functional.one_hot(probs.argmax(-1), probs.shape[-1])

    @property
    def deterministic_sample(self) -> Tensor:
        """The same, under TorchRL's name."""
        return self.mode


KINDS: dict[type, type[torch.distributions.Distribution]] = {
    Categorical: CatnatCategorical,
    OneHot: OneHotActions,
    MultiCategorical: MultiCatnat,
}


def catnat_actor(
    module: TensorDictModuleBase,
    action_spec: TensorSpec,
    *,
    parameterization: Parameterizations = None,
    mask_key: Any = None,
    **kwargs: Any,
) -> ProbabilisticActor:
    """A `torchrl.modules.ProbabilisticActor` on catnat.

    Args:
        module: writes the scores, K-1 of them, under its last key.
        action_spec: `torchrl.data.Categorical`, `OneHot` or `MultiCategorical`.
        parameterization: a `catnat.Parameterization`, or for several parts a list of them; None is the default.
        mask_key: where the environment writes the allowed actions, such as "action_mask"; None for no mask.
        kwargs: go to `ProbabilisticActor`, such as ``return_log_prob=True``.
    """
    kind = KINDS.get(type(action_spec))  # not a subclass: `Binary` is one, and means several actions
    if kind is None:
        raise ValueError(f"action_spec must be Categorical, OneHot or MultiCategorical; got {action_spec}")
    several = kind is MultiCatnat
    classes = action_spec.nvec.reshape(-1, action_spec.shape[-1])[0].tolist() if several else [action_spec.space.n]
    kinds = Actions(classes, parameterization).parameterizations
    settings: dict[str, Any] = {"nvec": kinds} if several else {"parameterization": kinds[0]}
    keys = {"scores": module.out_keys[-1]} | ({} if mask_key is None else {"mask": mask_key})
    return ProbabilisticActor(
        module, in_keys=keys, spec=action_spec, distribution_class=kind, distribution_kwargs=settings, **kwargs
    )
