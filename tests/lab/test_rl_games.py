"""Games: scores as the game counts them, lost lives, the ends of episodes, and the way back to where they were."""

from __future__ import annotations

import json
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from catnat_lab.errors import UserError
from catnat_lab.rl import games as rl_games
from catnat_lab.rl.games import Atari, Games, Step, check_game, make_games
from tests.lab.rl_cases import short_cartpole


def some_actions(games: Games, steps: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(5).integers(0, games.actions, (steps, games.count))


def play(games: Games, steps: int) -> list[Step]:
    games.reset(3)
    return [games.step(actions) for actions in some_actions(games, steps)]


@pytest.mark.parametrize(
    ("name", "steps"),
    [pytest.param("Breakout", 420, marks=pytest.mark.slow), ("CartPole-v1", 60), ("Taxi-v4", 220)],
)
def test_a_replayed_game_goes_on_as_if_it_had_never_stopped(
    name: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of Breakout's copies one was given a new seed, and one has begun a second episode since."""
    monkeypatch.setattr(rl_games, "RESEEDED", 2)
    whole, half = make_games(name, 3), make_games(name, 3)
    before = play(whole, steps)
    assert any(step.over.any() for step in before)  # also games that have begun anew
    history = json.loads(json.dumps(whole.history()))
    assert name != "Breakout" or set(history["episodes"]) == {1, 2}
    seen, allowed = half.replay(history)
    np.testing.assert_array_equal(seen, before[-1].observation)
    assert (allowed is None) == (before[-1].allowed is None)
    for actions in some_actions(whole, 40)[::-1]:
        one, other = whole.step(actions), half.step(actions)
        for field in ("observation", "reward", "lost", "over", "allowed"):
            np.testing.assert_array_equal(getattr(one, field), getattr(other, field), err_msg=field)
    assert whole.history() == half.history()


def test_an_idle_breakout_ends_and_its_screen_shows_what_is_played() -> None:
    """It waits for FIRE at every life, which is pressed whatever was chosen, on the screen too; a life ends returns."""
    games = make_games("Breakout", 1, pictures=True)
    assert isinstance(games, Atari) and games.actions == 4
    games.reset(3)
    real, shown, steps = games.screen.step, [], []
    games.screen.step = lambda actions: shown.append(real(actions)) or shown[-1]  # type: ignore[func-returns-value]
    while not steps or not steps[-1].over[0]:
        steps.append(games.step(np.zeros(1, np.int64)))
        picture = games.picture()
        assert picture.shape == (210, 160, 3) and np.array_equal(picture, shown[-1][0][0, 0]) and len(steps) < 1000
    assert [bool(step[2][0]) for step in shown] == [False] * (len(steps) - 1) + [True]
    assert sum(int(step.lost[0]) for step in steps) == 5 and steps[-1].lost[0]


def test_no_step_is_a_mere_reset_and_seeds_make_games() -> None:
    """The step after an episode's end moves the game by the four frames of an action, as every other."""
    games = Atari("breakout", 2)
    first, other, again = (games.reset(seed)[0].copy() for seed in (1, 2, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other) and not np.array_equal(first[0], first[1])
    games.reset(3)

    def frame() -> np.ndarray[Any, Any]:
        """Of a reset of no copy, which tells of all."""
        about = games.env.reset(options={"reset_mask": np.zeros(2, bool)})[1]
        return np.array(about["episode_frame_number"])

    frames, ended = frame(), np.zeros(2, int)
    for actions in some_actions(games, 250):
        over, before, frames = games.step(actions).over, frames, frame()
        assert (over | (frames == before + 4)).all()
        ended += over
    assert games.episodes == (1 + ended).tolist() and ended.any()


def test_scores_are_not_clipped() -> None:
    """In Seaquest a shark is worth 20."""
    games = make_games("Seaquest", 2)
    assert games.actions == 18 and max(step.reward.max() for step in play(games, 300)) == 20


def test_time_cuts_an_episode_and_its_last_observation_is_kept() -> None:
    steps = play(make_games(short_cartpole(5), 1), 5)
    assert steps[-1].over[0] and list(steps[-1].cut) == [0] and not any(step.cut for step in steps[:-1])
    assert not np.array_equal(steps[-1].cut[0], steps[-1].observation[0])


def test_states_that_are_numbers_are_one_hot_and_allowed_actions_are_the_games() -> None:
    seen, allowed = make_games("Taxi-v4", 3).reset(0)
    assert seen.shape == (3, 500) and seen.dtype == np.float32 and (seen.sum(1) == 1).all() and seen.max() == 1
    assert allowed is not None and allowed.shape == (3, 6) and allowed.dtype == bool and not allowed.all()
    blackjack, _ = make_games("Blackjack-v1", 2).reset(0)  # the player's sum, the dealer's card, and a usable ace
    assert blackjack.shape == (2, 32 + 11 + 2) and (blackjack.sum(1) == 3).all()


class Words(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(3))
    action_space = gymnasium.spaces.Discrete(2)


gymnasium.register("Words-v0", Words)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Breakot", "near it: .*Breakout.*got 'Breakot'"),
        ("breakout", "near it: Breakout"),
        ("Qwxyz", "game must be an Atari game"),
        ("Nothing-v1", "known to gymnasium; got 'Nothing-v1'"),
        ("Pendulum-v1", "discrete action space; 'Pendulum-v1' has Box"),
        ("Words-v0", "game must have observations of one length; 'Words-v0' has Sequence"),
        ("ALE/Breakout-v5", "title, here Breakout; got gymnasium's id 'ALE/Breakout-v5'"),
        ("MsPacmanNoFrameskip-v4", "here MsPacman;"),
    ],
)
def test_bad_games_are_refused_in_one_line(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as found:
        make_games(name, 1)
    assert "\n" not in str(found.value)


def test_without_the_atari_extra_the_others_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)  # as if it were not installed
    check_game("CartPole-v1")
    with pytest.raises(UserError, match=r"with the extra atari, an Atari game; got 'Breakout'"):
        check_game("Breakout")
