"""Atari games by ale-py's native vectorised environments."""

from typing import Any

import numpy as np

from catnat_lab.rl.games import SEEDS_APART, Array, Step

RESEEDED = 200  # episodes after which a copy gets a new seed, which takes about a tenth of a second
LONGEST = 108_000  # frames of an episode: half an hour of play


class Atari:
    """N copies of an Atari game by the usual rules, without sticky actions.

    An observation is 4 grey frames of 84 x 84. An action is repeated for 4 frames, the last two of which are merged by
    their maximum. An episode begins with up to 30 idle frames, and it and every further life with FIRE, where the game
    has that.

    Where each copy is follows from its seed, the episodes begun since that was set, and the present one's actions.
    """

    def __init__(self, rom: str, count: int, threads: int = 0, pictures: bool = False) -> None:
        import ale_py

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.count, self.env = count, _vectorised(rom, count, num_threads=threads)
        # The same games again in colour: they are the same because their seeds and their actions are.
        colour: dict[str, Any] = {"img_height": 210, "img_width": 160, "grayscale": False, "stack_num": 1}
        self.screen = _vectorised(rom, count, **colour) if pictures else None
        self.shown: Array = np.zeros((count, 1, 210, 160, 3), np.uint8)
        known = self.env.ale.get_action_set()
        self.actions = len(known)
        self.fire = list(known).index(ale_py.Action.FIRE) if ale_py.Action.FIRE in known else None
        self.observation: tuple[int, ...] = tuple(self.env.single_observation_space.shape or ())

    def reset(self, seed: int) -> tuple[Array, None]:
        first = seed * SEEDS_APART % 2**30
        self.seeds, self.episodes = [first + i for i in range(self.count)], [1] * self.count
        self.played = [list[int]() for _ in range(self.count)]
        observation, about = self.env.reset(seed=first)
        if self.screen is not None:
            self.shown, _ = self.screen.reset(seed=first)
        self.lives = about["lives"].copy()
        self.waiting: Array = np.zeros(self.count, bool)  # a life was lost, and the next one has not been begun
        return observation, None

    def step(self, actions: Array) -> Step:
        """Do these actions; but where a life was lost press FIRE, which some games wait for, whatever was chosen."""
        if self.fire is not None and self.waiting.any():
            actions = np.where(self.waiting, self.fire, actions)
        self.env.send(actions)
        for played, action in zip(self.played, actions.tolist(), strict=True):  # while the games run
            played.append(action)
        observation, reward, ended, cut, about = self.env.recv()
        if self.screen is not None:
            self.shown = self.screen.step(actions)[0]
        over, lives = ended | cut, about["lives"]
        lost = over | (lives < self.lives)
        last = {int(i): about["final_obs"][i].copy() for i in np.flatnonzero(cut & ~ended)}
        old = np.zeros(self.count, bool)
        for i in np.flatnonzero(over):
            self.episodes[i] += 1
            self.played[i] = []
            if self.episodes[i] > RESEEDED:  # a new seed, lest a way back from a checkpoint be too long
                self.seeds[i], self.episodes[i], old[i] = (self.seeds[i] * 48_271 + 11) % 2**30, 1, True
        if old.any():
            observation, about = self.env.reset(seed=np.array(self.seeds)[old], options={"reset_mask": old})
        self.lives, self.waiting = about["lives"].copy(), lost & ~over
        return Step(observation, reward.astype(np.float32), lost, over, last)

    def history(self) -> dict[str, Any]:
        return {"seeds": self.seeds, "episodes": self.episodes, "played": self.played}

    def replay(self, history: dict[str, Any]) -> tuple[Array, None]:
        """Play again. Copies step together, so each begins as many steps before the end as it has actions."""
        self.seeds, self.episodes, self.played = (list(history[name]) for name in ("seeds", "episodes", "played"))
        longest = max(map(len, self.played))
        begins = np.array([longest - len(played) for played in self.played])
        observation, about = self.env.reset(seed=self.seeds[0])
        before = about["lives"]
        for step in range(longest + 1):
            begun = begins == step
            if begun.any():
                # the seed begins the stream that idle frames are drawn from, one draw an episode
                observation, about = self.env.reset(seed=np.array(self.seeds)[begun], options={"reset_mask": begun})
                left = np.where(begun, self.episodes, 1) - 1
                while left.any():
                    observation, about = self.env.reset(options={"reset_mask": left > 0})
                    left = np.maximum(left - 1, 0)
            if step < longest:
                before = about["lives"].copy()
                now = [self.played[i][step - begin] if step >= begin else 0 for i, begin in enumerate(begins)]
                observation, _, _, _, about = self.env.step(np.array(now))
        played = np.array([len(actions) > 0 for actions in self.played])
        self.lives, self.waiting = about["lives"].copy(), played & (about["lives"] < before)
        return observation, None

    def picture(self) -> Array:
        """The first copy's screen, [210, 160, 3] bytes."""
        return np.array(self.shown[0][0])


def _vectorised(rom: str, count: int, **others: Any) -> Any:
    from ale_py.vector_env import AtariVectorEnv

    # Scores as the game counts them: it is the learner that clips. Lost lives are seen by Atari.step, because ale-py's
    # episodic_life begins a new game for each. SameStep: the step that ends an episode gives the next one's first
    # observation, so that no step is a mere reset.
    fixed: dict[str, Any] = {"reward_clipping": False, "autoreset_mode": "SameStep"}
    return AtariVectorEnv(rom, count, max_num_frames_per_episode=LONGEST, **fixed, **others)
