"""MinAtar in JAX, in one file: PPO whose every update, games included, is one compiled program for many seeds at once.

The games are gymnax's (an extra, `minatar`); the algorithm is that of `ppo.py`, the policy's head that of `catnat.jax`.
An update of all seeds is one compiled call, and between two of them training can be stopped.
"""

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import gymnax
import gymnax.environments.minatar.seaquest as seaquest
import gymnax.environments.minatar.seaquest_helpers as seaquest_lists
import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from jax import Array

import catnat.jax as cj
from catnat_lab.checkpoint import Checkpoint, noted_stops
from catnat_lab.errors import UserError, check, check_known
from catnat_lab.experiment import RunContext, TimeIsUp
from catnat_lab.heads import activation_of, natural_reach, parameterization_of
from catnat_lab.rl.games import MINATAR
from catnat_lab.rl.ppo import EPSILON, Ppo

STICKY = 0.1  # the probability that the action before is repeated, as in MinAtar
FILTERS, FEATURES = 16, 128
# Seaquest keeps lists of what swims. At its fastest an enemy comes every step and is gone at its 30th, and a torpedo
# flies 9 cells at most: no list is longer than 30. What finds no place would be dropped without a word. gymnax's lists
# have 100 places, and who hits whom is 100 x 100 questions per game and step. This changes them for the whole process.
seaquest.MAX_ENTITIES = seaquest_lists.MAX_ENTITIES = 40
SAVED_EVERY = 60.0  # seconds
LAST = 0.1  # the final score is the mean over the episodes that end in this last share of training
Parameters = dict[str, Array]


@dataclass(frozen=True)
class Settings(Ppo):
    """One training, of any number of seeds."""

    steps: int = 10_000_000
    envs: int = 64
    minibatches: int = 8
    clip: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known("game", [self.game], MINATAR)
        told = "be softmax or a catnat that does not revive here"  # JAX knows the library's alone
        check("head", [self.head], lambda head: head != "sparsemax" and "revive" not in head, told)
        parameterization_of(self.head, MINATAR[self.game])  # for its check of the tree
        if self.batch % self.minibatches:
            raise UserError(f"minibatches must divide the {self.batch} steps of a rollout; got {self.minibatches}")


def train(settings: Settings, seeds: list[int], rates: list[float], context: RunContext, what: str) -> "Scores":
    """All seeds side by side, each at its rate; from the checkpoint, where there is one."""
    jax.config.update("jax_compilation_cache_dir", str(context.folder / "compiled"))  # for the next start
    training = program(settings)
    state, scores, done = training.begin(jnp.array(seeds)), Scores.nothing(len(seeds), settings.updates), 0
    run = {"settings": settings.as_dict(), "seeds": seeds, "rates": rates, "device": jax.default_backend()}
    checkpoint = Checkpoint.of(context.folder / "checkpoints", run)
    if (saved := checkpoint.load(tensors_of(state, scores))) is not None:
        arrays = {name: value.numpy() for name, value in saved.tensors.items()}
        scores = Scores(**{name: arrays.pop(name) for name in vars(scores)})
        state = jax.tree.unflatten(jax.tree.structure(state), [jnp.array(x) for x in arrays.values()])
        done = saved.progress["done"]
        context.tell(f"going on from step {done * settings.batch:,}")
    saved_at, doing = time.monotonic(), f"{settings.game} {settings.head}, {what} ({len(seeds)} side by side)"
    with noted_stops() as stop:
        while done < settings.updates:
            state, told = training.update(state, jnp.array(rates), settings.updates)
            scores.add(done, told)
            done += 1
            late = context.is_late
            last = late or stop.asked  # as it is now: what is asked for later is seen after the next update
            if last or (time.monotonic() - saved_at > SAVED_EVERY and done < settings.updates):
                checkpoint.save({"done": done}, tensors_of(state, scores))
                saved_at = time.monotonic()
            context.progress(doing, done * settings.batch, settings.updates * settings.batch)
            if last:
                raise TimeIsUp if late else KeyboardInterrupt
    checkpoint.path.unlink(missing_ok=True)
    return scores


