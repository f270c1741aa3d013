"""Games: scores as the game counts them, lost lives, the ends of episodes, and the way back to where they were."""

from __future__ import annotations

import json
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from catnat_lab.errors import UserError
from catnat_lab.rl import games as atari
from catnat_lab.rl.games import SEEDS_APART, Atari, Games, Step, atari_games, check_game, make_games
from tests.lab.rl_cases import short_cartpole


def some_actions(games: Games, steps: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(5).integers(0, games.actions, (steps, games.count))


def play(games: Games, steps: int) -> list[Step]:
    games.reset(3)
    return [games.step(actions) for actions in some_actions(games, steps)]


GAMES = [("Breakout", 300), ("CartPole-v1", 120), ("Taxi-v4", 450), ("Blackjack-v1", 20)]


@pytest.mark.parametrize(("name", "steps"), GAMES)
def test_a_replayed_game_goes_on_as_if_it_had_never_stopped(name: str, steps: int) -> None:
    whole, half = make_games(name, 3), make_games(name, 3)
    before = play(whole, steps)
    assert any(step.over.any() for step in before)  # also games that have begun anew
    history = json.loads(json.dumps(whole.history()))
    seen, allowed = half.replay(history)
    np.testing.assert_array_equal(seen, before[-1].observation)
    assert (allowed is None) == (before[-1].allowed is None)
    for actions in some_actions(whole, 60)[::-1]:
        one, other = whole.step(actions), half.step(actions)
        for field in ("observation", "reward", "lost", "over", "allowed"):
            np.testing.assert_array_equal(getattr(one, field), getattr(other, field), err_msg=field)
    assert whole.history() == half.history()


@pytest.mark.slow
def test_a_copy_that_was_given_a_new_seed_is_replayed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atari, "RESEEDED", 1)
    whole, again = make_games("Breakout", 2), make_games("Breakout", 2)
    last = play(whole, 400)[-1]
    history = json.loads(json.dumps(whole.history()))
    assert min(history["seeds"]) != 3 * SEEDS_APART and max(history["episodes"]) <= 2
    np.testing.assert_array_equal(again.replay(history)[0], last.observation)
    for actions in some_actions(whole, 40)[::-1]:
        np.testing.assert_array_equal(whole.step(actions).observation, again.step(actions).observation)


def test_every_life_is_begun_with_fire() -> None:
    """Breakout waits for it: a policy that only idles would never end a game."""
    games = make_games("Breakout", 1)
    games.reset(0)
    steps = [games.step(np.zeros(1, np.int64)) for _ in range(400)]
    assert sum(int(step.lost[0]) for step in steps) >= 5 and any(step.over[0] for step in steps)


def test_the_screen_shows_the_game_that_is_played() -> None:
    """Through lost lives, where FIRE is pressed whatever was chosen: an idle game ends in both at the same step."""
    games = make_games("Breakout", 1, pictures=True)
    assert isinstance(games, Atari)
    games.reset(3)
    real, ends, over, length = games.screen.step, [], False, 0
    games.screen.step = lambda actions: ends.append(real(actions)) or ends[-1]  # type: ignore[func-returns-value]
    while not over:
        over, length = bool(games.step(np.zeros(1, np.int64)).over[0]), length + 1
        picture = games.picture()
        assert picture.shape == (210, 160, 3) and np.array_equal(picture, ends[-1][0][0, 0]) and length < 1000
    assert [bool(step[2][0]) for step in ends] == [False] * (length - 1) + [True]


def test_seeds_make_games() -> None:
    one, same, other = (make_games("Breakout", 2) for _ in range(3))
    first, again, else_ = one.reset(1)[0], same.reset(1)[0], other.reset(2)[0]
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, else_)
    assert not np.array_equal(first[0], first[1])  # copies are not the same game


def test_lives_are_lost_within_an_episode() -> None:
    """Breakout has five lives: a learner's return ends with each, the episode with the last."""
    games = make_games("Breakout", 2)
    steps = play(games, 400)
    lost, over = (np.stack([getattr(step, field) for step in steps]) for field in ("lost", "over"))
    assert over.any()
    for copy in range(2):
        ends = np.flatnonzero(over[:, copy])
        for begin, end in zip([0, *(ends[:-1] + 1)], ends, strict=True):
            assert lost[begin : end + 1, copy].sum() == 5
        assert lost[over[:, copy], copy].all()


