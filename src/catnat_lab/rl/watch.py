"""Play with a trained policy and show it: an Atari game as an animated picture, any game as its scores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from catnat_lab.errors import UserError
from catnat_lab.heads import head
from catnat_lab.rl import checkpoint
from catnat_lab.rl.atari import LONGEST, Atari, seed_of
from catnat_lab.rl.catalogue import atari_games, make_games
from catnat_lab.rl.games import Array
from catnat_lab.rl.network import ActorCritic

COLOUR = (210, 160)  # height and width of the screen
PACE = 70  # milliseconds a picture: 4 frames of 60 a second are 67, and GIFs know hundredths of a second
MOST_PICTURES = 1500


@dataclass(frozen=True)
class Play:
    """One game."""

    score: float
    length: int
    pictures: list[Array]  # [210, 160, 3] bytes, one a step; of Atari alone


@torch.no_grad()
def play(folder: Path, *, seed: int = 12_345, greedy: bool = False, steps: int = 27_000) -> Play:
    """One game of the folder's checkpoint, by drawn actions, or by the likeliest ones."""
    if steps < 1:
        raise UserError(f"steps must be at least 1; got {steps}")
    found = checkpoint.read(folder)
    if found is None:
        raise UserError(f"there is no checkpoint in {folder}; `catnat rl` makes one")
    settings, tensors, _ = found
    torch.manual_seed(seed)
    games = make_games(settings.game, 1)
    one = head(settings.head, games.actions)
    network = ActorCritic(games.observation, one.width)
    network.load_state_dict(checkpoint.network_of(tensors))
    seen, allowed = games.reset(seed)
    screen = Screen(games, seed) if isinstance(games, Atari) else None
    score, length, over = 0.0, 0, False
    pictures: list[Array] = []
    while not over and length < steps:
        scores, _ = network(torch.from_numpy(seen))
        mask = None if allowed is None else torch.from_numpy(allowed)
        action = one.draw(scores, mask=mask).sample
        if greedy:
            log_probs = one.log_probs(scores)
            action = (log_probs if mask is None else log_probs.masked_fill(~mask, -torch.inf)).argmax(-1)
        step = games.step(action.numpy())
        seen, allowed, over = step.observation, step.allowed, bool(step.over[0])
        score, length = score + float(step.reward[0]), length + 1
        if screen is not None and len(pictures) < MOST_PICTURES:
            pictures.append(screen.follow())
    return Play(score, length, pictures)


class Screen:
    """The same game again in colour and at full size: it is the same because its seed and its actions are."""

    def __init__(self, games: Atari, seed: int) -> None:
        from ale_py.vector_env import AtariVectorEnv

        self.games = games
        self.env = AtariVectorEnv(
            atari_games()[games.name],
            1,
            img_height=COLOUR[0],
            img_width=COLOUR[1],
            grayscale=False,
            stack_num=1,
            reward_clipping=False,
            autoreset_mode="SameStep",
            max_num_frames_per_episode=LONGEST,
        )
        self.env.reset(seed=seed_of(seed))

    def follow(self) -> Array:
        """The screen after what the games have just done; at an episode's end its last, not the next one's first."""
        seen, _, ended, cut, about = self.env.step(self.games.pressed)
        return np.array((about["final_obs"] if ended[0] or cut[0] else seen)[0][0])


def write_gif(pictures: list[Array], path: Path) -> None:
    """As an animated picture, each different frame once."""
    from PIL import Image

    if not pictures:
        raise UserError("this game has no screen to show; its score is printed")
    path.parent.mkdir(parents=True, exist_ok=True)
    frames = [Image.fromarray(picture).convert("P", palette=Image.Palette.ADAPTIVE) for picture in pictures]
    partial = path.with_suffix(".partial")
    frames[0].save(partial, "GIF", save_all=True, append_images=frames[1:], duration=PACE, loop=0, optimize=False)
    partial.replace(path)
