"""Ray RLlib (its new API stack): PPO's default module with K-1 scores in place of K logits.

Example:
    >>> from ray.rllib.algorithms.ppo import PPOConfig
    >>> from ray.rllib.core.rl_module.rl_module import RLModuleSpec
    >>> from catnat.integrations.rllib import CatnatPPOModule
    >>> config = PPOConfig().environment("CartPole-v1").rl_module(rl_module_spec=RLModuleSpec(CatnatPPOModule))
"""

from __future__ import annotations

from functools import partial
from typing import Any

from catnat.integrations import needs

with needs(__name__, "Ray RLlib 2.60"):
    from ray.rllib.algorithms.ppo.ppo_catalog import PPOCatalog
    from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
    from ray.rllib.core.distribution.torch.torch_distribution import TorchDeterministic, TorchDistribution

from torch import Tensor
from torch.distributions import Distribution

from catnat.integrations._actions import Actions, Parameterizations, classes_of

__all__ = ["CatnatDistribution", "CatnatPPOCatalog", "CatnatPPOModule"]


class CatnatDistribution(TorchDistribution):
    """RLlib's distribution of a Discrete or MultiDiscrete action, on catnat.

    RLlib makes it from the network's output alone, so the rest comes first:
    ``CatnatDistribution.get_partial_dist_cls(space=action_space, parameterization=None)`` is the class to use as
    an RLModule's ``action_dist_cls``.

    Args:
        logits: RLlib's name for the scores.
        space: the action space.
        parameterization: a `catnat.Parameterization`, or for several parts a list of them; None is the default.
    """

    def _get_torch_distribution(
        self, logits: Tensor, space: Any, parameterization: Parameterizations = None
    ) -> Distribution:
        policy = Actions(classes_of(space), parameterization).policy(logits)
        self.policy = policy if space.shape else policy.parts[0]
        return self.policy

    @staticmethod
    def required_input_dim(space: Any, **kwargs: Any) -> int:
        """Number of scores: for every part of an action one fewer than classes."""
        return Actions(classes_of(space)).num_scores

    def to_deterministic(self) -> TorchDeterministic:
        """The likeliest action."""
        return TorchDeterministic(loc=self.policy.mode)


class CatnatPPOCatalog(PPOCatalog):
    """PPO's catalog with `CatnatDistribution`; ``model_config={"parameterization": ...}`` names a parameterization."""

    def __init__(self, observation_space: Any, action_space: Any, model_config_dict: Any) -> None:
        get = model_config_dict.get if isinstance(model_config_dict, dict) else partial(getattr, model_config_dict)
        self.parameterization = get("parameterization", None)
        super().__init__(observation_space, action_space, model_config_dict)

    def get_action_dist_cls(self, framework: str) -> type[TorchDistribution]:
        """The class that turns scores into a distribution."""
        actions = Actions(classes_of(self.action_space), self.parameterization)
        return CatnatDistribution.get_partial_dist_cls(
            space=self.action_space, parameterization=actions.parameterizations
        )


class CatnatPPOModule(DefaultPPOTorchRLModule):
    """PPO's default RLModule with `CatnatPPOCatalog`, or with a catalog of your own that derives from it."""

    def __init__(self, *args: Any, catalog_class: type | None = None, **kwargs: Any) -> None:
        if catalog_class in (None, PPOCatalog):  # nobody chose one: PPO names its own wherever none is given
            catalog_class = CatnatPPOCatalog
        elif not issubclass(catalog_class, CatnatPPOCatalog):
            raise ValueError(f"catalog_class must derive from CatnatPPOCatalog, for K-1 scores; got {catalog_class!r}")
        super().__init__(*args, catalog_class=catalog_class, **kwargs)
