"""MinAtar in JAX against the PyTorch side: the same network, advantages and loss; and a study that goes on."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gymnax")
import gymnax
import jax
import jax.numpy as jnp
from jax import Array

import catnat
from catnat_lab.checkpoint import Checkpoint
from catnat_lab.cli import main
from catnat_lab.errors import UserError
from catnat_lab.executors import Here, begin, conduct
from catnat_lab.experiment import Outcome, Results, RunContext, TimeIsUp
from catnat_lab.heads import head as torch_head
from catnat_lab.heads import parameterization_of
from catnat_lab.rl import minatar, report
from catnat_lab.rl.games import MINATAR
from catnat_lab.rl.minatar import Game, Scores, Settings, Steps, StickyGame, head_of, program
from catnat_lab.rl.ppo import estimate
from catnat_lab.rl.search import MinAtar, MinAtarPlan
from catnat_lab.studies import Study
from tests.thinned import thinned

pytestmark = pytest.mark.slow  # JAX compiles a whole game with its learner

SMALL = Settings(steps=512, envs=4, rollout=16, epochs=2, minibatches=2)
HEADS = ("softmax", "catnat", "catnat-sigmoid[[0,2],1]", "catnat-paper")


def played(name: str, policy: Callable[[Array, Array], Array], copies: int, steps: int) -> tuple[Game, Array, Array]:
    """Many copies by that policy of a key and what is seen: every game before its step, rewards and ends, [T, N]."""
    game = StickyGame(name)

    def step(games: Game, key: Array) -> tuple[Game, tuple[Game, Array, Array]]:
        acting, stepping = jax.random.split(key)
        actions = jax.vmap(policy)(jax.random.split(acting, copies), games.seen)
        after, reward, over = jax.vmap(game.step)(jax.random.split(stepping, copies), games, actions)
        return after, (games, reward, over)

    begun = jax.vmap(game.begin)(jax.random.split(jax.random.key(1), copies))
    kept: tuple[Game, Array, Array] = jax.lax.scan(step, begun, jax.random.split(jax.random.key(2), steps))[1]
    return kept


def anything(actions: int) -> Callable[[Array, Array], Array]:
    return lambda key, seen: jax.random.randint(key, (), 0, actions)


SHAPES = {"Breakout": (4, 3), "Asterix": (4, 5), "Freeway": (7, 3), "Seaquest": (10, 6), "SpaceInvaders": (6, 4)}


@pytest.mark.parametrize("name", thinned(MINATAR))
def test_games_have_minatars_channels_and_actions_and_no_clock_but_freeways(name: str) -> None:
    game = StickyGame(name)
    begun, (channels, actions) = game.begin(jax.random.key(0)), SHAPES[name]
    assert (
        begun.seen.shape == (10, 10, channels) and begun.seen.dtype == bool and MINATAR[name] == game.actions == actions
    )

    def over_at(time: int) -> bool:
        late = begun._replace(inside=begun.inside.replace(time=jnp.array(time)))
        return bool(game.step(jax.random.key(1), late, jnp.array(0))[2])

    assert not over_at(2_000) and over_at(2_499) == (name == "Freeway") and over_at(10**9) == (name == "Freeway")


def test_a_point_is_a_brick_and_a_lost_ball_ends_breakout() -> None:
    games, reward, over = played("Breakout", anything(3), 64, 60)
    bricks, goes_on = np.asarray(games.seen[..., 3].sum((2, 3))), ~np.asarray(over[:-1])
    assert over.any() and reward.sum() > 0
    np.testing.assert_array_equal((bricks[:-1] - bricks[1:])[goes_on], reward[:-1][goes_on])
    ball = np.asarray(games.seen[..., 1].any(3).argmax(2))
    assert (ball[np.asarray(over)] == 8).all() and (reward[np.asarray(over)] == 0).all()


def test_seaquest_at_its_fastest_has_places_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A boat that waits above is never hit. With as many places as gymnax has the same things come."""

    def crowds() -> np.ndarray:
        game, copies = StickyGame("Seaquest"), 32
        begun = jax.vmap(game.begin)(jax.random.split(jax.random.key(1), copies))
        fast = {"e_spawn_speed": jnp.ones(copies, jnp.int32), "move_speed": jnp.full(copies, 2)}
        begun = begun._replace(inside=begun.inside.replace(**fast))

        def step(games: Game, key: Array) -> tuple[Game, tuple[Array, Array]]:
            nothing = jnp.zeros(copies, jnp.int32)
            games, _, over = jax.vmap(game.step)(jax.random.split(key, copies), games, nothing)
            lists = (getattr(games.inside, f"{kind}_count") for kind in ("e_fish", "e_subs", "e_bullet", "divers"))
            return games, (jnp.stack(list(lists)), over.any())

        counts, over = jax.lax.scan(step, begun, jax.random.split(jax.random.key(2), 300))[1]
        assert not over.any()
        return np.asarray(counts)

    ours = crowds()
    assert 15 < (ours[:, 0] + ours[:, 1]).max() < 30 < minatar.seaquest.MAX_ENTITIES
    for module in (minatar.seaquest, minatar.seaquest_lists):
        monkeypatch.setattr(module, "MAX_ENTITIES", 100)
    np.testing.assert_array_equal(ours, crowds())