def tensors_of(state: "State", scores: "Scores") -> dict[str, torch.Tensor]:
    """The state and the scores so far, by name; the leaves of the state in their order."""
    arrays = {f"{i:04}": leaf for i, leaf in enumerate(jax.tree.leaves(state))} | vars(scores)
    return {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}


class Game(NamedTuple):
    inside: Any  # gymnax's state
    seen: Array  # bool [10, 10, channels]
    last: Array  # the action before; 0, which does nothing, at the start


class StickyGame:
    """A game of gymnax by MinAtar's rules: actions are sticky, and no clock ends a game but Freeway's own."""

    def __init__(self, name: str) -> None:
        self.env, rules = gymnax.make(f"{name}-MinAtar")
        self.rules = rules if name == "Freeway" else rules.replace(max_steps_in_episode=np.iinfo(np.int32).max)
        self.actions = self.env.num_actions

    def begin(self, key: Array) -> Game:
        seen, inside = self.env.reset(key, self.rules)
        # some begin with a Python number, whose weak type an update loses: its program would be compiled twice
        inside = jax.tree.map(lambda x: jax.lax.convert_element_type(x, jnp.asarray(x).dtype), inside)
        return Game(inside, seen > 0, jnp.zeros((), jnp.int32))

    def step(self, key: Array, game: Game, action: Array) -> tuple[Game, Array, Array]:
        """The game after that, its reward, and whether an episode has ended; then the next one has begun."""
        sticking, stepping = jax.random.split(key)
        action = jnp.where(jax.random.bernoulli(sticking, STICKY), game.last, action)
        seen, inside, reward, ended, late, _ = self.env.step(stepping, game.inside, action, self.rules)
        return Game(inside, seen > 0, jnp.where(ended | late, 0, action)), reward, ended | late


class Head(NamedTuple):
    """A policy's head: how many scores it takes, its draw, log-probability and entropy, and how many are outside."""

    width: int
    draw: Callable[..., cj.Draw]
    outside: Callable[[Array], Array]  # the share of scores outside the natural range: where it is clipped, dead ones


def head_of(name: str, actions: int) -> Head:
    pi = parameterization_of(name, actions)
    if pi is None:
        return Head(actions, _softmax_draw, lambda scores: jnp.zeros((), scores.dtype))
    reach = natural_reach(activation_of(name))
    far = math.inf if reach is None else reach

    def draw(key: Array | None, scores: Array, index: Array | None = None) -> cj.Draw:
        return cj.draw(key, scores, pi, index=index)

    return Head(actions - 1, draw, lambda scores: (abs(scores - jnp.array(pi.centers, scores.dtype)) >= far).mean())


def _softmax_draw(key: Array | None, scores: Array, index: Array | None = None) -> cj.Draw:
    log_probs = jax.nn.log_softmax(scores)
    if index is None:
        assert key is not None
        index = jax.random.categorical(key, scores)
    log_prob = jnp.take_along_axis(log_probs, index[..., None], -1)[..., 0]
    return cj.Draw(index, log_prob, -(jnp.exp(log_probs) * log_probs).sum(-1))


def new_parameters(key: Array, channels: int, scores: int) -> Parameters:
    """A convolution and a dense layer, which policy and value share, and one layer each; orthogonal, without biases."""
    orthogonal = jax.nn.initializers.orthogonal
    keys = jax.random.split(key, 4)
    inside = 8 * 8 * FILTERS
    return {
        "conv": orthogonal(math.sqrt(2))(keys[0], (3, 3, channels, FILTERS)),
        "conv bias": jnp.zeros(FILTERS),
        "dense": orthogonal(math.sqrt(2))(keys[1], (inside, FEATURES)),
        "dense bias": jnp.zeros(FEATURES),
        "policy": orthogonal(0.01)(keys[2], (FEATURES, scores)),
        "policy bias": jnp.zeros(scores),
        "value": orthogonal(1.0)(keys[3], (FEATURES, 1)),
        "value bias": jnp.zeros(1),
    }


