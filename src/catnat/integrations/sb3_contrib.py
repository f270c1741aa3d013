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

from catnat.integrations import needs

with needs(__name__, "sb3-contrib 2.9", extra="sb3"):
    from sb3_contrib.common.maskable import distributions, policies

import torch
from torch import Tensor

from catnat.integrations.sb3 import CatnatPolicyMixin, OnScores
from catnat.torch import CatnatCategorical

__all__ = [
    "MaskableCatnatCnnPolicy",
    "MaskableCatnatDistribution",
    "MaskableCatnatMultiInputPolicy",
    "MaskableCatnatPolicy",
    "MaskableCatnatPolicyMixin",
    "MaskableMultiCatnatDistribution",
]


class OnMaskedScores(OnScores):
    """What both of sb3-contrib's distributions share on catnat; arguments as in `catnat.integrations.sb3`."""

    scores: Tensor

    def proba_distribution(self, action_logits: Tensor) -> OnMaskedScores:
        """Take the scores, under SB3's name for them."""
        self.scores = action_logits
        self.apply_masking(None)
        return self

    def parts_where(self, masks: distributions.MaybeMasks) -> list[CatnatCategorical]:
        """The parts among the allowed actions; masks come flat, and as any kind of number. None allows all."""
        if masks is not None:
            masks = torch.as_tensor(masks, dtype=torch.bool, device=self.scores.device)
            masks = masks.reshape(*self.scores.shape[:-1], sum(self.actions.nvec))
        return self.actions.policy(self.scores, masks).parts


class MaskableCatnatDistribution(OnMaskedScores, distributions.MaskableCategoricalDistribution):
    """sb3-contrib's distribution of a masked Discrete action, on catnat."""

    def apply_masking(self, masks: distributions.MaybeMasks) -> None:
        """Allow the actions where ``masks`` is true; None allows all."""
        [self.distribution] = self.parts_where(masks)


class MaskableMultiCatnatDistribution(OnMaskedScores, distributions.MaskableMultiCategoricalDistribution):
    """sb3-contrib's distribution of a masked MultiDiscrete action, on catnat."""

    def apply_masking(self, masks: distributions.MaybeMasks) -> None:
        """Allow the classes where ``masks`` is true, the parts' one after the other; None allows all."""
        assert hasattr(self, "scores"), "Must set distribution parameters"  # the error and the words are sb3-contrib's
        self.distributions = self.parts_where(masks)


class MaskableCatnatPolicyMixin(CatnatPolicyMixin):
    """`CatnatPolicyMixin` for maskable policies: ``class Mine(MaskableCatnatPolicyMixin, TheirMaskablePolicy)``."""

    discrete = MaskableCatnatDistribution
    multi_discrete = MaskableMultiCatnatDistribution


class MaskableCatnatPolicy(MaskableCatnatPolicyMixin, policies.MaskableActorCriticPolicy):
    """In place of "MlpPolicy" in MaskablePPO."""


class MaskableCatnatCnnPolicy(MaskableCatnatPolicyMixin, policies.MaskableActorCriticCnnPolicy):
    """In place of "CnnPolicy" in MaskablePPO."""


class MaskableCatnatMultiInputPolicy(MaskableCatnatPolicyMixin, policies.MaskableMultiInputActorCriticPolicy):
    """In place of "MultiInputPolicy" in MaskablePPO."""