def test_one_action_in_ten_is_the_one_before() -> None:
    """The paddle shows what was done; a new episode has nothing to repeat."""
    game, copies = StickyGame("Breakout"), 4_000
    left, right = jnp.array(1), jnp.array(2)
    begun = game.begin(jax.random.key(0))._replace(last=left)
    after, _, _ = jax.vmap(game.step, (0, None, None))(jax.random.split(jax.random.key(1), copies), begun, right)
    place = np.asarray(after.seen[:, 9, :, 0].argmax(1))
    assert set(place.tolist()) == {3, 5}  # from 4
    np.testing.assert_array_equal(np.asarray(after.last) == 1, place == 3)
    assert abs((place == 3).mean() - 0.1) < 4 * (0.1 * 0.9 / copies) ** 0.5
    games, _, over = played("Breakout", lambda key, seen: jnp.array(2), 16, 40)
    assert over.any() and (games.last[1:][np.asarray(over[:-1])] == 0).all()


def rollout(seed: int = 0) -> tuple[Steps, np.ndarray]:
    random = np.random.default_rng(seed)
    seen = jnp.array(random.random((16, 4, 10, 10, 4)) < 0.2)
    action, log_prob = jnp.array(random.integers(0, 3, (16, 4))), jnp.array(random.normal(-1.1, 0.2, (16, 4)))
    value, reward = jnp.array(random.normal(size=(16, 4))), jnp.array(random.normal(size=(16, 4)))
    return Steps(seen, action, log_prob, value, reward, jnp.array(random.random((16, 4)) < 0.2)), random.normal(size=4)


def test_advantages_are_those_of_the_other_ppo() -> None:
    steps, following = rollout()
    ours = minatar.advantages_of(SMALL, steps, jnp.array(following))
    arrays = (np.asarray(x, np.float64) for x in (steps.reward, steps.over, steps.value))
    rewards, over, values = arrays
    np.testing.assert_allclose(ours, estimate(rewards, over > 0, values, following, 0.99, 0.95), atol=1e-5)


