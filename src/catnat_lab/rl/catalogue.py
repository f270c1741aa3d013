"""Which games there are, by name."""

from __future__ import annotations

import difflib
import re

from catnat_lab.errors import UserError
from catnat_lab.rl.atari import Atari
from catnat_lab.rl.classic import Classic
from catnat_lab.rl.games import Games


def make_games(name: str, count: int, threads: int = 0) -> Games:
    """So many copies of an Atari game ("Breakout") or of one of gymnasium's ("CartPole-v1")."""
    if count < 1:
        raise UserError(f"envs must be at least 1; got {count}")
    check_game(name)
    known = atari_games()
    return Atari(name, known[name], count, threads) if name in known else Classic(name, count)


def check_game(name: str) -> None:
    """Raise unless there may be a game of that name."""
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
