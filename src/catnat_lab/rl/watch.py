"""Play with a trained policy, and show it as an animated picture."""

from pathlib import Path

import torch

from catnat_lab.errors import UserError
from catnat_lab.files import whole_file
from catnat_lab.heads import head
from catnat_lab.rl.games import Array, make_games
from catnat_lab.rl.ppo import ActorCritic, saved_in

PACE = 70  # milliseconds a picture: 4 frames of 60 a second are 67, and GIFs know hundredths of a second
MOST_PICTURES = 1500


@torch.no_grad()
def play(folder: Path, *, seed: int, greedy: bool, steps: int) -> tuple[float, int, list[Array]]:
    """One game of the folder's checkpoint, by drawn actions, or by the likeliest ones: its score, length and pictures.

    Those are [height, width, 3] bytes, one a step; none where nothing can draw them.
    """
    if steps < 1:
        raise UserError(f"steps must be at least 1; got {steps}")
    saved = saved_in(folder)
    torch.manual_seed(seed)
    games = make_games(saved.run["game"], 1, pictures=True)
    one = head(saved.run["head"], games.actions)
    network = ActorCritic(games.observation, one.width)
    prefix, kept = "network.", saved.tensors.items()
    network.load_state_dict({name.removeprefix(prefix): value for name, value in kept if name.startswith(prefix)})
    seen, allowed = games.reset(seed)
    score, length, over = 0.0, 0, False
    pictures = [] if (first := games.picture()) is None else [first]
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
        if not over and 0 < len(pictures) < MOST_PICTURES:  # at the end the screen has the next game's beginning
            pictures += [shown for shown in [games.picture()] if shown is not None]
    return score, length, pictures


def write_gif(pictures: list[Array], path: Path) -> None:
    """As an animated picture, each different frame once."""
    from PIL import Image

    frames = [Image.fromarray(picture).convert("P", palette=Image.Palette.ADAPTIVE) for picture in pictures]
    with whole_file(path) as partial:
        frames[0].save(partial, "GIF", save_all=True, append_images=frames[1:], duration=PACE, loop=0, optimize=False)