@pytest.mark.parametrize("name", thinned(HEADS))
def test_network_and_loss_are_those_of_pytorch(name: str) -> None:
    """Value and gradients of every weight, with torch's convolution and the torch side's heads."""
    head = head_of(name, 3)
    p = minatar.new_parameters(jax.random.PRNGKey(1), 4, head.width)
    p = {
        key: value + 0.1 * jax.random.normal(jax.random.PRNGKey(i), value.shape)
        for i, (key, value) in enumerate(p.items())
    }
    steps, _ = rollout()
    flat = jax.tree.map(lambda x: x.reshape(64, *x.shape[2:]).astype(jnp.float32), steps)
    flat = flat._replace(action=steps.action.reshape(64))
    random = np.random.default_rng(3)
    advantage, returns = random.normal(size=64).astype(np.float32), random.normal(size=64).astype(np.float32)
    ours, slopes = jax.value_and_grad(minatar.loss_of)(p, SMALL, head, flat, jnp.array(advantage), jnp.array(returns))

    weights = {key: torch.tensor(np.array(value), requires_grad=True) for key, value in p.items()}
    seen = torch.tensor(np.array(flat.seen)).permute(0, 3, 1, 2)
    x = torch.relu(torch.nn.functional.conv2d(seen, weights["conv"].permute(3, 2, 0, 1), weights["conv bias"]))
    x = torch.relu(x.permute(0, 2, 3, 1).flatten(1) @ weights["dense"] + weights["dense bias"])
    scores, value = x @ weights["policy"] + weights["policy bias"], (x @ weights["value"] + weights["value bias"])[:, 0]
    drawn = torch_head(name, 3).draw(scores, index=torch.tensor(np.array(flat.action), dtype=torch.int64))
    old, before = torch.tensor(np.array(flat.log_prob)), torch.tensor(np.array(flat.value))
    gain, goal = torch.tensor(advantage), torch.tensor(returns)
    gain = (gain - gain.mean()) / (gain.std(correction=0) + 1e-8)
    ratio = (drawn.log_prob - old).exp()
    surrogate = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
    close = before + (value - before).clamp(-0.2, 0.2)
    errors = torch.maximum((value - goal).square(), (close - goal).square()).mean()
    theirs = -surrogate - 0.01 * drawn.entropy.mean() + 0.5 * 0.5 * errors
    theirs.backward()
    assert float(ours) == pytest.approx(theirs.item(), rel=1e-4, abs=1e-5)
    for key, weight in weights.items():
        assert weight.grad is not None
        np.testing.assert_allclose(slopes[key], weight.grad.numpy(), atol=2e-5, rtol=2e-3, err_msg=key)


@pytest.mark.parametrize("game", MINATAR)
def test_an_update_is_compiled_once(game: str) -> None:
    """It returns the types that it takes, weak ones included: with others the second update would be compiled anew."""
    training = program(replace(SMALL, game=game))
    begun = jax.eval_shape(training.begin, jnp.arange(2))
    after, _ = jax.eval_shape(training.update, begun, jnp.zeros(2), 8)
    assert [(x, x.weak_type) for x in jax.tree.leaves(after)] == [(x, x.weak_type) for x in jax.tree.leaves(begun)]


def test_seeds_of_a_stack_are_what_they_are_alone() -> None:
    training = program(SMALL)
    rates = jnp.array([0.001, 0.002])
    both, _ = training.update(training.begin(jnp.array([3, 4])), rates, 8)
    alone, _ = training.update(training.begin(jnp.array([4])), rates[1:], 8)
    for ours, theirs in zip(jax.tree.leaves(both.parameters), jax.tree.leaves(alone.parameters), strict=True):
        np.testing.assert_allclose(ours[1], theirs[0], atol=1e-5)
    assert not np.allclose(both.parameters["dense"][0], both.parameters["dense"][1])


