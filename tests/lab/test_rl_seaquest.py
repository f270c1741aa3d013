"""Seaquest without loops is pgx's Seaquest: in crowded states of every kind, and in play."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pgx")
import jax
import jax.numpy as jnp
import pgx
from pgx.minatar import seaquest as theirs

from catnat_lab.rl import seaquest as ours

CASES = 2000
# where things stand close, many meet; beyond the edges only torpedoes can be
LEFT, RIGHT, TOP, BOTTOM = 3, 6, 4, 6


def crowd(random: np.random.Generator, rows: int, columns: int, edges: bool = False) -> jax.Array:
    """Rows from none to all of them, the empty ones last."""
    found = np.zeros((CASES, rows, columns), np.int32)
    found[..., 0] = random.integers(LEFT, RIGHT, (CASES, rows))
    some = random.random((CASES, rows)) < 0.1
    found[..., 0] = np.where(some, random.choice([-1, 10] if edges else [0, 9], (CASES, rows)), found[..., 0])
    found[..., 1] = random.integers(TOP, BOTTOM, (CASES, rows))
    found[..., 2] = random.integers(0, 2, (CASES, rows))
    found[..., 3:] = random.integers(0, 3, (CASES, rows, columns - 3))
    filled = np.arange(rows) < random.integers(0, rows + 1, (CASES, 1))
    return jnp.array(np.where(filled[..., None], found, -1))


def places(random: np.random.Generator) -> tuple[jax.Array, jax.Array]:
    x, y = random.integers(LEFT, RIGHT, CASES), random.integers(TOP, BOTTOM, CASES)
    return jnp.array(x, jnp.int32), jnp.array(y, jnp.int32)


def states(name: str, random: np.random.Generator) -> tuple[jax.Array, ...]:
    bullets, fish, subs = crowd(random, 5, 3), crowd(random, 25, 4), crowd(random, 25, 5)
    terminal, reward = jnp.array(random.random(CASES) < 0.1), jnp.zeros(CASES)
    speed = jnp.array(random.integers(2, 6, CASES), jnp.int32)
    if name == "_update_friendly_bullets":
        return bullets, subs, fish, reward
    if name == "_update_divers":
        return crowd(random, 5, 4), jnp.array(random.integers(0, 7, CASES), jnp.int32), *places(random)
    if name == "_update_enemy_subs":
        return bullets, subs, crowd(random, 25, 3, edges=True), *places(random), speed, terminal, reward
    return bullets, fish, *places(random), speed, terminal, reward


@pytest.mark.parametrize(
    "name", ["_update_friendly_bullets", "_update_divers", "_update_enemy_subs", "_update_enemy_fish"]
)
def test_counting_comes_to_what_taking_turns_comes_to(name: str) -> None:
    given = states(name, np.random.default_rng(5))

    def changed(module: Any) -> Callable[..., Any]:
        return jax.jit(jax.vmap(getattr(module, name)))

    for mine, other in zip(changed(ours)(*given), changed(theirs)(*given), strict=True):
        assert mine.dtype == other.dtype
        np.testing.assert_array_equal(mine, other)


@pytest.mark.slow
def test_play_is_the_same() -> None:
    """Every field of the state at every step, through ends of games."""

    def played(game: Any) -> Any:
        def step(state: Any, key: jax.Array) -> tuple[Any, Any]:
            drawing, stepping = jax.random.split(key)
            actions = jax.random.choice(drawing, 6, (128,), p=jnp.array([0.02, 0.2, 0.05, 0.2, 0.18, 0.35]))
            after = jax.vmap(game.step)(state, actions, jax.random.split(stepping, 128))
            return after, after

        begun = jax.vmap(game.init)(jax.random.split(jax.random.PRNGKey(0), 128))
        return jax.jit(lambda keys: jax.lax.scan(step, begun, keys)[1])(jax.random.split(jax.random.PRNGKey(1), 150))

    mine, other = played(ours.Seaquest()), played(pgx.make("minatar-seaquest"))
    jax.tree.map(np.testing.assert_array_equal, mine, other)
    assert mine.terminated[-1].sum() > 50 and mine.rewards.sum() > 50  # there was something to compare
