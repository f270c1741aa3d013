"""Atari games by ale-py's native vectorised environments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from catnat_lab.rl.games import SEEDS_APART, Array, Step

RESEEDED = 200  # episodes after which a copy gets a new seed, which takes about a tenth of a second
LONGEST = 108_000  # frames of an episode: half an hour of play


def seed_of(run: int) -> int:
    """Of a run's first copy; the others have the following ones."""
    return run * SEEDS_APART % 2**30


@dataclass
class History:
    """Where every copy is: its seed, the episodes begun since it was set, and the present one's actions."""

    seeds: list[int]
    episodes: list[int]
    played: list[list[int]]

    @classmethod
    def begin(cls, seed: int, count: int) -> History:
        """Of copies that were just reset with this seed and the following ones."""
        return cls([seed + i for i in range(count)], [1] * count, [[] for _ in range(count)])

    def act(self, actions: Array) -> None:
        """One step is done."""
        for played, action in zip(self.played, actions.tolist(), strict=True):
            played.append(action)

    def end(self, over: Array) -> None:
        """These episodes have ended, and others begun."""
        for i in np.flatnonzero(over):
            self.episodes[i] += 1
            self.played[i] = []

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"seeds": self.seeds, "episodes": self.episodes, "played": self.played}


class Atari:
    """N copies of an Atari game by the usual rules, without sticky actions.

    An observation is 4 grey frames of 84 x 84. An action is repeated for 4 frames, the last two of which are merged by
    their maximum. An episode begins with up to 30 idle frames, and it and every further life with FIRE, where the game
    has that.
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
        known = self.env.ale.get_action_set()
        self.actions = len(known)
        self.fire = list(known).index(ale_py.Action.FIRE) if ale_py.Action.FIRE in known else None
        self.observation: tuple[int, ...] = tuple(self.env.single_observation_space.shape or ())
        self.lives: Array = np.zeros(count, np.int32)
        self.waiting: Array = np.zeros(count, bool)  # a life was lost, and the next one has not been begun
        self.pressed: Array = np.zeros(count, np.int64)  # the last step's actions as they were done
        self.log = History.begin(0, count)

    def reset(self, seed: int) -> tuple[Array, None]:
        """Begin anew."""
        observation, about = self.env.reset(seed=seed_of(seed))
        self.lives, self.log = about["lives"].copy(), History.begin(seed_of(seed), self.count)
        self.waiting = np.zeros(self.count, bool)
        return observation, None

    def step(self, actions: Array) -> Step:
        """Do these actions; but where a life was lost press FIRE, which some games wait for, whatever was chosen."""
        if self.fire is not None and self.waiting.any():
            actions = np.where(self.waiting, self.fire, actions)
        self.pressed = actions
        self.env.send(actions)
        self.log.act(actions)  # while the games run
        observation, reward, ended, cut, about = self.env.recv()
        over, lives = ended | cut, about["lives"]
        lost = over | (lives < self.lives)
        self.log.end(over)
        last = {int(i): about["final_obs"][i].copy() for i in np.flatnonzero(cut & ~ended)}
        if over.any():
            old = over & (np.array(self.log.episodes) > RESEEDED)
            if old.any():  # lest a way back from a checkpoint be too long
                observation, about = self._reseed(old)
        self.lives, self.waiting = about["lives"].copy(), lost & ~over
        return Step(observation, reward.astype(np.float32), lost, over, last)

    def _reseed(self, which: Array) -> tuple[Array, dict[str, Array]]:
        for i in np.flatnonzero(which):
            self.log.seeds[i] = (self.log.seeds[i] * 48_271 + 11) % 2**30
            self.log.episodes[i] = 1
        seeds = np.array(self.log.seeds)[which]
        found: tuple[Array, dict[str, Array]] = self.env.reset(seed=seeds, options={"reset_mask": which})
        return found

    def history(self) -> dict[str, Any]:
        """Seeds, episodes and actions."""
        return self.log.as_dict()

    def replay(self, history: dict[str, Any]) -> tuple[Array, None]:
        """Play again. Copies step together, so each begins as many steps before the end as it has actions."""
        log = History(**history)
        longest = max(map(len, log.played))
        begins = np.array([longest - len(played) for played in log.played])
        observation, about = self.env.reset(seed=log.seeds[0])
        before = about["lives"]
        for step in range(longest + 1):
            begun = begins == step
            if begun.any():
                # the seed begins the stream that idle frames are drawn from, one draw an episode
                observation, about = self.env.reset(seed=np.array(log.seeds)[begun], options={"reset_mask": begun})
                left = np.where(begun, log.episodes, 1) - 1
                while left.any():
                    observation, about = self.env.reset(options={"reset_mask": left > 0})
                    left = np.maximum(left - 1, 0)
            if step < longest:
                before = about["lives"].copy()
                now = [log.played[i][step - begin] if step >= begin else 0 for i, begin in enumerate(begins)]
                observation, _, _, _, about = self.env.step(np.array(now))
        played = np.array([len(actions) > 0 for actions in log.played])
        self.lives, self.log, self.waiting = about["lives"].copy(), log, played & (about["lives"] < before)
        return observation, None