def test_an_update_is_play_advantages_and_adam() -> None:
    """All of it again, step by step: gymnax's sticky game, numpy's advantages, which end where games do, and Adam."""
    settings = replace(SMALL, rollout=32)
    training, head, rate, total = program(settings), head_of(settings.head, 3), 0.01, 8
    begun = training.begin(jnp.array([5]))._replace(updates=jnp.array([2]))
    after, told = training.update(begun, jnp.array([rate]), total)
    rate *= 1 - 2 / total  # it falls to zero
    state = jax.tree.map(lambda x: x[0], begun)

    step = jax.jit(jax.vmap(gymnax.make("Breakout-MinAtar")[0].step))
    games, observation, last = state.games.inside, state.games.seen, state.games.last
    key, kept, rewards, overs = state.key, [], [], []
    for _ in range(settings.rollout):
        key, drawing, stepping = jax.random.split(key, 3)
        scores, value = minatar.apply(state.parameters, observation)
        drawn = head.draw(drawing, scores)
        kept.append((observation, drawn.sample, drawn.log_prob, value))
        sticking, stepping = jax.vmap(jax.random.split)(jax.random.split(stepping, settings.envs)).swapaxes(0, 1)
        sticks = jax.vmap(lambda key: jax.random.bernoulli(key, 0.1))(sticking)
        last = jnp.where(sticks, last, drawn.sample)
        observation, games, reward, over, _, _ = step(stepping, games, last)
        last = jnp.where(over, 0, last)
        rewards.append(reward)
        overs.append(over)
    seen, action, log_prob, value = (jnp.stack(x) for x in zip(*kept, strict=True))
    reward, over = np.array(rewards), np.array(overs)
    assert over.any() and told.episodes[0] == over.sum() and told.ended[0] == pytest.approx(_ended(reward, over))
    following = np.asarray(minatar.apply(state.parameters, observation)[1])
    advantage = jnp.array(estimate(reward, over, np.asarray(value), following, settings.discount, settings.gae_lambda))

    flat = Steps(*(x.reshape(128, *x.shape[2:]) for x in (seen, action, log_prob, value)), reward.ravel(), over.ravel())
    key, *orders = jax.random.split(key, settings.epochs + 1)
    p, m, v = state.parameters, *({name: 0.0 * x for name, x in state.parameters.items()} for _ in range(2))
    slope_of, count = jax.jit(jax.grad(minatar.loss_of), static_argnums=(1, 2)), 0
    for order in orders:
        for rows in jax.random.permutation(order, 128).reshape(settings.minibatches, -1):
            some = jax.tree.map(lambda x, rows=rows: x[rows], flat)
            gain = advantage.ravel()[rows]
            slope = slope_of(p, settings, head, some, gain, gain + some.value)
            norm = np.sqrt(sum(float((g**2).sum()) for g in slope.values()))
            slope = {name: g * min(1.0, settings.max_grad_norm / norm) for name, g in slope.items()}
            count += 1
            m = {name: 0.9 * m[name] + 0.1 * g for name, g in slope.items()}
            v = {name: 0.999 * v[name] + 0.001 * g**2 for name, g in slope.items()}
            for name in p:
                change = (m[name] / (1 - 0.9**count)) / (jnp.sqrt(v[name] / (1 - 0.999**count)) + 1e-5)
                p = p | {name: p[name] - rate * change}
    for name in p:
        np.testing.assert_allclose(after.parameters[name][0], p[name], atol=2e-4, err_msg=name)
        assert np.abs(p[name] - state.parameters[name]).max() > 2e-3, name


def _ended(reward: np.ndarray, over: np.ndarray) -> float:
    """The sum of the scores of all episodes that ended."""
    total, scores = 0.0, np.zeros(reward.shape[1])
    for now, ends in zip(reward, over, strict=True):
        scores += now
        total += scores[ends].sum()
        scores[ends] = 0
    return total


@pytest.mark.parametrize("name", ["catnat-paper", "catnat"])
def test_nodes_outside_the_natural_range_are_counted(name: str) -> None:
    # the paper's range ends where a branch has probability 0, the default's where it has that of the tail
    head, pi = head_of(name, 3), parameterization_of(name, 3)
    assert pi is not None and isinstance(pi.activation, catnat.Natural)
    reach = pi.activation.amplitude / np.pi * np.arcsin(1 - 2 * pi.activation.tail)
    low, high = (np.array(pi.centers) + sign * reach for sign in (-1, 1))
    assert head.outside(jnp.array([low + 0.01, high - 0.01])) == 0.0
    assert head.outside(jnp.array([low - 0.01, high - 0.01])) == 0.5


def test_scores_and_curves_are_means_over_episodes() -> None:
    ended = np.zeros((2, 20), np.float32)
    count = np.zeros((2, 20), np.int32)
    ended[0, 0], count[0, 0], ended[0, 18], count[0, 18], ended[0, 19], count[0, 19] = 4, 2, 6, 1, 6, 3
    found = Scores(ended, count, np.zeros_like(ended))
    assert found.scores()[0] == 3.0 and np.isnan(found.scores()[1])
    assert found.curves(10)[0].tolist() == [2.0] * 9 + [3.0]


PLAN = MinAtarPlan(
    games=("Breakout",),
    heads=("catnat-paper",),
    steps=3_072,
    rates=(0.001, 0.1),
    search_steps=1_024,
    search_seeds=1,
    seeds=2,
    envs=8,
)


