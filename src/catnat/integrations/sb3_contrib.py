"""sb3-contrib: policies for MaskablePPO. A masked action has probability 0 and is never taken.

Example:
    >>> from sb3_contrib import MaskablePPO
    >>> from sb3_contrib.common.envs import InvalidActionEnvDiscrete
    >>> from catnat.integrations.sb3_contrib import MaskableCatnatPolicy
    >>> model = MaskablePPO(MaskableCatnatPolicy, InvalidActionEnvDiscrete(dim=20, n_invalid_actions=10), device="cpu")
    >>> model.policy.action_net
    Linear(in_features=64, out_features=19, bias=True)
"""

from __future__ import annotations

from collections.abc import Sequence

try:
    from sb3_contrib.common.maskable.distributions import (
        MaskableCategoricalDistribution,
        MaskableMultiCategoricalDistribution,
        MaybeMasks,
    )
    from sb3_contrib.common.maskable.policies import (
        MaskableActorCriticCnnPolicy,
        MaskableActorCriticPolicy,
        MaskableMultiInputActorCriticPolicy,
    )
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "catnat.integrations.sb3_contrib needs sb3-contrib 2.9 or newer; in catnat's folder: pip install '.[sb3]'"
    ) from missing

import torch
from torch import Tensor, nn

from catnat.integrations._actions import Actions, ParameterizationLike
from catnat.integrations.sb3 import CatnatPolicyMixin
from catnat.torch import MultiCatnat

__all__ = [
    "MaskableCatnatCnnPolicy",
    "MaskableCatnatDistribution",
    "MaskableCatnatMultiInputPolicy",
    "MaskableCatnatPolicy",
    "MaskableCatnatPolicyMixin",
    "MaskableMultiCatnatDistribution",
]


def _masked(actions: Actions, scores: Tensor, masks: MaybeMasks) -> MultiCatnat:
    """The policy among the allowed actions; the masks come flat, and as any kind of number."""
    if masks is None:
        return actions.policy(scores)
    mask = torch.as_tensor(masks, dtype=torch.bool, device=scores.device)
    return actions.policy(scores, mask.reshape(*scores.shape[:-1], sum(actions.nvec)))


class MaskableCatnatDistribution(MaskableCategoricalDistribution):
    """sb3-contrib's distribution of a masked Discrete action, on catnat.

    Args:
        action_dim: number of actions.
        parameterization: as in `catnat.torch.CatnatCategorical`.
    """

    def __init__(self, action_dim: int, parameterization: ParameterizationLike = "natural") -> None:
        super().__init__(action_dim)
        self.actions = Actions([action_dim], parameterization)

    def proba_distribution_net(self, latent_dim: int) -> nn.Module:
        """The last layer: one output fewer than actions."""
        return nn.Linear(latent_dim, self.actions.num_scores)

    def proba_distribution(self, action_logits: Tensor) -> MaskableCatnatDistribution:
        """Take the scores, under SB3's name for them."""
        self.scores = action_logits
        self.apply_masking(None)
        return self

    def apply_masking(self, masks: MaybeMasks) -> None:
        """Allow the actions where ``masks`` is true; None allows all."""
        [self.distribution] = _masked(self.actions, self.scores, masks).parts


class MaskableMultiCatnatDistribution(MaskableMultiCategoricalDistribution):
    """sb3-contrib's distribution of a masked MultiDiscrete action, on catnat.

    Args:
        action_dims: number of classes of every part.
        parameterization: as in `catnat.torch.MultiCatnat`.
    """

    def __init__(
        self,
        action_dims: Sequence[int],
        parameterization: ParameterizationLike | Sequence[ParameterizationLike] = "natural",
    ) -> None:
        super().__init__(list(action_dims))
        self.actions = Actions(action_dims, parameterization)

    def proba_distribution_net(self, latent_dim: int) -> nn.Module:
        """The last layer: for every part one output fewer than classes."""
        return nn.Linear(latent_dim, self.actions.num_scores)

    def proba_distribution(self, action_logits: Tensor) -> MaskableMultiCatnatDistribution:
        """Take the scores, under SB3's name for them."""
        self.scores = action_logits
        self.apply_masking(None)
        return self

    def apply_masking(self, masks: MaybeMasks) -> None:
        """Allow the classes where ``masks`` is true, the parts' one after the other; None allows all."""
        self.distributions = list(_masked(self.actions, self.scores, masks).parts)


class MaskableCatnatPolicyMixin(CatnatPolicyMixin):
    """`CatnatPolicyMixin` for maskable policies: ``class Mine(MaskableCatnatPolicyMixin, TheirMaskablePolicy)``."""

    discrete = MaskableCatnatDistribution
    multi_discrete = MaskableMultiCatnatDistribution


class MaskableCatnatPolicy(MaskableCatnatPolicyMixin, MaskableActorCriticPolicy):
    """In place of "MlpPolicy" in MaskablePPO."""


class MaskableCatnatCnnPolicy(MaskableCatnatPolicyMixin, MaskableActorCriticCnnPolicy):
    """In place of "CnnPolicy" in MaskablePPO."""


class MaskableCatnatMultiInputPolicy(MaskableCatnatPolicyMixin, MaskableMultiInputActorCriticPolicy):
    """In place of "MultiInputPolicy" in MaskablePPO."""
