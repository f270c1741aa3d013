"""Proximal policy optimisation in one file, from the games to the last number.

A run is its settings; `train` plays a rollout, estimates advantages, improves the policy, and repeats. Below it stand,
in the order they are used, the learner, the advantages, the networks, and what a run leaves in its folder.

On a GPU one step of play and one minibatch of learning are captured graphs: a replay takes the host some microseconds,
so that it is free for the games.
"""

import csv
import math
import time
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn

from catnat_lab.checkpoint import Checkpoint, Saved, noted_stops, random_streams, read, set_random_streams
from catnat_lab.devices import Repeated, on_device, one_thread, tensor_cores
from catnat_lab.errors import UserError, check, check_least, pick
from catnat_lab.experiment import Plan, RunContext
from catnat_lab.files import whole_file
from catnat_lab.heads import activation_of, head
from catnat_lab.rl.games import Array, Games, make_games

PAPER_STEPS = 8_000_000
SAVED_EVERY = 120.0  # seconds between checkpoints
LAST = 100  # episodes that the final score is the mean of, as is usual for Atari
CHECKPOINT, EPISODES, LOCK = "checkpoint.safetensors", "episodes.csv", ".lock"
HIDDEN = 64  # units of the nets for vectors
FEATURES = 512  # of the trunk for images
EPSILON = 1e-5  # of Adam
# what is measured, as means over an update's minibatches
MEASURES = ("policy loss", "value loss", "entropy", "KL", "clipped", "gradient norm")


def is_positive(value: float) -> bool:
    return 0 < value < math.inf


@dataclass(frozen=True)
class Ppo(Plan):
    """What PPO is told, here and on MinAtar; the defaults are those of the paper's codebase."""

    game: str = "Breakout"
    head: str = "catnat"
    steps: int = PAPER_STEPS  # of all copies of the game together
    envs: int = 8  # copies of the game
    rollout: int = 128  # steps of every copy between two updates
    epochs: int = 4  # passes over a rollout
    minibatches: int = 4
    clip: float = 0.1  # of the probability ratio
    entropy: float = 0.01
    value: float = 0.5  # weight of half the squared error
    max_grad_norm: float = 0.5
    discount: float = 0.99
    gae_lambda: float = 0.95

    def __post_init__(self) -> None:
        activation_of(self.head)  # for its check
        check_least(self, steps=1, envs=1, rollout=1, epochs=1, minibatches=1)
        for name in ("clip", "max_grad_norm"):
            check(name, [getattr(self, name)], is_positive, "be positive")
        for name in ("entropy", "value"):
            check(name, [getattr(self, name)], lambda value: 0 <= value < math.inf, "not be negative")
        for name in ("discount", "gae_lambda"):
            check(name, [getattr(self, name)], lambda value: 0 <= value <= 1, "be between 0 and 1")
        if self.minibatch < 2:
            raise UserError(
                f"minibatches must be at most half the {self.batch} steps of a rollout ({self.envs} envs x "
                f"{self.rollout}); got {self.minibatches}"
            )

    @property
    def batch(self) -> int:
        return self.envs * self.rollout

    @property
    def minibatch(self) -> int:
        """Steps of one; the few that are left of a rollout are left out, others in every pass."""
        return self.batch // self.minibatches

    @property
    def updates(self) -> int:
        """How many rollouts there are: the last one is whole."""
        return -(-self.steps // self.batch)


@dataclass(frozen=True)
class Settings(Ppo):
    """All that decides one run."""

    seed: int = 1
    rate: float = 2.5e-4
    anneal: bool = True  # the rate, linearly to 0
    clip_value: bool = True
    clip_reward: bool = True  # what the learner sees, to its sign; returns are logged as the game counts them

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, seed=0)
        check("rate", [self.rate], is_positive, "be positive")


def preset(name: str, game: str) -> Settings:
    """smoke (seconds), quick (minutes on two cores) or paper. Vectors in place of images take other defaults."""
    full = Settings(game=game)
    if "-v" in game:  # one of gymnasium's, with the settings of Stable-Baselines3
        small: dict[str, Any] = {"rollout": 256, "epochs": 10, "rate": 1e-3, "clip": 0.2, "entropy": 0.0, "value": 1.0}
        full = replace(full, **small, anneal=False, clip_value=False, clip_reward=False, steps=100_000)
    quick = replace(full, steps=min(full.steps, 100_000))
    smoke = replace(full, steps=64, envs=2, rollout=16, epochs=2, minibatches=2)
    return pick(name, {"smoke": smoke, "quick": quick, "paper": full})


@dataclass(frozen=True)
class Episode:
    """A finished game: after how many steps of all copies, its return as the game counts it, and its own steps."""

    step: int
    score: float
    length: int