def conducted(folder: Path, plan: MinAtarPlan = PLAN, **context: Any) -> Results:
    with Study(folder / "study.db", conduct=True) as study:
        begin(MinAtar(plan), study)
        conduct(MinAtar(plan), study, Here(RunContext(folder, **context)), 1)
        return report.load(study)


@pytest.mark.usefixtures("interruptible")
def test_a_stopped_study_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By time in its search, by a kill and by Ctrl-C, which is noted in the last update of the final runs."""
    whole, stopped, told = conducted(tmp_path / "whole"), tmp_path / "stopped", list[str]()
    with pytest.raises(TimeIsUp):
        conducted(stopped, ends=0.0)
    real = Checkpoint.save

    def save(saved: Checkpoint, *what: Any) -> None:
        real(saved, *what)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(minatar, "SAVED_EVERY", -1.0)
        patch.setattr(Checkpoint, "save", save)
        conducted(stopped)

    def stop(what: str, done: int, total: int) -> None:
        if done == 2_048:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        conducted(stopped, progress=stop)
    assert list((stopped / "checkpoints").iterdir())
    assert conducted(stopped, tell=told.append).trials == whole.trials
    assert told == ["jobs to train (final): 1, batches: 1", "going on from step 3,072"]
    assert not list((stopped / "checkpoints").iterdir())
    with pytest.raises(UserError, match="was 2, now 3"):
        conducted(stopped, replace(PLAN, seeds=3))


def test_games_come_one_by_one_and_are_trained_at_their_best_rate(study: Study) -> None:
    """The best mean, and no diverged one; a single rate is not searched for."""
    plan, stages = replace(PLAN, games=("Breakout", "Asterix")), []
    found = {"by rate": {"0.1": [math.nan, 9.0], "0.01": [2.0, 3.0], "0.001": [2.0, 2.0]}}
    while jobs := MinAtar(plan).left(study):
        stages.append([(job.cell.split()[1], *job.config.values()) for job in jobs])
        for job in jobs:
            study.add(job, Outcome(-1.0, {}, found))
    assert stages == [
        [("Breakout", "rates")],
        [("Breakout", "final", 0.01)],
        [("Asterix", "rates")],
        [("Asterix", "final", 0.01)],
    ]
    (job,) = MinAtar(replace(PLAN, games=("Freeway",), rates=(0.001,))).left(study)
    assert job.config == {"stage": "final", "rate": 0.001}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "study")
    small = ["--steps", "2048", "--rates", "0.001", "--heads", "softmax", "catnat[[0,2],1]"]
    assert main(["rl-minatar", "--preset", "smoke", *small, "--output", out]) == 0
    assert "MinAtar, 2,048 steps, 2 seeds" in capsys.readouterr().out
    text = (tmp_path / "study" / "report.md").read_text()
    assert "minus softmax" in text and "interquartile means" in text and "All heads have the rate 0.001." in text
    values, curves = ((tmp_path / "study" / name).read_text().splitlines() for name in ("values.csv", "curves.csv"))
    assert len(values) == 1 + 2 * 2 and len(curves) == 1 + 2 * 2 * 2  # heads and seeds; two updates
    assert main(["rl-sweep", "--preset", "smoke", "--device", "cpu", "--output", out]) == 2
    assert "study.db holds a study of catnat rl minatar, not of catnat rl sweep" in capsys.readouterr().err
    for given, message in (
        (["--games", "Pong"], "game must be one of Breakout, Asterix, Freeway, Seaquest, SpaceInvaders; got 'Pong'"),
        (["--heads", "sparsemax"], "head must be softmax or a catnat that does not revive"),
        (["--heads", "catnat-revive1e-6"], "head must be softmax or a catnat that does not revive"),
        (["--rates", "-1"], "rates must be positive"),
        (["--seeds", "1"], "seeds must be at least 2"),
        (["--heads", "catnat[[0,2],[1,3]]"], "has a tree of 4 classes; here there are 3"),
    ):
        assert main(["rl-minatar", *given, "--output", str(tmp_path / "other")]) == 2
        assert message in capsys.readouterr().err
