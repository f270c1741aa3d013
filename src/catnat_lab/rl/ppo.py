"""Proximal policy optimisation, from top to bottom: play a rollout, estimate advantages, improve the policy; repeat.

On a GPU one step of play and one minibatch of learning are captured graphs: a replay takes the host some microseconds,
so that it is free for the games.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from catnat_lab.checkpoint import random_streams, set_random_streams
from catnat_lab.devices import Repeated
from catnat_lab.heads import head
from catnat_lab.rl.games import Array, Games, Step
from catnat_lab.rl.settings import Settings

HIDDEN = 64  # units of the nets for vectors
FEATURES = 512  # of the trunk for images
EPSILON = 1e-5  # of Adam
# what is measured, as means over an update's minibatches
MEASURES = ("policy loss", "value loss", "entropy", "KL", "clipped", "gradient norm")


@dataclass(frozen=True)
class Episode:
    """A finished game: after how many steps of all copies, its return as the game counts it, and its own steps."""

    step: int
    score: float
    length: int


class Learner:
    """A policy, its value function, the games it plays and how it learns from them."""

    def __init__(self, settings: Settings, games: Games, device: torch.device) -> None:
        self.settings, self.games, self.device = settings, games, device
        torch.manual_seed(settings.seed)
        self.head = head(settings.head, games.actions)
        self.network = ActorCritic(games.observation, self.head.width).to(device)
        self.parameters = list(self.network.parameters())
        self.optimizer = _adam(self.parameters, settings.rate, device)
        self.updates = 0

        steps, copies = settings.rollout, settings.envs
        seen, allowed = games.reset(settings.seed)
        dtype = torch.uint8 if seen.dtype == np.uint8 else torch.float32
        # the rollout, [T, N, ...]
        self.observations = torch.zeros((steps, *seen.shape), dtype=dtype, device=device)
        self.actions = torch.zeros((steps, copies), dtype=torch.int64, device=device)
        self.log_probs, self.values, self.advantages, self.returns = (
            torch.zeros((steps, copies), device=device) for _ in range(4)
        )
        masked = allowed is not None
        self.masks = torch.ones((steps, copies, games.actions), dtype=torch.bool, device=device) if masked else None
        self.rewards, self.lost = np.zeros((steps, copies), np.float32), np.zeros((steps, copies), bool)
        # one step of play
        pinned = device.type == "cuda"
        self.place = torch.zeros(1, dtype=torch.int64, device=device)  # in the rollout
        self.now = torch.zeros(seen.shape, dtype=dtype, device=device)
        self.now_mask = torch.ones((copies, games.actions), dtype=torch.bool, device=device) if masked else None
        self.chosen = torch.zeros(copies, dtype=torch.int64, device=device)
        self.seen_host = torch.zeros(seen.shape, dtype=dtype, pin_memory=pinned)
        self.seen_array = self.seen_host.numpy()  # the same memory
        self.chosen_host = torch.zeros(copies, dtype=torch.int64, pin_memory=pinned)
        self._see(seen, allowed)
        self.scores, self.lengths = np.zeros(copies), np.zeros(copies, np.int64)  # of the present episodes
        # one minibatch of learning
        self.rows = torch.zeros(settings.minibatch, dtype=torch.int64, device=device)
        self.measured = torch.zeros(len(MEASURES), device=device)
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        self.act = Repeated([self.place], device)
        self.improve = Repeated([*self.parameters, *moments, self.measured], device)

    def update(self) -> tuple[list[Episode], dict[str, float]]:
        """One rollout and what is learnt from it: the episodes that ended, and what was measured."""
        finished = self.play()
        self.learn()
        self.updates += 1
        means = self.measured / (self.settings.epochs * self.settings.minibatches)
        measured = dict(zip(MEASURES, means.tolist(), strict=True))
        self.measured.zero_()
        return finished, measured

    @property
    def steps(self) -> int:
        return self.updates * self.settings.batch

    def play(self) -> list[Episode]:
        """Fill the rollout, and estimate its advantages."""
        self.place.zero_()
        finished = []
        bonus = np.zeros_like(self.rewards)
        self.act(self._act)
        for t in range(self.settings.rollout):
            self.chosen_host.copy_(self.chosen, non_blocking=True)
            if self.device.type == "cuda":
                torch.cuda.current_stream(self.device).synchronize()
            step = self.games.step(self.chosen_host.numpy())
            self._see(step.observation, step.allowed)
            if t + 1 < self.settings.rollout:
                self.act(self._act)  # on a GPU the host goes on at once, and does the rest meanwhile
            self.rewards[t], self.lost[t] = step.reward, step.lost
            for game, last in step.cut.items():  # time has ended it, not the game: what would have followed counts
                bonus[t, game] = self.settings.discount * self._value_of(last)
            finished += self._count(step, t)
        rewards = (np.sign(self.rewards) if self.settings.clip_reward else self.rewards) + bonus
        with torch.no_grad():
            following = self.network(self.now)[1].cpu().numpy()
        values = self.values.cpu().numpy()
        advantages = estimate(rewards, self.lost, values, following, self.settings.discount, self.settings.trace)
        self.advantages.copy_(torch.from_numpy(advantages))
        self.returns.copy_(torch.from_numpy(advantages + values))
        return finished

    @torch.no_grad()
    def _act(self) -> None:
        scores, values = self.network(self.now)
        drawn = self.head.draw(scores, mask=self.now_mask)
        rollout = [(self.observations, self.now), (self.actions, drawn.sample)]
        rollout += [(self.log_probs, drawn.log_prob), (self.values, values)]
        if self.masks is not None and self.now_mask is not None:
            rollout.append((self.masks, self.now_mask))
        for kept, new in rollout:
            kept.index_copy_(0, self.place, new.unsqueeze(0))
        self.place += 1
        self.chosen.copy_(drawn.sample)

    def _see(self, observation: Array, allowed: Array | None) -> None:
        np.copyto(self.seen_array, observation)  # torch would start its threads for that, beside the games'
        self.now.copy_(self.seen_host, non_blocking=True)
        if self.now_mask is not None and allowed is not None:
            self.now_mask.copy_(torch.from_numpy(allowed))

    @torch.no_grad()
    def _value_of(self, observation: Array) -> float:
        return self.network(torch.from_numpy(observation).to(self.device).unsqueeze(0))[1].item()

    def _count(self, step: Step, t: int) -> list[Episode]:
        """Add up the present episodes; those that have ended."""
        self.scores += step.reward
        self.lengths += 1
        done = self.steps + (t + 1) * self.settings.envs
        ended = [Episode(done, float(self.scores[i]), int(self.lengths[i])) for i in np.flatnonzero(step.over)]
        self.scores[step.over], self.lengths[step.over] = 0, 0
        return ended

    def learn(self) -> None:
        settings = self.settings
        left = 1 - self.updates / settings.updates if settings.anneal else 1.0
        group = self.optimizer.param_groups[0]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(settings.rate * left)  # where the captured graph reads it
        else:
            group["lr"] = settings.rate * left
        for _ in range(settings.epochs):
            order = torch.randperm(settings.batch, device=self.device)
            for i in range(settings.minibatches):
                self.rows.copy_(order[i * settings.minibatch : (i + 1) * settings.minibatch])
                self.improve(self._improve)

    def _improve(self) -> None:
        settings = self.settings

        def rows(kept: Tensor) -> Tensor:
            return kept.flatten(0, 1).index_select(0, self.rows)

        scores, values = self.network(rows(self.observations))
        mask = None if self.masks is None else rows(self.masks)
        drawn = self.head.draw(scores, index=rows(self.actions), mask=mask)
        advantages = rows(self.advantages)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        log_ratio = drawn.log_prob - rows(self.log_probs)
        ratio = log_ratio.exp()
        near = ratio.clamp(1 - settings.clip, 1 + settings.clip)
        policy_loss = -torch.minimum(advantages * ratio, advantages * near).mean()
        returns, before = rows(self.returns), rows(self.values)
        errors = (values - returns).square()
        if settings.clip_value:
            close = before + (values - before).clamp(-settings.clip, settings.clip)
            errors = torch.maximum(errors, (close - returns).square())
        value_loss, entropy = 0.5 * errors.mean(), drawn.entropy.mean()
        loss = policy_loss - settings.entropy * entropy + settings.value * value_loss
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, settings.gradient)
        self.optimizer.step()
        with torch.no_grad():
            kl, clipped = (ratio - 1 - log_ratio).mean(), ((ratio - 1).abs() > settings.clip).float().mean()
            self.measured += torch.stack([policy_loss, value_loss, entropy, kl, clipped, norm])

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that an exact resume needs, by name."""
        named = {f"network.{name}": value.detach() for name, value in self.network.named_parameters()}
        for i, state in enumerate(self.optimizer.state.values()):
            named |= {f"adam.{i}.{name}": value for name, value in state.items()}
        return named | random_streams(self.device)

    def progress(self) -> dict[str, Any]:
        return {
            "updates": self.updates,
            "scores": self.scores.tolist(),
            "lengths": self.lengths.tolist(),
            "games": self.games.history(),
        }

    def resume(self, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
        for name, value in self.tensors().items():
            if not name.startswith("random"):
                value.copy_(tensors[name])
        self.updates = int(progress["updates"])
        self.scores, self.lengths = np.array(progress["scores"], float), np.array(progress["lengths"], np.int64)
        self._see(*self.games.replay(progress["games"]))
        set_random_streams(tensors, self.device)


def estimate(rewards: Array, lost: Array, values: Array, following: Array, discount: float, trace: float) -> Array:
    """Generalised advantages [T, N]; ``following`` [N] are the values after the last step."""
    advantages = np.zeros_like(values)
    carried = np.zeros_like(following)
    for t in reversed(range(len(rewards))):
        goes_on = 1 - lost[t].astype(values.dtype)
        after = values[t + 1] if t + 1 < len(values) else following
        surprise = rewards[t] + discount * goes_on * after - values[t]
        carried = surprise + discount * trace * goes_on * carried
        advantages[t] = carried
    return advantages


def _adam(parameters: list[nn.Parameter], rate: float, device: torch.device) -> torch.optim.Adam:
    """Adam with its moments made at once, so that a graph can be captured and a checkpoint put back."""
    captured = device.type == "cuda"
    start = torch.tensor(rate, device=device) if captured else rate
    optimizer = torch.optim.Adam(parameters, start, eps=EPSILON, capturable=captured, fused=captured)
    for parameter in parameters:
        moments = {name: torch.zeros_like(parameter, requires_grad=False) for name in ("exp_avg", "exp_avg_sq")}
        steps = torch.zeros((), device=device) if captured else torch.zeros(())
        optimizer.state[parameter] = {"step": steps, **moments}
    return optimizer


def orthogonal(layer: nn.Linear | nn.Conv2d, gain: float = math.sqrt(2)) -> nn.Module:
    """The layer with orthogonal weights and no bias to start with."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class ActorCritic(nn.Module):
    """Scores of a policy and a value for every observation. Call it inside `torch.random.fork_rng` for given weights.

    Args:
        observation: Shape of one: [4, 84, 84] bytes, or [n] floats.
        scores: How many the head takes.
    """

    def __init__(self, observation: tuple[int, ...], scores: int) -> None:
        super().__init__()
        self.pixels = len(observation) == 3
        self.trunk: nn.Module = nn.Identity()
        if self.pixels:
            self.trunk = nn.Sequential(
                orthogonal(nn.Conv2d(observation[0], 32, 8, stride=4)),
                nn.ReLU(),
                orthogonal(nn.Conv2d(32, 64, 4, stride=2)),
                nn.ReLU(),
                orthogonal(nn.Conv2d(64, 64, 3)),
                nn.ReLU(),
                nn.Flatten(),
                orthogonal(nn.Linear(64 * 7 * 7, FEATURES)),
                nn.ReLU(),
            )
            # as a GPU's convolutions want it: else they convert every layer
            nn.utils.convert_conv2d_weight_memory_format(self.trunk, torch.channels_last)
            self.policy = orthogonal(nn.Linear(FEATURES, scores), 0.01)
            self.value = orthogonal(nn.Linear(FEATURES, 1), 1.0)
        else:
            self.policy = _small(observation[0], scores, 0.01)
            self.value = _small(observation[0], 1, 1.0)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [B, S] and values [B]."""
        if self.pixels:
            observation = observation.to(torch.float32, memory_format=torch.channels_last).div(255.0)
        x = self.trunk(observation)
        return self.policy(x), self.value(x).squeeze(-1)


def _small(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    return nn.Sequential(
        orthogonal(nn.Linear(inputs, HIDDEN)),
        nn.Tanh(),
        orthogonal(nn.Linear(HIDDEN, HIDDEN)),
        nn.Tanh(),
        orthogonal(nn.Linear(HIDDEN, outputs), gain),
    )