def apply(p: Parameters, seen: Array) -> tuple[Array, Array]:
    """Scores [B, S] and values [B] of observations [B, 10, 10, C]."""
    # A row of the convolution is one product of three rows seen and a band matrix. Mapped over seeds that is a batched
    # product, where a convolution would be a grouped one; and it writes less than half of what 3 x 3 patches would.
    rows = seen.reshape(len(seen), 10, -1)
    rows = jnp.concatenate([rows[:, i : i + 8] for i in range(3)], -1).astype(jnp.float32)
    band = jnp.stack([jnp.pad(p["conv"], ((0, 0), (j, 7 - j), (0, 0), (0, 0))) for j in range(8)], 3)
    x = rows @ band.reshape(rows.shape[-1], -1) + jnp.tile(p["conv bias"], 8)
    x = jax.nn.relu(x).reshape(len(seen), -1)
    x = jax.nn.relu(x @ p["dense"] + p["dense bias"])
    return x @ p["policy"] + p["policy bias"], (x @ p["value"] + p["value bias"])[:, 0]


class State(NamedTuple):
    parameters: Parameters
    optimizer: Any
    games: Game
    scores: Array  # of the present episodes
    key: Array
    updates: Array


class Steps(NamedTuple):
    """A rollout, [T, N, ...]."""

    seen: Array
    action: Array
    log_prob: Array
    value: Array
    reward: Array
    over: Array


def advantages_of(settings: Settings, steps: Steps, following: Array) -> Array:
    """Generalised advantages [T, N]; ``following`` [N] are the values after the last step."""

    def back(carry: tuple[Array, Array], step: Steps) -> tuple[tuple[Array, Array], Array]:
        carried, after = carry
        goes_on = 1.0 - step.over
        surprise = step.reward + settings.discount * goes_on * after - step.value
        carried = surprise + settings.discount * settings.gae_lambda * goes_on * carried
        return (carried, step.value), carried

    return jax.lax.scan(back, (jnp.zeros_like(following), following), steps, reverse=True)[1]


def loss_of(
    parameters: Parameters, settings: Settings, head: Head, steps: Steps, advantage: Array, returns: Array
) -> Array:
    """Of a minibatch [B, ...]: the clipped surrogate, the clipped value error and the entropy."""
    outputs, value = apply(parameters, steps.seen)
    drawn = head.draw(None, outputs, steps.action)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = jnp.exp(drawn.log_prob - steps.log_prob)
    near = jnp.clip(ratio, 1 - settings.clip, 1 + settings.clip)
    policy = -jnp.minimum(advantage * ratio, advantage * near).mean()
    close = steps.value + jnp.clip(value - steps.value, -settings.clip, settings.clip)
    errors = jnp.maximum((value - returns) ** 2, (close - returns) ** 2)
    return policy - settings.entropy * drawn.entropy.mean() + settings.value * 0.5 * errors.mean()


class Progress(NamedTuple):
    ended: Array  # the sum of the scores of the episodes that ended
    episodes: Array  # their number
    outside: Array  # the share of nodes outside the natural range, over all states met


class Program(NamedTuple):
    """The compiled training of a stack of seeds: arrays have the seeds as their first axis."""

    begin: Callable[[Array], State]  # of seeds
    update: Callable[[State, Array, int], tuple[State, Progress]]  # state, rates, updates in all


def program(settings: Settings) -> Program:
    """One update is one program, which serves every length."""
    return _program(replace(settings, steps=1))