@dataclass(frozen=True)
class Result:
    episodes: list[Episode]
    steps: int
    finished: bool
    diverged: bool = False  # there are no more numbers to learn with; what it did before counts for nothing

    @property
    def score(self) -> float:
        """The mean score of the last episodes; NaN before the first has ended, and of a run that diverged."""
        last = [episode.score for episode in self.episodes[-LAST:]]
        return sum(last) / len(last) if last and not self.diverged else math.nan


# -- the run ---------------------------------------------------------------------------------------------------------


def train(settings: Settings, context: RunContext, threads: int = 0, what: str | None = None) -> Result:
    """Train until the end or until time is up; the same call goes on, exactly as if it had not been stopped.

    Ctrl-C ends it after the present update, with a checkpoint.
    """
    from tensorboardX import SummaryWriter  # a report does without it

    folder, device = context.folder, torch.device(context.device)
    games = make_games(settings.game, settings.envs, threads)
    checkpoint = Checkpoint(folder / CHECKPOINT, {**settings.as_dict(), "device": device.type})
    with only_one(folder), noted_stops() as stop, on_device(device), tensor_cores(), one_thread(device):
        learner = Learner(settings, games, device)
        if (saved := checkpoint.load(learner.tensors())) is not None:
            learner.resume(saved.tensors, saved.progress)
            context.tell(f"going on from step {learner.steps:,}")
        episodes = read_episodes(folder / EPISODES, learner.steps)
        result = Result(episodes, learner.steps, learner.updates == settings.updates)
        saved_at, asked, stops = time.monotonic(), False, result.finished
        with SummaryWriter(str(folder / "tensorboard"), purge_step=learner.steps + 1, write_to_disk=True) as board:
            while not stops:
                begun = time.monotonic()
                ended, measured = learner.update()
                measured["steps a second"] = settings.batch / (time.monotonic() - begun)
                episodes += ended
                _draw(board, learner.steps, ended, measured)
                diverged = not math.isfinite(measured["value loss"] + measured["gradient norm"])
                result = Result(episodes, learner.steps, diverged or learner.updates == settings.updates, diverged)
                asked = stop.asked  # as it is now: what is asked for later finds its checkpoint after the next update
                stops = asked or result.finished or context.is_late
                if stops or time.monotonic() - saved_at > SAVED_EVERY:
                    write_episodes(folder / EPISODES, episodes)  # first: what a checkpoint counts as done stands there
                    if not diverged:
                        checkpoint.save(learner.progress(), learner.tensors())
                    saved_at = time.monotonic()
                doing = f"{what or settings.game}, score {result.score:.1f}"
                context.progress(doing, learner.steps, settings.updates * settings.batch)
        if asked:
            raise KeyboardInterrupt
        return result


