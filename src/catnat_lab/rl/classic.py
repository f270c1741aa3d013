"""Small problems by gymnasium, one copy after another: for tests, and for games of one's own."""

from __future__ import annotations

from typing import Any

import numpy as np

from catnat_lab.errors import UserError
from catnat_lab.rl.games import SEEDS_APART, Array, Step


class Classic:
    """N copies of a gymnasium environment with numbered actions; observations are vectors, or states as one-hot ones.

    Environments that put an ``action_mask`` into their info, as Taxi-v4 does, have it as the allowed actions.
    """

    pixels = False

    def __init__(self, name: str, count: int) -> None:
        import gymnasium

        try:
            self.envs = [gymnasium.make(name) for _ in range(count)]
        except gymnasium.error.Error as problem:
            raise UserError(f"game must be an Atari game or known to gymnasium; got {name!r} ({problem})") from None
        seen, acts = self.envs[0].observation_space, self.envs[0].action_space
        if not isinstance(acts, gymnasium.spaces.Discrete):
            raise UserError(f"game must have a discrete action space; {name!r} has {acts}")
        self.states = int(seen.n) if isinstance(seen, gymnasium.spaces.Discrete) else 0
        if not self.states and (not isinstance(seen, gymnasium.spaces.Box) or len(seen.shape) != 1):
            raise UserError(f"game must have vectors or numbered states as observations; {name!r} has {seen}")
        self.name, self.count, self.actions = name, count, int(acts.n)
        self.first = int(acts.start)
        self.observation: tuple[int, ...] = (self.states,) if self.states else tuple(seen.shape or ())
        self.streams: list[Any] = [None] * count  # of random numbers, as they were when the present episodes began
        self.played: list[list[int]] = [[] for _ in range(count)]

    def reset(self, seed: int) -> tuple[Array, Array | None]:
        """Begin anew."""
        for i, env in enumerate(self.envs):
            env.reset(seed=seed * SEEDS_APART + i)
        found = [self._begin(i) for i in range(self.count)]
        return self._seen([one[0] for one in found]), _allowed([one[1] for one in found])

    def _begin(self, i: int) -> tuple[Any, dict[str, Any]]:
        """The next episode of one copy."""
        env = self.envs[i]
        self.streams[i], self.played[i] = env.unwrapped.np_random.bit_generator.state, []
        return env.reset()

    def step(self, actions: Array) -> Step:
        """Do these actions."""
        seen, abouts, rewards, over, cut = [], [], [], [], {}
        for i, (env, action) in enumerate(zip(self.envs, actions.tolist(), strict=True)):
            observation, reward, ended, late, about = env.step(self.first + action)
            self.played[i].append(action)
            if late and not ended:
                cut[i] = self._seen([observation])[0]
            if ended or late:
                observation, about = self._begin(i)
            seen.append(observation)
            abouts.append(about)
            rewards.append(reward)
            over.append(ended or late)
        ends = np.array(over)
        return Step(self._seen(seen), np.array(rewards, np.float32), ends, ends, cut, _allowed(abouts))

    def history(self) -> dict[str, Any]:
        """Streams and actions."""
        return {"streams": list(self.streams), "played": [list(actions) for actions in self.played]}

    def replay(self, history: dict[str, Any]) -> tuple[Array, Array | None]:
        """Play again, one copy after the other."""
        seen, abouts = [], []
        for i, (env, stream, played) in enumerate(zip(self.envs, history["streams"], history["played"], strict=True)):
            env.reset(seed=0)  # for a stream to set
            env.unwrapped.np_random.bit_generator.state = stream
            observation, about = self._begin(i)
            for action in played:
                observation, _, _, _, about = env.step(self.first + action)
            self.played[i] = list(played)
            seen.append(observation)
            abouts.append(about)
        return self._seen(seen), _allowed(abouts)

    def _seen(self, observations: list[Any]) -> Array:
        if self.states:
            return np.eye(self.states, dtype=np.float32)[np.array(observations, np.int64)]
        return np.stack(observations).astype(np.float32)


def _allowed(abouts: list[dict[str, Any]]) -> Array | None:
    if "action_mask" not in abouts[0]:
        return None
    return np.stack([about["action_mask"] for about in abouts]).astype(bool)
