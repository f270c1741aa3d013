"""PPO: its advantages, its policy and its losses against plain formulas and torch.distributions."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

import catnat.torch as ct
from catnat_lab.errors import UserError
from catnat_lab.heads import HEAD_NAMES, head, parameterization_of
from catnat_lab.rl import ppo
from catnat_lab.rl.games import Array, Step, make_games
from catnat_lab.rl.ppo import MEASURES, ActorCritic, Learner, Settings, estimate, preset
from tests.lab.rl_cases import short_cartpole

SMALL = replace(preset("paper", "CartPole-v1"), envs=4, rollout=32, minibatches=2, epochs=2, entropy=0.01, steps=640)


def learner(settings: Settings = SMALL) -> Learner:
    return Learner(settings, make_games(settings.game, settings.envs), torch.device("cpu"))


def test_advantages_are_weighted_sums_of_longer_and_longer_returns() -> None:
    """By the definition: n-step advantages weighted by (1 - lambda) lambda^n, each cut where a life is lost."""
    random = np.random.default_rng(0)
    steps, discount, gae_lambda = 9, 0.9, 0.7
    rewards, values = random.normal(size=(steps, 2)), random.normal(size=(steps, 2))
    following, lost = random.normal(size=2), random.random((steps, 2)) < 0.2
    found = estimate(rewards, lost, values, following, discount, gae_lambda)
    all_values = np.concatenate([values, following[None]])
    for game, t in itertools.product(range(2), range(steps)):
        total = 0.0
        for s in range(t, steps):
            ahead = 0.0 if lost[s, game] else discount * all_values[s + 1, game]
            total += (discount * gae_lambda) ** (s - t) * (rewards[s, game] + ahead - values[s, game])
            if lost[s, game]:
                break
        assert found[t, game] == pytest.approx(total, abs=1e-12)


def test_a_rollouts_advantages_are_those_of_its_games() -> None:
    """What `play` hands to the estimate: its own rewards, ends, values, discount and lambda."""
    ours = learner(replace(SMALL, discount=0.9, gae_lambda=0.6, rollout=64))
    ours.play()
    values, settings = ours.values.numpy(), ours.settings
    assert ours.lost.any() and not ours.lost.all()
    with torch.no_grad():
        following = ours.network(ours.now)[1].numpy()
    expected = estimate(ours.rewards, ours.lost, values, following, settings.discount, settings.gae_lambda)
    np.testing.assert_allclose(ours.advantages, expected, atol=1e-5)
    np.testing.assert_allclose(ours.returns, expected + values, atol=1e-5)


@pytest.mark.parametrize("name", HEAD_NAMES)
@pytest.mark.parametrize("masked", [False, True])
def test_a_heads_draw_is_a_categorical_of_its_probabilities(name: str, masked: bool) -> None:
    """Frequencies, log-probabilities, entropies and gradients against brute force, all of it over every class."""
    torch.manual_seed(0)
    one = head(name, 6)
    scores = 0.5 * torch.randn(40, one.width, dtype=torch.float64)
    mask = torch.rand(40, 6) < 0.6 if masked else None
    if mask is not None:
        mask[torch.arange(40), torch.randint(6, (40,))] = True
    scores.requires_grad_()
    drawn = one.draw(scores, mask=mask)
    assert mask is None or mask.gather(1, drawn.sample.unsqueeze(1)).all()
    if mask is not None and name == "sparsemax":  # a projection onto fewer classes, not a renormalised one
        probs = torch.stack([_sparsemax_of(row, allowed) for row, allowed in zip(scores, mask, strict=True)])
    else:
        probs = one.log_probs(scores).exp() * (1.0 if mask is None else mask)
        probs = probs / probs.sum(1, keepdim=True)
    picked = probs.gather(1, drawn.sample.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(drawn.log_prob, picked.log())
    entropy = -torch.special.xlogy(probs, probs).sum(1)
    torch.testing.assert_close(drawn.entropy, entropy, atol=1e-6, rtol=1e-6)
    again = one.draw(scores, index=drawn.sample, mask=mask)
    torch.testing.assert_close(again.log_prob, drawn.log_prob)
    (ours,) = torch.autograd.grad(again.log_prob.sum() + 0.3 * again.entropy.sum(), scores, retain_graph=True)
    inside = probs > 0
    safe = torch.where(inside, probs, 1.0)
    theirs_loss = picked.log().sum() - 0.3 * (torch.where(inside, probs, 0.0) * safe.log()).sum()
    (theirs,) = torch.autograd.grad(theirs_loss, scores)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
    row = scores[:1].detach().expand(20_000, -1)
    counts = torch.bincount(
        one.draw(row, mask=None if mask is None else mask[:1].expand(20_000, -1)).sample, minlength=6
    )
    torch.testing.assert_close(
        counts / 20_000, probs[0].detach(), atol=4 * 0.5 / 20_000**0.5, rtol=0, check_dtype=False
    )


def _sparsemax_of(scores: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    found = torch.zeros(6, dtype=scores.dtype)
    return found.masked_scatter(allowed, head("sparsemax", int(allowed.sum())).log_probs(scores[allowed]).exp())


@pytest.mark.parametrize(("name", "clip_value"), [("softmax", True), ("catnat", False), ("catnat-paper", True)])
def test_a_minibatch_descends_the_papers_objective(name: str, clip_value: bool) -> None:
    """The change of every weight, against torch.distributions, plain formulas and a fresh torch.optim.Adam."""
    settings = replace(SMALL, head=name, clip_value=clip_value, minibatches=1)
    ours = learner(settings)
    ours.play()
    with torch.no_grad():  # off the policy that has played, so that ratios and clips matter
        for parameter in ours.parameters:
            parameter += 0.2 * torch.randn_like(parameter)
    other = ActorCritic(ours.games.observation, ours.head.width)
    other.load_state_dict(ours.network.state_dict())
    optimizer = torch.optim.Adam(other.parameters(), settings.rate, eps=1e-5)
    ours.rows.copy_(torch.arange(settings.batch))
    ours._improve()

    scores, values = other(ours.observations.flatten(0, 1))
    probs = (
        torch.softmax(scores, 1)
        if name == "softmax"
        else ct.catnat(scores, parameterization_of(name, scores.shape[1] + 1))
    )
    policy = Categorical(probs=probs)
    old, advantages = ours.log_probs.flatten(), ours.advantages.flatten()
    ratio = torch.exp(policy.log_prob(ours.actions.flatten()) - old)
    assert ((ratio - 1).abs() > settings.clip).any()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    surrogate = torch.min(ratio * advantages, torch.clamp(ratio, 1 - settings.clip, 1 + settings.clip) * advantages)
    returns, before = ours.returns.flatten(), ours.values.flatten()
    errors = (values - returns) ** 2
    if clip_value:
        near = torch.clamp(values, before - settings.clip, before + settings.clip)
        errors = torch.max(errors, (near - returns) ** 2)
    loss = -surrogate.mean() - settings.entropy * policy.entropy().mean() + settings.value * 0.5 * errors.mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(other.parameters(), settings.max_grad_norm)
    optimizer.step()
    for (where, mine), theirs in zip(ours.network.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-6, rtol=1e-4, msg=where)


def test_the_first_minibatch_has_ratio_one_and_forbidden_actions_are_never_taken() -> None:
    """The masks that actions were drawn under are learnt under."""
    ours = learner(replace(SMALL, game="Taxi-v4", head="catnat-paper", minibatches=1, epochs=1))
    _, measured = ours.update()
    assert set(measured) == set(MEASURES)
    assert measured["KL"] == pytest.approx(0, abs=1e-6) and measured["clipped"] == 0
    assert ours.masks is not None and not ours.masks.all()
    assert ours.masks.gather(2, ours.actions.unsqueeze(2)).all()


def test_the_rate_falls_to_zero() -> None:
    ours = learner(replace(SMALL, anneal=True))
    rates = []
    for _ in range(ours.settings.updates):
        ours.update()
        rates.append(ours.optimizer.param_groups[0]["lr"])
    np.testing.assert_allclose(rates, SMALL.rate * np.linspace(1, 0, len(rates) + 1)[:-1])


def test_what_follows_a_cut_episode_counts() -> None:
    """CartPole ends after 500 steps: the value of its last state is added, not 0."""
    ours = learner(replace(SMALL, game=short_cartpole(4), discount=0.5, gae_lambda=0.0))
    ours.play()
    with torch.no_grad():
        expected = 1 + 0.5 * ours.values[1:4] - ours.values[:3]
    torch.testing.assert_close(ours.advantages[:3], expected)
    cut = ours.advantages[3] + ours.values[3]  # 1 + discount V(last state), where a lost game has 1
    assert ((cut - 1).abs() > 1e-4).all()


def test_the_learner_sees_signs_and_logs_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, seen = learner(replace(SMALL, clip_reward=True)), []
    step = ours.games.step

    def scored(actions: np.ndarray) -> Step:
        found = step(actions)
        return replace(found, reward=20 * found.reward)

    def noted(rewards: np.ndarray, *others: np.ndarray) -> np.ndarray:
        seen.append(rewards)
        return estimate(rewards, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(ours.games, "step", scored)
    monkeypatch.setattr(ppo, "estimate", noted)
    finished = ours.update()[0]
    assert (seen[0] == 1).all()
    assert finished and all(episode.score == 20 * episode.length for episode in finished)


class Show:
    """Every copy shows a number, as a one-hot vector or as a bright band of an image; doing it is worth 1."""

    def __init__(self, count: int, actions: int, pixels: bool) -> None:
        self.count, self.actions, self.pixels = count, actions, pixels
        self.observation: tuple[int, ...] = (4, 84, 84) if pixels else (actions,)
        self.random = np.random.default_rng(0)

    def reset(self, seed: int) -> tuple[Array, None]:
        self.shown = self.random.integers(0, self.actions, self.count)
        if not self.pixels:
            return np.eye(self.actions, dtype=np.float32)[self.shown], None
        bands = np.arange(84) * self.actions // 84 == self.shown[:, None]
        return np.broadcast_to(bands[:, None, None, :] * np.uint8(255), (self.count, 4, 84, 84)), None

    def step(self, actions: Array) -> Step:
        reward, ended = (actions == self.shown).astype(np.float32), np.ones(self.count, bool)
        return Step(self.reset(0)[0], reward, ended, ended)


@pytest.mark.slow  # a minibatch's gradients are those of the formulas
@pytest.mark.parametrize("pixels", [False, True])
def test_it_learns_to_do_what_it_sees(pixels: bool) -> None:
    """The mean reward of the last rollout; drawing blindly gives 1 / 4."""
    sizes: dict[str, Any] = (
        {"envs": 4, "rollout": 8, "rate": 1e-3} if pixels else {"envs": 8, "rollout": 16, "rate": 5e-3}
    )
    settings = replace(preset("paper", "CartPole-v1"), head="catnat-paper", epochs=4, minibatches=4, **sizes)
    settings = replace(settings, steps=25 * settings.batch)
    ours = Learner(settings, Show(settings.envs, 4, pixels), torch.device("cpu"))  # type: ignore[arg-type]
    for _ in range(settings.updates):
        ours.update()
    assert ours.rewards.mean() > 0.8


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"head": "sofmax"}, "head must be one of"),
        ({"envs": 0}, "envs must be at least 1; got 0"),
        ({"rate": 0.0}, "rate must be positive; got 0.0"),
        ({"entropy": -1.0}, "entropy must not be negative; got -1.0"),
        ({"gae_lambda": 1.5}, "gae_lambda must be between 0 and 1; got 1.5"),
        ({"minibatches": 600}, "minibatches must be at most half the 1024 steps of a rollout .8 envs x 128.; got 600"),
    ],
)
def test_bad_settings_are_named(given: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Settings(**given)  # type: ignore[arg-type]
