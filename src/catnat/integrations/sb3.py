"""Stable-Baselines3: policies for PPO, A2C and their relatives whose last layer gives K-1 scores.

Example:
    >>> from stable_baselines3 import PPO
    >>> from catnat.integrations.sb3 import CatnatPolicy
    >>> model = PPO(CatnatPolicy, "CartPole-v1", device="cpu")
    >>> model.policy.action_net
    Linear(in_features=64, out_features=1, bias=True)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from catnat.integrations import needs

with needs(__name__, "Stable-Baselines3 2.9"):
    from stable_baselines3.common import distributions, policies
    from stable_baselines3.common.type_aliases import Schedule

from torch import Tensor, nn

from catnat.integrations._actions import Actions, Parameterizations, classes_of

__all__ = [
    "CatnatCnnPolicy",
    "CatnatDistribution",
    "CatnatMultiInputPolicy",
    "CatnatPolicy",
    "CatnatPolicyMixin",
    "MultiCatnatDistribution",
]


class OnScores(distributions.Distribution):
    """What SB3's distributions of discrete actions, masked or not, share on catnat.

    Args:
        action_dim: number of actions; for a MultiDiscrete action of every part.
        parameterization: a `catnat.Parameterization`, or for several parts a list of them; None is the default.
    """

    def __init__(self, action_dim: int | Sequence[int], parameterization: Parameterizations = None) -> None:
        parts = list(action_dim) if isinstance(action_dim, Sequence) else [action_dim]
        super().__init__(parts if isinstance(action_dim, Sequence) else action_dim)
        self.actions = Actions(parts, parameterization)

    def proba_distribution_net(self, latent_dim: int) -> nn.Module:
        """The last layer: for every part one output fewer than classes."""
        return nn.Linear(latent_dim, self.actions.num_scores)


class CatnatDistribution(OnScores, distributions.CategoricalDistribution):
    """SB3's distribution of a Discrete action, on catnat."""

    def proba_distribution(self, action_logits: Tensor) -> CatnatDistribution:
        """Take the scores, under SB3's name for them."""
        [self.distribution] = self.actions.policy(action_logits).parts
        return self


class MultiCatnatDistribution(OnScores, distributions.MultiCategoricalDistribution):
    """SB3's distribution of a MultiDiscrete action, on catnat."""

    def proba_distribution(self, action_logits: Tensor) -> MultiCatnatDistribution:
        """Take the scores, under SB3's name for them."""
        self.distribution = list(self.actions.policy(action_logits).parts)
        return self


class CatnatPolicyMixin(policies.BasePolicy):
    """Puts catnat into an actor-critic policy of SB3 or sb3-contrib: ``class Mine(CatnatPolicyMixin, TheirPolicy)``.

    Args:
        parameterization: in `policy_kwargs`, such as ``catnat.Parameterization(5, "sigmoid")`` for five actions, or a
            list of one a part; None is the default. All else goes to the policy.
    """

    discrete: type[distributions.Distribution] = CatnatDistribution
    multi_discrete: type[distributions.Distribution] = MultiCatnatDistribution

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        first = next(kind for kind in cls.__mro__ if kind in (policies.ActorCriticPolicy, CatnatPolicyMixin))
        if first is not CatnatPolicyMixin:
            raise TypeError(f"the mixin must come first, else it is a softmax: class {cls.__name__}(Mixin, Policy)")

    def __init__(self, *args: Any, parameterization: Parameterizations = None, **kwargs: Any) -> None:
        self.parameterization = parameterization
        super().__init__(*args, **kwargs)

    def _build(self, lr_schedule: Schedule) -> None:
        # SB3's own moment to make the last layer; a distribution that came later would find a layer of K outputs
        classes = classes_of(self.action_space)
        if self.action_space.shape == ():
            self.action_dist = self.discrete(*classes, self.parameterization)
        else:
            self.action_dist = self.multi_discrete(classes, self.parameterization)
        super()._build(lr_schedule)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "parameterization": self.parameterization}


class CatnatPolicy(CatnatPolicyMixin, policies.ActorCriticPolicy):
    """In place of "MlpPolicy"; TRPO of sb3-contrib takes it too."""


class CatnatCnnPolicy(CatnatPolicyMixin, policies.ActorCriticCnnPolicy):
    """In place of "CnnPolicy"."""


class CatnatMultiInputPolicy(CatnatPolicyMixin, policies.MultiInputActorCriticPolicy):
    """In place of "MultiInputPolicy"."""