def _draw(board: Any, step: int, ended: list[Episode], measured: dict[str, float]) -> None:
    """The curves of TensorBoard."""
    for name, value in measured.items():
        if math.isfinite(value):  # sparsemax has infinite divergences
            board.add_scalar(name, value, step)
    for episode in ended:
        board.add_scalar("score", episode.score, episode.step)
        board.add_scalar("episode length", episode.length, episode.step)


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
        self.t = torch.zeros(1, dtype=torch.int64, device=device)  # of the rollout, where a captured graph reads it
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
        self.act = Repeated([self.t], device)
        self.improve = Repeated([*self.parameters, *moments, self.measured], device)

    @property
    def steps(self) -> int:
        return self.updates * self.settings.batch

    def update(self) -> tuple[list[Episode], dict[str, float]]:
        """One rollout and what is learnt from it: the episodes that ended, and what was measured."""
        ended = self.play()
        self.learn()
        self.updates += 1
        means = self.measured / (self.settings.epochs * self.settings.minibatches)
        measured = dict(zip(MEASURES, means.tolist(), strict=True))
        self.measured.zero_()
        return ended, measured

    def play(self) -> list[Episode]:
        """Fill the rollout, and estimate its advantages."""
        settings = self.settings
        self.t.zero_()
        ended, bonus = [], np.zeros_like(self.rewards)
        self.act(self._act)
        for t in range(settings.rollout):
            self.chosen_host.copy_(self.chosen, non_blocking=True)
            if self.device.type == "cuda":
                torch.cuda.current_stream(self.device).synchronize()
            step = self.games.step(self.chosen_host.numpy())
            self._see(step.observation, step.allowed)
            if t + 1 < settings.rollout:
                self.act(self._act)  # on a GPU the host goes on at once, and does the rest meanwhile
            self.rewards[t], self.lost[t] = step.reward, step.lost
            for game, last in step.cut.items():  # time has ended it, not the game: what would have followed counts
                bonus[t, game] = settings.discount * self._value_of(last)
            self.scores += step.reward
            self.lengths += 1
            done = self.steps + (t + 1) * settings.envs
            over = np.flatnonzero(step.over)
            ended += [Episode(done, float(self.scores[i]), int(self.lengths[i])) for i in over]
            self.scores[over], self.lengths[over] = 0, 0
        rewards = (np.sign(self.rewards) if settings.clip_reward else self.rewards) + bonus
        with torch.no_grad():
            following = self.network(self.now)[1].cpu().numpy()
        values = self.values.cpu().numpy()
        advantages = estimate(rewards, self.lost, values, following, settings.discount, settings.gae_lambda)
        self.advantages.copy_(torch.from_numpy(advantages))
        self.returns.copy_(torch.from_numpy(advantages + values))
        return ended

    def _see(self, observation: Array, allowed: Array | None) -> None:
        np.copyto(self.seen_array, observation)  # torch would start its threads for that, beside the games'
        self.now.copy_(self.seen_host, non_blocking=True)
        if self.now_mask is not None and allowed is not None:
            self.now_mask.copy_(torch.from_numpy(allowed))

    @torch.no_grad()
    def _act(self) -> None:
        """Draw an action for what is seen now, and note both in the rollout."""
        scores, values = self.network(self.now)
        drawn = self.head.draw(scores, mask=self.now_mask)
        noted = [(self.observations, self.now), (self.actions, drawn.sample)]
        noted += [(self.log_probs, drawn.log_prob), (self.values, values)]
        if self.masks is not None and self.now_mask is not None:
            noted.append((self.masks, self.now_mask))
        for rollout, new in noted:
            rollout.index_copy_(0, self.t, new.unsqueeze(0))
        self.t += 1
        self.chosen.copy_(drawn.sample)

    @torch.no_grad()
    def _value_of(self, observation: Array) -> float:
        return self.network(torch.from_numpy(observation).to(self.device).unsqueeze(0))[1].item()

    def learn(self) -> None:
        """Some passes over the rollout, in minibatches drawn anew for each."""
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
        """One step of Adam on a minibatch: the clipped surrogate, the value error and the entropy."""
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
        norm = nn.utils.clip_grad_norm_(self.parameters, settings.max_grad_norm)
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
        """And the rest of it, as JSON can hold it."""
        present = {"scores": self.scores.tolist(), "lengths": self.lengths.tolist()}
        return {"updates": self.updates, **present, "games": self.games.history()}

    def resume(self, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
        for name, value in self.tensors().items():
            if not name.startswith("random"):
                value.copy_(tensors[name])
        self.updates = int(progress["updates"])
        self.scores, self.lengths = np.array(progress["scores"], float), np.array(progress["lengths"], np.int64)
        self._see(*self.games.replay(progress["games"]))
        set_random_streams(tensors, self.device)


def estimate(rewards: Array, lost: Array, values: Array, following: Array, discount: float, gae_lambda: float) -> Array:
    """Generalised advantages [T, N]; ``following`` [N] are the values after the last step."""
    advantages = np.zeros_like(values)
    carried = np.zeros_like(following)
    for t in reversed(range(len(rewards))):
        goes_on = 1 - lost[t].astype(values.dtype)
        after = values[t + 1] if t + 1 < len(values) else following
        surprise = rewards[t] + discount * goes_on * after - values[t]
        carried = surprise + discount * gae_lambda * goes_on * carried
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


# -- what a run leaves in its folder ---------------------------------------------------------------------------------


def only_one(folder: Path) -> AbstractContextManager[object]:
    """Two processes would write one run's files."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return FileLock(folder / LOCK, timeout=0).acquire()
    except Timeout:
        raise UserError(f"another process trains the run in {folder}; give another --output") from None


def write_episodes(path: Path, episodes: list[Episode]) -> None:
    with whole_file(path) as partial, partial.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("step", "score", "length"))
        rows.writerows(map(astuple, episodes))


def read_episodes(path: Path, steps: int) -> list[Episode]:
    """The lines of `episodes.csv` up to a step; none where there is no such file."""
    if not path.exists():
        return []
    try:
        with path.open(newline="") as file:
            rows = csv.DictReader(file)
            every = [Episode(int(row["step"]), float(row["score"]), int(row["length"])) for row in rows]
            return [episode for episode in every if episode.step <= steps]
    except (KeyError, ValueError, TypeError) as problem:
        raise UserError(f"{path} is no list of episodes ({problem}); delete the folder to begin again") from None


def saved_in(folder: Path) -> Saved:
    if not (folder / CHECKPOINT).exists():
        raise UserError(f"there is no checkpoint in {folder}; `catnat rl` makes one")
    return read(folder / CHECKPOINT)


def result_in(folder: Path) -> tuple[Settings, Result]:
    """A run's settings, and what it has come to by its checkpoint."""
    saved = saved_in(folder)
    settings = Settings(**{name: value for name, value in saved.run.items() if name != "device"})
    steps = saved.progress["updates"] * settings.batch
    return settings, Result(read_episodes(folder / EPISODES, steps), steps, steps >= settings.steps)
