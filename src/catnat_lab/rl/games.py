"""Many copies of one game, stepped together, whatever they are made by.

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
SEEDS_APART = 10_007  # between runs; the copies of a run have seeds one apart


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


def make_games(name: str, count: int, threads: int = 0, *, pictures: bool = False) -> Games:
    """So many copies of an Atari game ("Breakout") or of one of gymnasium's ("CartPole-v1")."""
    check_game(name)
    known = atari_games()
    if name not in known:
        return Classic(name, count, pictures)
    from catnat_lab.rl.atari import Atari  # which needs ale-py, and this module

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