@functools.lru_cache(maxsize=8)
def _program(settings: Settings) -> Program:
    game = StickyGame(settings.game)
    head = head_of(settings.head, game.actions)
    optimizer = optax.chain(optax.clip_by_global_norm(settings.max_grad_norm), optax.scale_by_adam(eps=EPSILON))

    def begin(seed: Array) -> State:
        key, weights, games = jax.random.split(jax.random.PRNGKey(seed), 3)
        begun = jax.vmap(game.begin)(jax.random.split(games, settings.envs))
        parameters = new_parameters(weights, begun.seen.shape[-1], head.width)
        nothing = jnp.zeros(settings.envs)
        return State(parameters, optimizer.init(parameters), begun, nothing, key, jnp.zeros((), jnp.int32))

    def play(state: State) -> tuple[State, Steps, Progress]:
        def one(carry: tuple[Game, Array, Array], _: None) -> tuple[Any, Any]:
            games, scores, key = carry
            key, drawing, stepping = jax.random.split(key, 3)
            outputs, value = apply(state.parameters, games.seen)
            drawn = head.draw(drawing, outputs)
            keys = jax.random.split(stepping, settings.envs)
            after, reward, over = jax.vmap(game.step)(keys, games, drawn.sample)
            scores = scores + reward
            kept = Steps(games.seen, drawn.sample, drawn.log_prob, value, reward, over)
            told = Progress(jnp.where(over, scores, 0.0).sum(), over.sum(), head.outside(outputs))
            return (after, jnp.where(over, 0.0, scores), key), (kept, told)

        carry = (state.games, state.scores, state.key)
        (games, scores, key), (steps, told) = jax.lax.scan(one, carry, None, settings.rollout)
        told = Progress(told.ended.sum(), told.episodes.sum(), told.outside.mean())
        return state._replace(games=games, scores=scores, key=key), steps, told

    def update(state: State, rate: Array, total: Array) -> tuple[State, Progress]:
        state, steps, told = play(state)
        advantages = advantages_of(settings, steps, apply(state.parameters, state.games.seen)[1])
        flat = jax.tree.map(lambda x: x.reshape(settings.batch, *x.shape[2:]), (steps, advantages))
        falling = rate * (1 - state.updates / total)

        def minibatch(carry: tuple[Parameters, Any], rows: Array) -> tuple[tuple[Parameters, Any], None]:
            parameters, moments = carry
            some, advantage = jax.tree.map(lambda x: x[rows], flat)
            slope = jax.grad(loss_of)(parameters, settings, head, some, advantage, advantage + some.value)
            change, moments = optimizer.update(slope, moments)
            return (jax.tree.map(lambda p, c: p - falling * c, parameters, change), moments), None

        key, *orders = jax.random.split(state.key, settings.epochs + 1)
        rows = jnp.stack([jax.random.permutation(order, settings.batch) for order in orders])
        rows = rows.reshape(settings.epochs * settings.minibatches, -1)
        (parameters, moments), _ = jax.lax.scan(minibatch, (state.parameters, state.optimizer), rows)
        state = State(parameters, moments, state.games, state.scores, key, state.updates + 1)
        return state, told

    return Program(jax.jit(jax.vmap(begin)), jax.jit(jax.vmap(update, (0, 0, None))))


@dataclass(frozen=True)
class Scores:
    """What the seeds have come to: the progress of every update, [seeds, updates]."""

    ended: np.ndarray[Any, np.dtype[np.float32]]
    count: np.ndarray[Any, np.dtype[np.int32]]
    outside: np.ndarray[Any, np.dtype[np.float32]]

    @classmethod
    def nothing(cls, seeds: int, updates: int) -> Self:
        shape = seeds, updates
        return cls(np.zeros(shape, np.float32), np.zeros(shape, np.int32), np.zeros(shape, np.float32))

    def add(self, update: int, told: Progress) -> None:
        self.ended[:, update], self.count[:, update], self.outside[:, update] = told

    @property
    def last(self) -> slice:
        """The updates of the last part of training."""
        return slice(-max(1, round(LAST * self.ended.shape[1])), None)

    def scores(self) -> list[float]:
        """Of every seed, the mean over the episodes of the last part of training; NaN where none has ended."""
        ended, count = self.ended[:, self.last].sum(1), self.count[:, self.last].sum(1)
        return [float(e / c) if c else math.nan for e, c in zip(ended, count, strict=True)]

    def record(self) -> dict[str, Any]:
        """What a study keeps of them; of nodes outside the natural range their share in the last part of training."""
        outside = [round(float(share), 5) for share in self.outside[:, self.last].mean(1)]
        scores = [round(score, 4) for score in self.scores()]
        return {"scores": scores, "curves": np.round(self.curves(), 3).tolist(), "outside": outside}

    def curves(self, points: int = 50) -> np.ndarray[Any, Any]:
        """Means over parts of training, [seeds, points]; a part in which no episode ended has the mean before it."""
        parts = np.array_split(np.arange(self.ended.shape[1]), min(points, self.ended.shape[1]))
        found = np.full((len(self.ended), len(parts)), np.nan)
        for i, part in enumerate(parts):
            ended, count = self.ended[:, part].sum(1), self.count[:, part].sum(1)
            before = found[:, i - 1] if i else np.zeros(len(found))
            found[:, i] = np.where(count > 0, ended / np.maximum(count, 1), before)
        return found
