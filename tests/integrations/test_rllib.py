"""Ray RLlib's new API stack with catnat: the real library, held against the oracle.

RLlib 2.60 pins another gymnasium than the rest of the tests use, so `make install` leaves its requirements out; with
`pip install dm-tree lz4 ormsgpack pyarrow pydantic` in .venv these tests run.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

from tests.integrations.action_oracle import HUFFMAN, entropy, log_prob

MISSING = [name for name in ("ray", "tree", "lz4", "ormsgpack", "pyarrow", "pydantic") if find_spec(name) is None]
if MISSING:
    pytest.skip(f"needs the extra rllib: {', '.join(MISSING)} not installed", allow_module_level=True)

from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402
from ray.rllib.algorithms.ppo.ppo_catalog import PPOCatalog  # noqa: E402
from ray.rllib.core.columns import Columns  # noqa: E402
from ray.rllib.core.rl_module.rl_module import RLModule, RLModuleSpec  # noqa: E402

from catnat.integrations.rllib import CatnatDistribution, CatnatPPOCatalog, CatnatPPOModule  # noqa: E402

SEEN = gym.spaces.Box(-1, 1, (3,), np.float32)
SPACES = {"discrete": gym.spaces.Discrete(5), "several parts": gym.spaces.MultiDiscrete([3, 5, 2])}


def classes(space: gym.Space) -> list[int]:
    return [int(space.n)] if isinstance(space, gym.spaces.Discrete) else space.nvec.tolist()


def module(space: gym.Space, model_config: dict | None = None, catalog: type | None = None) -> RLModule:
    torch.manual_seed(0)
    spaces = dict(observation_space=SEEN, action_space=space)
    return RLModuleSpec(CatnatPPOModule, **spaces, model_config=model_config or {}, catalog_class=catalog).build()


class Tagged(CatnatPPOCatalog):
    """A user's own catalog: it marks what it builds."""

    def build_actor_critic_encoder(self, framework: str) -> torch.nn.Module:
        made = super().build_actor_critic_encoder(framework)
        made.tagged = True
        return made


class Stranger(PPOCatalog):
    pass


def batch(rows: int = 50) -> dict[str, torch.Tensor]:
    return {Columns.OBS: torch.randn(rows, 3, generator=torch.Generator().manual_seed(1))}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_what_a_module_says_is_what_the_oracle_says(space: gym.Space) -> None:
    made, nvec = module(space), classes(space)
    with torch.no_grad():
        scores = made.forward_exploration(batch())[Columns.ACTION_DIST_INPUTS] * 10
    assert scores.shape == (50, sum(nvec) - len(nvec))
    kind = made.get_exploration_action_dist_cls()
    policy, other = kind.from_logits(scores), kind.from_logits(-scores)
    actions = policy.sample()
    assert all(space.contains(action) for action in actions.numpy())
    rows = actions.reshape(50, -1)
    np.testing.assert_allclose(policy.logp(actions), log_prob(scores, nvec, rows), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(policy.entropy(), entropy(scores, nvec), rtol=1e-5, atol=1e-6)
    assert policy.kl(other).shape == (50,) and (policy.kl(other) > 0).all() and not policy.kl(policy).any()
    sure = policy.to_deterministic().sample()
    best = [np.argmax(part.probs, -1) for part in getattr(policy.policy, "parts", [policy.policy])]
    np.testing.assert_array_equal(sure.reshape(50, -1).T, np.stack(best))


def test_a_parameterization_is_named_in_the_model_config() -> None:
    kind = module(SPACES["discrete"], {"parameterization": HUFFMAN}).get_train_action_dist_cls()
    scores = torch.randn(50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    actions = torch.arange(50) % 5
    want = log_prob(scores, [5], actions[:, None], [HUFFMAN])
    np.testing.assert_allclose(kind.from_logits(scores).logp(actions), want, rtol=1e-12)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="action space must be Discrete, or MultiDiscrete"):
        module(gym.spaces.Box(-1, 1, (2,)))
    with pytest.raises(ValueError, match=r"\(3,\) classes; it has \(5,\)"):
        module(gym.spaces.Discrete(3), {"parameterization": HUFFMAN})
    with pytest.raises(ValueError, match=r"4 outputs.*got 5"):
        CatnatDistribution.from_logits(torch.zeros(2, 5), space=SPACES["discrete"])


def test_a_users_own_catalog_is_kept_or_refused_and_never_replaced(tmp_path: Path) -> None:
    space = SPACES["discrete"]
    for catalog in (None, PPOCatalog, CatnatPPOCatalog):
        assert type(module(space, catalog=catalog).catalog) is CatnatPPOCatalog
    made = module(space, catalog=Tagged)
    assert made.encoder.tagged
    made.save_to_path(tmp_path)
    assert type(RLModule.from_checkpoint(tmp_path).catalog) is Tagged
    with pytest.raises(ValueError, match=r"catalog_class must derive from CatnatPPOCatalog.*Stranger"):
        module(space, catalog=Stranger)


@pytest.mark.slow
def test_it_trains_is_saved_and_loaded(tmp_path: Path) -> None:
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=4)
        .training(train_batch_size_per_learner=1000, minibatch_size=128, num_epochs=6, lr=1e-3)
        .rl_module(rl_module_spec=RLModuleSpec(CatnatPPOModule))
        .debugging(seed=0)
    )
    algorithm = config.build_algo()
    returns = [algorithm.train()["env_runners"]["episode_return_mean"] for _ in range(8)]
    assert returns[-1] > 2 * returns[0]
    algorithm.save_to_path(tmp_path)
    seen = {Columns.OBS: torch.randn(50, 4, generator=torch.Generator().manual_seed(1))}
    before = algorithm.get_module().forward_inference(seen)[Columns.ACTION_DIST_INPUTS]
    algorithm.stop()
    loaded = RLModule.from_checkpoint(tmp_path / "learner_group" / "learner" / "rl_module" / "default_policy")
    assert isinstance(loaded, CatnatPPOModule)
    after = loaded.forward_inference(seen)[Columns.ACTION_DIST_INPUTS]
    assert before.shape == (50, 1)
    torch.testing.assert_close(before, after)
