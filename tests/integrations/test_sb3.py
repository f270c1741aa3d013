"""Stable-Baselines3 and sb3-contrib with catnat: the real libraries, held against the oracle."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

import catnat
from catnat_lab import reference
from tests.integrations.action_oracle import HUFFMAN, PARAMETERIZATIONS, allowed, entropy, log_prob, random_masks
from tests.thinned import thinned

sb3 = pytest.importorskip("stable_baselines3", reason="needs the extra sb3: Stable-Baselines3 is not installed")
contrib = pytest.importorskip("sb3_contrib", reason="needs the extra sb3: sb3-contrib is not installed")

from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402

from catnat.integrations import sb3 as plain  # noqa: E402
from catnat.integrations import sb3_contrib as maskable  # noqa: E402

SPACES = {
    "discrete": gym.spaces.Discrete(5),
    "two actions": gym.spaces.Discrete(2),
    "several parts": gym.spaces.MultiDiscrete([3, 5, 2]),
    "one part": gym.spaces.MultiDiscrete([4]),
    "switches": gym.spaces.MultiBinary(3),
}


def classes(space: gym.Space) -> list[int]:
    if isinstance(space, gym.spaces.MultiBinary):
        return [2] * space.shape[0]
    return [int(space.n)] if isinstance(space, gym.spaces.Discrete) else space.nvec.tolist()


class Game(gym.Env):
    """Three numbers to see, any actions to take, a reward for low ids; a forbidden action ends the test."""

    def __init__(self, action_space: gym.Space, masked: bool = False) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = action_space
        self.masked = masked
        self.random = np.random.default_rng(0)

    def action_masks(self) -> np.ndarray:
        return self.mask

    def _next(self) -> np.ndarray:
        generator = torch.Generator().manual_seed(int(self.random.integers(1 << 30)))
        self.mask = random_masks(1, classes(self.action_space), generator)[0].numpy()
        return self.random.uniform(-1, 1, 3).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        self.time = 0
        return self._next(), {}

    def step(self, action):
        if self.masked:
            nvec = classes(self.action_space)
            ids, mask = torch.as_tensor(action).reshape(1, -1), torch.as_tensor(self.mask)[None]
            assert allowed(ids, mask, nvec).all(), "a forbidden action was taken"
        self.time += 1
        return self._next(), -float(np.sum(action)), self.time == 20, False, {}


def small(algorithm, policy, env, **kwargs):
    sizes = {} if algorithm is sb3.A2C else {"batch_size": 32}
    return algorithm(policy, env, n_steps=64, seed=0, device="cpu", **sizes, **kwargs)


OBSERVATIONS = np.random.default_rng(1).uniform(-1, 1, (50, 3)).astype(np.float32)


@pytest.mark.parametrize(
    ("algorithm", "name"),
    thinned(
        product([sb3.PPO, sb3.A2C, contrib.TRPO, contrib.MaskablePPO], SPACES),
        quick=[(contrib.MaskablePPO, "several parts")],
    ),
)
def test_it_trains_is_saved_and_loaded(algorithm, name: str, tmp_path: Path) -> None:
    space = SPACES[name]
    masked = algorithm is contrib.MaskablePPO
    policy = maskable.MaskableCatnatPolicy if masked else plain.CatnatPolicy
    nvec = classes(space)
    kinds = [catnat.Parameterization(n, "sigmoid") for n in nvec]
    model = small(algorithm, policy, Game(space, masked), policy_kwargs={"parameterization": kinds})
    assert model.policy.action_net.out_features == sum(nvec) - len(nvec)
    before = [p.clone() for p in model.policy.action_net.parameters()]
    model.learn(128)
    assert not any(torch.equal(a, b) for a, b in zip(before, model.policy.action_net.parameters(), strict=True))

    model.save(tmp_path / "model")
    loaded = algorithm.load(tmp_path / "model", env=Game(space, masked), device="cpu")
    assert loaded.policy.parameterization == kinds
    for deterministic in (True, False):
        seen = []
        for m in (model, loaded):
            torch.manual_seed(0)
            seen.append(m.predict(OBSERVATIONS, deterministic=deterministic)[0])
        np.testing.assert_array_equal(*seen)
        assert all(space.contains(action) for action in seen[0])
    loaded.learn(64, reset_num_timesteps=False)  # goes on

    model.policy.save(tmp_path / "policy")
    alone = policy.load(tmp_path / "policy", device="cpu")
    assert alone.parameterization == kinds
    np.testing.assert_array_equal(*[p.predict(OBSERVATIONS, deterministic=True)[0] for p in (model, alone)])


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
@pytest.mark.parametrize("masked", [False, True], ids=["PPO", "MaskablePPO"])
def test_what_a_policy_says_is_what_the_oracle_says(space: gym.Space, masked: bool) -> None:
    algorithm = contrib.MaskablePPO if masked else sb3.PPO
    policy_class = maskable.MaskableCatnatPolicy if masked else plain.CatnatPolicy
    policy = small(algorithm, policy_class, Game(space, masked)).policy
    with torch.no_grad():
        policy.action_net.weight.mul_(1000)  # SB3 begins near the uniform distribution
    nvec = classes(space)
    generator = torch.Generator().manual_seed(2)
    masks = random_masks(50, nvec, generator) if masked else None
    extra = {"action_masks": masks} if masked else {}
    obs = torch.from_numpy(OBSERVATIONS)
    with torch.no_grad():
        actions, _, chosen = policy(obs, **extra)
        _, again, spread = policy.evaluate_actions(obs, actions, **extra)
        scores = policy.action_net(policy.mlp_extractor.forward_actor(obs))
    assert scores.std() > 0.5
    want = log_prob(scores, nvec, actions.reshape(50, -1), masks=masks)
    np.testing.assert_allclose(chosen, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(again, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(spread, entropy(scores, nvec, masks=masks), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pi", PARAMETERIZATIONS, ids=str)
def test_values_and_gradients_in_float64(pi) -> None:
    scores = torch.randn(7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    actions = torch.arange(7) % 5
    for distribution in (plain.CatnatDistribution(5, pi), maskable.MaskableCatnatDistribution(5, pi)):
        given = distribution.proba_distribution(scores)
        value = given.log_prob(actions)
        upstream = np.eye(5)[actions]
        np.testing.assert_allclose(value.detach(), reference.log_prob(scores.detach().numpy(), actions.numpy(), pi))
        np.testing.assert_allclose(given.entropy().detach(), reference.entropy(scores.detach().numpy(), pi))
        np.testing.assert_array_equal(given.mode(), reference.mode(scores.detach().numpy(), pi))
        [gradient] = torch.autograd.grad(value.sum(), scores)
        want = reference.log_catnat_gradient(scores.detach().numpy(), upstream, pi)
        np.testing.assert_allclose(gradient, want, rtol=1e-10, atol=1e-12)


def test_masks_without_scores_are_refused_as_sb3_contrib_refuses_them() -> None:
    for kind, classes_, error in (
        (maskable.MaskableCatnatDistribution, 3, AttributeError),
        (maskable.MaskableMultiCatnatDistribution, [3, 2], AssertionError),
    ):
        with pytest.raises(error):
            kind(classes_).apply_masking(None)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_a_masked_action_is_never_taken(space: gym.Space) -> None:
    policy = small(contrib.MaskablePPO, maskable.MaskableCatnatPolicy, Game(space, masked=True)).policy
    with torch.no_grad():
        policy.action_net.weight.mul_(3000)  # sure of itself, and often of what is forbidden
    nvec, rows = classes(space), 100_000
    generator = torch.Generator().manual_seed(3)
    masks = random_masks(rows, nvec, generator)
    obs = torch.rand(rows, 3, generator=generator) * 2 - 1
    torch.manual_seed(0)
    with torch.no_grad():
        free = policy(obs)[0].reshape(rows, -1)
        for deterministic in (False, True):
            taken = policy(obs, action_masks=masks.numpy(), deterministic=deterministic)[0].reshape(rows, -1)
            assert allowed(taken, masks, nvec).all()
    assert not allowed(free, masks, nvec).all()  # the masks do something


def test_masks_must_be_as_many_as_observations() -> None:
    policy = small(contrib.MaskablePPO, maskable.MaskableCatnatPolicy, Game(gym.spaces.Discrete(5), masked=True)).policy
    for rows, masks in ((1, torch.ones(2, 5)), (4, torch.ones(1, 5))):
        with pytest.raises(RuntimeError, match="is invalid for input"):
            policy(torch.zeros(rows, 3), action_masks=masks.numpy())


def test_a_mixin_that_comes_last_is_refused() -> None:
    with pytest.raises(TypeError, match="must come first"):
        type("Wrong", (sb3.common.policies.ActorCriticPolicy, plain.CatnatPolicyMixin), {})


def test_a_mask_is_dropped_when_another_comes() -> None:
    distribution = maskable.MaskableCatnatDistribution(3).proba_distribution(torch.zeros(1, 2))
    for mask, want in (([1, 1, 0], [0.5, 0.5, 0]), ([0, 1, 0], [0, 1, 0]), (None, [1 / 3] * 3)):
        distribution.apply_masking(None if mask is None else np.array([mask]))
        np.testing.assert_allclose(distribution.distribution.probs[0], want, atol=1e-7)
    with pytest.raises(ValueError, match="allow"):
        distribution.apply_masking(np.zeros((1, 3)))


def test_a_tree_of_ones_own_is_saved(tmp_path: Path) -> None:
    model = small(sb3.PPO, plain.CatnatPolicy, Game(SPACES["discrete"]), policy_kwargs={"parameterization": HUFFMAN})
    model.save(tmp_path / "model")
    assert sb3.PPO.load(tmp_path / "model", device="cpu").policy.parameterization == HUFFMAN


def test_the_default_is_catnats_own() -> None:
    policy = small(sb3.PPO, plain.CatnatPolicy, Game(SPACES["discrete"])).policy
    assert policy.action_dist.actions.parameterizations == (catnat.Parameterization(5),)


def test_other_policies_take_the_mixin() -> None:
    class Mine(plain.CatnatPolicyMixin, contrib.common.recurrent.policies.RecurrentActorCriticPolicy):
        pass

    model = small(contrib.RecurrentPPO, Mine, Game(SPACES["several parts"]), policy_kwargs={"lstm_hidden_size": 8})
    assert model.policy.action_net.out_features == 7
    model.learn(64)


@pytest.mark.parametrize(
    ("policy", "observation"),
    [(plain.CatnatCnnPolicy, gym.spaces.Box(0, 255, (3, 36, 36), np.uint8)),
     (plain.CatnatMultiInputPolicy, gym.spaces.Dict({"a": gym.spaces.Box(-1, 1, (2,))})),
     (maskable.MaskableCatnatCnnPolicy, gym.spaces.Box(0, 255, (3, 36, 36), np.uint8)),
     (maskable.MaskableCatnatMultiInputPolicy, gym.spaces.Dict({"a": gym.spaces.Box(-1, 1, (2,))}))],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_images_and_dictionaries(policy, observation: gym.Space) -> None:
    made = policy(observation, SPACES["discrete"], lambda _: 1e-3)
    assert made.action_net.out_features == 4
    assert 0 <= made.predict(observation.sample())[0] < 5


def test_a_wide_layer_is_refused() -> None:
    for distribution, width, want in (
        (plain.CatnatDistribution(4), 4, "3 outputs.*got 4"),
        (plain.MultiCatnatDistribution([3, 3]), 6, "4 outputs.*got 6"),
        (maskable.MaskableCatnatDistribution(4), 4, "3 outputs.*got 4"),
        (maskable.MaskableMultiCatnatDistribution([3, 3]), 6, "4 outputs.*got 6"),
    ):
        with pytest.raises(ValueError, match=want):
            distribution.proba_distribution(torch.zeros(2, width))


@pytest.mark.parametrize(
    "space",
    [gym.spaces.Box(-1, 1, (2,)), gym.spaces.MultiDiscrete([[2, 2], [2, 2]])],
    ids=str,
)
def test_other_action_spaces_are_refused(space: gym.Space) -> None:
    with pytest.raises(ValueError, match="action space must be Discrete, or a flat MultiDiscrete"):
        plain.CatnatPolicy(gym.spaces.Box(-1, 1, (3,)), space, lambda _: 1e-3)


@pytest.mark.parametrize(
    ("parameterization", "want"),
    [
        (HUFFMAN, r"\(2,\) classes; it has \(5,\)"),
        ([2, 2], "one a part: 1; got 2"),
    ],
    ids=["classes", "parts"],
)
def test_a_parameterization_that_does_not_fit_is_refused(parameterization, want: str) -> None:
    with pytest.raises(ValueError, match=want):
        sb3.PPO(plain.CatnatPolicy, "CartPole-v1", policy_kwargs={"parameterization": parameterization}, device="cpu")


@pytest.mark.parametrize(
    ("alone", "want"),
    [
        (catnat.Tree.chain(2), r"got Tree\..*: write catnat.Parameterization\(2, tree=\.\.\.\)"),
        ("sigmoid", r"got 'sigmoid': write catnat.Parameterization\(num_classes, 'sigmoid'\)"),
    ],
    ids=["tree", "name"],
)
def test_what_stands_alone_is_told_where_it_goes(alone, want: str) -> None:
    with pytest.raises(TypeError, match=want):
        sb3.PPO(plain.CatnatPolicy, "CartPole-v1", policy_kwargs={"parameterization": alone}, device="cpu")


@pytest.mark.slow
def test_ppo_learns_cartpole() -> None:
    # SB3's own settings; an untrained policy holds the pole for about 20 steps, a perfect one for 500
    model = sb3.PPO(plain.CatnatPolicy, "CartPole-v1", seed=0, device="cpu").learn(30_000)
    mean, _ = evaluate_policy(model, model.get_env(), n_eval_episodes=20, deterministic=True)
    assert mean > 250
