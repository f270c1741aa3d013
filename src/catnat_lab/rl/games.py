"""Many copies of one game, stepped together: Atari's by ale-py, all others by gymnasium.

A game is where its random stream and the actions since its episode began have led to. That is what a checkpoint keeps:
a game goes on exactly where it was by playing them again.
"""

import difflib
import re
from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FlattenObservation
from numpy.typing import NDArray

from catnat_lab.errors import UserError

Array = NDArray[Any]
MINATAR = {"Breakout": 3, "Asterix": 5, "Freeway": 3, "Seaquest": 6, "SpaceInvaders": 4}  # its games and their actions
SEEDS_APART = 10_007  # between runs; the copies of a run have seeds one apart
RESEEDED = 200  # episodes after which a copy gets a new seed, which takes about a tenth of a second
LONGEST = 108_000  # frames of an episode: half an hour of play


@dataclass
class Step:
    observation: Array  # [N, ...] of the next step; after an episode's end, the first of the next one
    reward: Array  # float32 [N], as the game counts it
    lost: Array  # bool [N]: a life, or the game; where the learner's returns end
    over: Array  # bool [N]: the episode has ended, and another has begun
    cut: dict[int, Array] = field(default_factory=dict)  # by game, the last observation of an episode that time ended
    allowed: Array | None = None  # bool [N, K]: the actions that may come next; None: all


class Games(Protocol):
    actions: int
    observation: tuple[int, ...]  # the shape of one; three sizes are a uint8 image's, one is a float32 vector's

    def reset(self, seed: int) -> tuple[Array, Array | None]:
        """Begin anew: the first observations, and the actions that are allowed."""

    def step(self, actions: Array) -> Step:
        """Do these actions, one a game."""

    def history(self) -> dict[str, Any]:
        """All that tells where the games are, as JSON can hold it."""

    def replay(self, history: dict[str, Any]) -> tuple[Array, Array | None]:
        """Play until there again: the present observations, and the actions that are allowed."""

    def picture(self) -> Array | None:
        """The first copy's screen, [height, width, 3] bytes; None where nothing can draw it."""


class Noted(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that notes its random stream at the beginning of the episode, and the actions since."""

    stream: dict[str, Any]
    played: list[int]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            super().reset(seed=seed)
        self.stream, self.played = dict(self.unwrapped.np_random.bit_generator.state), []
        return super().reset(options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.played.append(int(action))
        return super().step(action)

    def replay(self, stream: dict[str, Any], played: list[int]) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=0)  # for a stream to set
        self.unwrapped.np_random.bit_generator.state = stream
        seen, about = self.reset()
        for action in played:
            seen, _, _, _, about = self.step(action)
        return seen, about


class Classic:
    """N copies of a gymnasium environment with numbered actions; observations are vectors, numbers one-hot ones.

    Environments that put an ``action_mask`` into their info, as Taxi-v4 does, have it as the allowed actions.
    """

    def __init__(self, name: str, count: int, pictures: bool = False) -> None:
        drawn: dict[str, Any] = {"render_mode": "rgb_array"} if pictures else {}  # not every game knows of pictures

        def one() -> Noted:
            return Noted(FlattenObservation(gymnasium.make(name, **drawn)))

        try:
            self.env: Any = SyncVectorEnv([one] * count, autoreset_mode=AutoresetMode.SAME_STEP)
        except (gymnasium.error.Error, NotImplementedError) as problem:
            raise UserError(f"game must be an Atari game or known to gymnasium; got {name!r} ({problem})") from None
        self.copies: list[Any] = list(self.env.envs)
        seen, acts = self.env.single_observation_space, self.env.single_action_space
        if not isinstance(acts, gymnasium.spaces.Discrete):
            raise UserError(f"game must have a discrete action space; {name!r} has {acts}")
        if not isinstance(seen, gymnasium.spaces.Box):
            raise UserError(f"game must have observations of one length; {name!r} has {seen}")
        self.count, self.actions, self.first = count, int(acts.n), int(acts.start)
        self.observation: tuple[int, ...] = seen.shape

    def reset(self, seed: int) -> tuple[Array, Array | None]:
        seen, about = self.env.reset(seed=[seed * SEEDS_APART + i for i in range(self.count)])
        return seen.astype(np.float32), _allowed(about.get("action_mask"))

    def step(self, actions: Array) -> Step:
        seen, reward, ended, late, about = self.env.step(self.first + actions)
        over = ended | late
        cut = {int(i): about["final_obs"][i].astype(np.float32) for i in np.flatnonzero(late & ~ended)}
        allowed = _allowed(about.get("action_mask"))
        return Step(seen.astype(np.float32), reward.astype(np.float32), over, over, cut, allowed)

    def history(self) -> dict[str, Any]:
        return {"streams": [one.stream for one in self.copies], "played": [list(one.played) for one in self.copies]}

    def replay(self, history: dict[str, Any]) -> tuple[Array, Array | None]:
        noted = zip(self.copies, history["streams"], history["played"], strict=True)
        seen, abouts = zip(*(one.replay(stream, played) for one, stream, played in noted), strict=True)
        masks = [about["action_mask"] for about in abouts if "action_mask" in about]
        return np.stack(seen).astype(np.float32), _allowed(masks)

    def picture(self) -> Array | None:
        try:
            return np.asarray(self.copies[0].render())
        except gymnasium.error.DependencyNotInstalled:
            return None


def _allowed(masks: Any) -> Array | None:
    return None if masks is None or len(masks) == 0 else np.asarray(masks).astype(bool)


class Atari:
    """N copies of an Atari game by ale-py's native vectorised environments and the usual rules, without sticky actions.

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


def make_games(name: str, count: int, threads: int = 0, *, pictures: bool = False) -> Games:
    """So many copies of an Atari game ("Breakout") or of one of gymnasium's ("CartPole-v1")."""
    check_game(name)
    known = atari_games()
    if name not in known:
        return Classic(name, count, pictures)
    return Atari(known[name], count, threads, pictures)


def check_game(name: str) -> None:
    known = atari_games()
    found = re.fullmatch(r"(?:ALE/)?(\w+?)(?:NoFrameskip|Deterministic)?-v[045]", name)
    if found and found[1] in known:
        raise UserError(f"game must be an Atari game's title, here {found[1]}; got gymnasium's id {name!r}")
    if name in known or re.fullmatch(r"[\w/-]+-v\d+", name):
        return
    if not known:
        extra = "or, with the extra atari, an Atari game"
        raise UserError(f"game must be a gymnasium id such as CartPole-v1 {extra}; got {name!r}")
    near = difflib.get_close_matches(name.lower(), [title.lower() for title in known], 5, 0.5)
    titles = [title for title in known if title.lower() in near]
    hint = f"near it: {', '.join(sorted(titles))}" if titles else f"for example {', '.join(list(known)[:5])}"
    raise UserError(f"game must be an Atari game ({hint}) or a gymnasium id such as CartPole-v1; got {name!r}")


def atari_games() -> dict[str, str]:
    """By title, as "MsPacman", the name of its ROM, as "ms_pacman"; those that ale-py brings with it, where it is."""
    try:
        from ale_py import roms
    except ImportError:
        return {}
    names = sorted(roms.get_all_rom_ids())
    return {"".join(part.capitalize() for part in name.split("_")): name for name in names}