def test_scores_are_not_clipped() -> None:
    """In Breakout's upper rows a brick is worth more than one point; in Seaquest a shark is worth 20."""
    assert max(step.reward.max() for step in play(make_games("Seaquest", 2), 300)) == 20


def test_no_step_is_a_mere_reset() -> None:
    """The step after an episode's end moves the game by the four frames of an action, as every other."""
    games = Atari("breakout", 1)
    games.reset(3)
    nothing = {"reset_mask": np.zeros(1, bool)}  # resets no copy, and tells of all
    frames, ended = int(games.env.reset(options=nothing)[1]["episode_frame_number"][0]), 0
    for actions in some_actions(games, 300):
        over = games.step(actions).over[0]
        now = int(games.env.reset(options=nothing)[1]["episode_frame_number"][0])
        assert over or now == frames + 4
        frames, ended = now, ended + int(over)
    assert games.episodes == [1 + ended] and ended > 0


def test_time_cuts_an_episode_and_its_last_observation_is_kept() -> None:
    steps = play(make_games(short_cartpole(5), 1), 5)
    assert steps[-1].over[0] and list(steps[-1].cut) == [0] and not any(step.cut for step in steps[:-1])
    assert not np.array_equal(steps[-1].cut[0], steps[-1].observation[0])


def test_states_that_are_numbers_are_one_hot() -> None:
    seen, _ = make_games("Taxi-v4", 3).reset(0)
    assert seen.shape == (3, 500) and seen.dtype == np.float32 and (seen.sum(1) == 1).all() and seen.max() == 1
    blackjack, _ = make_games("Blackjack-v1", 2).reset(0)  # the player's sum, the dealer's card, and a usable ace
    assert blackjack.shape == (2, 32 + 11 + 2) and (blackjack.sum(1) == 3).all()


def test_observations_of_any_length_are_refused() -> None:
    gymnasium.register("Words-v0", Words)
    with pytest.raises(UserError, match="game must have observations of one length; 'Words-v0' has Sequence"):
        make_games("Words-v0", 1)


class Words(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(3))
    action_space = gymnasium.spaces.Discrete(2)


def test_allowed_actions_are_the_games() -> None:
    games = make_games("Taxi-v4", 2)
    _, allowed = games.reset(0)
    assert allowed is not None and allowed.shape == (2, 6) and allowed.dtype == bool and not allowed.all()


@pytest.mark.parametrize(
    ("name", "count", "message"),
    [
        ("Breakot", 1, "near it: .*Breakout.*got 'Breakot'"),
        ("breakout", 1, "near it: Breakout"),
        ("Qwxyz", 1, "game must be an Atari game"),
        ("Nothing-v1", 1, "known to gymnasium; got 'Nothing-v1'"),
        ("Pendulum-v1", 1, "discrete action space; 'Pendulum-v1' has Box"),
        ("ALE/Breakout-v5", 1, "title, here Breakout; got gymnasium's id 'ALE/Breakout-v5'"),
        ("MsPacmanNoFrameskip-v4", 1, "here MsPacman;"),
    ],
)
def test_bad_games_are_refused_in_one_line(name: str, count: int, message: str) -> None:
    with pytest.raises(UserError, match=message) as found:
        make_games(name, count)
    assert "\n" not in str(found.value)


def test_the_papers_games_are_there() -> None:
    assert {"Breakout", "Seaquest", "MsPacman", "SpaceInvaders"} <= set(atari_games())
    assert make_games("Breakout", 1).actions == 4
    assert make_games("Seaquest", 1).actions == 18


def test_without_the_atari_extra_the_others_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)  # as if it were not installed
    check_game("CartPole-v1")
    with pytest.raises(UserError, match=r"with the extra atari, an Atari game; got 'Breakout'"):
        check_game("Breakout")
