"""Atari games by ale-py's native vectorised environments."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from catnat_lab.rl.games import Array, Step

LONGEST = 108_000  # frames of an episode: half an hour of play
SEEDS_APART = 10_007  # between runs; the copies of a run have seeds one apart


def seed_of(run: int) -> int:
    """Of a run's first copy; the others have the following ones."""
    return run * SEEDS_APART % 2**30


@dataclass
class History:
    """Where the copies are: the first one's seed, the episodes that each has begun, and the present ones' actions."""

    seed: int
    episodes: list[int]
    played: list[list[int]]

    @classmethod
    def begin(cls, seed: int, count: int) -> History:
        """Of copies that were just reset."""
        return cls(seed, [1] * count, [[] for _ in range(count)])

    def add(self, actions: Array, over: Array) -> None:
        """One step."""
        for i, (action, ended) in enumerate(zip(actions.tolist(), over.tolist(), strict=True)):
            self.played[i].append(action)
            if ended:
                self.episodes[i] += 1
                self.played[i] = []


class Atari:
    """N copies of an Atari game by the usual rules, without sticky actions.

    An observation is 4 grey frames of 84 x 84. An action is repeated for 4 frames, the last two of which are merged by
    their maximum. An episode begins with up to 30 idle frames, and with FIRE where the game waits for it.
    """

    pixels = True

    def __init__(self, name: str, rom: str, count: int, threads: int = 0) -> None:
        import ale_py
        from ale_py.vector_env import AtariVectorEnv

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.name, self.count = name, count
        # Scores as the game counts them: it is the learner that clips. Lost lives are seen below, because ale-py's
        # episodic_life begins a new game for each. SameStep: the step that ends an episode gives the next one's first
        # observation, so that no step is a mere reset.
        self.env = AtariVectorEnv(
            rom,
            count,
            num_threads=threads,
            reward_clipping=False,
            autoreset_mode="SameStep",
            max_num_frames_per_episode=LONGEST,
        )
        self.actions = len(self.env.ale.get_action_set())
        self.observation: tuple[int, ...] = tuple(self.env.single_observation_space.shape or ())
        self.lives: Array = np.zeros(count, np.int32)
        self.log = History.begin(0, count)

    def reset(self, seed: int) -> tuple[Array, None]:
        """Begin anew."""
        observation, about = self.env.reset(seed=seed_of(seed))
        self.lives, self.log = about["lives"].copy(), History.begin(seed_of(seed), self.count)
        return observation, None

    def step(self, actions: Array) -> Step:
        """Do these actions."""
        observation, reward, ended, cut, about = self.env.step(actions)
        over, lives = ended | cut, about["lives"]
        lost = over | (lives < self.lives)
        self.lives = lives.copy()
        self.log.add(actions, over)
        last = {int(i): about["final_obs"][i].copy() for i in np.flatnonzero(cut & ~ended)}
        return Step(observation, reward.astype(np.float32), lost, over, last)

    def history(self) -> dict[str, Any]:
        """Seed, episodes and actions."""
        return asdict(self.log)

    def replay(self, history: dict[str, Any]) -> tuple[Array, None]:
        """Play again. Copies step together, so each begins as many steps before the end as it has actions."""
        log = History(**history)
        longest = max(map(len, log.played))
        begins = np.array([longest - len(played) for played in log.played])
        observation, about = self.env.reset(seed=log.seed)
        for step in range(longest + 1):
            begun = begins == step
            if begun.any():
                # the seed begins the stream that idle frames are drawn from, one draw an episode
                seeds = log.seed + np.flatnonzero(begun)
                observation, about = self.env.reset(seed=seeds, options={"reset_mask": begun})
                left = np.where(begun, log.episodes, 1) - 1
                while left.any():
                    observation, about = self.env.reset(options={"reset_mask": left > 0})
                    left = np.maximum(left - 1, 0)
            if step < longest:
                now = [log.played[i][step - begin] if step >= begin else 0 for i, begin in enumerate(begins)]
                observation, _, _, _, about = self.env.step(np.array(now))
        self.lives, self.log = about["lives"].copy(), log
        return observation, None
