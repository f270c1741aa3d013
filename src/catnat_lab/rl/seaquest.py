"""MinAtar's Seaquest without loops: the very states of pgx's, in a fraction of the launches.

pgx moves fish, submarines, bullets and divers one after another, some sixty turns a step, and on a GPU every turn is a
row of small kernels. Nobody's turn depends on another's but by what both reach for, and that can be counted: of those
who stand at one place, as many are served as there is to take, in the order of their turns.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

import jax.numpy as jnp
from jax import Array
from pgx.minatar import seaquest as pgx_seaquest

X, Y, RIGHT, WAIT, SHOT = range(5)  # the columns of fish, submarines and divers; bullets have the first three


def _before(n: int) -> Array:
    """Whether the second index comes before the first."""
    return jnp.tril(jnp.ones((n, n), bool), -1)


def _after(n: int) -> Array:
    """Whether the second index comes after the first: turns go from the last row to the first."""
    return jnp.triu(jnp.ones((n, n), bool), 1)


def _filled(rows: Array) -> Array:
    return (rows != -1).any(-1)


def _moved(rows: Array, moving: Array) -> Array:
    """The rows, those that move a place to the right or to the left."""
    return rows.at[:, X].add(jnp.where(moving, jnp.where(rows[:, RIGHT] != 0, 1, -1), 0))


def _out(rows: Array) -> Array:
    return (rows[:, X] < 0) | (rows[:, X] > 9)


def _at(rows: Array, x: Array, y: Array) -> Array:
    return (rows[:, X] == x) & (rows[:, Y] == y)


def _same_place(some: Array, others: Array) -> Array:
    return (some[:, None, X] == others[None, :, X]) & (some[:, None, Y] == others[None, :, Y])


def _kept(rows: Array, keep: Array) -> Array:
    """Those rows, closed up; empty rows, all -1, follow."""
    n = len(rows)
    place = (_before(n) & keep).sum(1)
    moves = (place == jnp.arange(n)[:, None]) & keep
    return jnp.where(moves[..., None], rows + 1, 0).sum(1) - 1


def _meet(some: Array, seeking: Array, others: Array, there: Array) -> tuple[Array, Array]:
    """Who finds and who is found, when ``some`` in their turns take the first of ``others`` at their place."""
    meets = _same_place(some, others) & seeking[:, None] & there
    earlier = (_same_place(some, some) & _after(len(some)) & seeking).sum(1)
    found_before = (_same_place(others, others) & _before(len(others)) & there).sum(1)
    return seeking & (earlier < meets.sum(1)), there & (found_before < meets.sum(0))


def _update_friendly_bullets(bullets: Array, subs: Array, fish: Array, reward: Array) -> tuple[Array, ...]:
    flying = _filled(bullets)
    bullets = _moved(bullets, flying)
    flying &= ~_out(bullets)
    hit_fish, dead_fish = _meet(bullets, flying, fish, _filled(fish))
    hit_subs, dead_subs = _meet(bullets, flying & ~hit_fish, subs, _filled(subs))
    reward = reward + (dead_fish.sum() + dead_subs.sum())
    return _kept(bullets, flying & ~hit_fish & ~hit_subs), _kept(subs, ~dead_subs), _kept(fish, ~dead_fish), reward


def _update_divers(divers: Array, count: Array, x: Array, y: Array) -> tuple[Array, Array]:
    filled = _filled(divers)
    here = filled & _at(divers, x, y)
    moving = filled & (divers[:, WAIT] == 0)
    moved = _moved(divers, moving)
    wanting = here | (moving & _at(moved, x, y))
    taken = wanting & (count + (_after(len(divers)) & wanting).sum(1) < 6)  # six have room
    waiting = jnp.where(moving, pgx_seaquest.DIVER_MOVE_INTERVAL, divers[:, WAIT] - 1)
    divers = jnp.where(filled[:, None], moved.at[:, WAIT].set(waiting), divers)
    return _kept(divers, filled & ~taken & ~(moving & _out(moved))), count + taken.sum()


def _advance(
    enemies: Array, bullets: Array, x: Array, y: Array, speed: Array
) -> tuple[Array, Array, Array, Array, Array]:
    """Enemies that wait or move, the bullets left, the enemies that stay, the enemies shot, and whether we are hit."""
    filled = _filled(enemies)
    moving = filled & (enemies[:, WAIT] == 0)
    moved = _moved(enemies, moving)
    out, collided = moving & _out(moved), moving & _at(moved, x, y)
    shot, spent = _meet(moved, moving & ~out & ~collided, bullets, _filled(bullets))
    waiting = jnp.where(moving, speed, enemies[:, WAIT] - 1)
    after = jnp.where(filled[:, None], moved.at[:, WAIT].set(waiting), enemies)
    hit = (filled & _at(enemies, x, y)).any() | collided.any()
    return after, _kept(bullets, ~spent), filled & ~out & ~shot, shot, hit


def _update_enemy_subs(
    bullets: Array, subs: Array, torpedoes: Array, x: Array, y: Array, speed: Array, terminal: Array, reward: Array
) -> tuple[Array, ...]:
    subs, bullets, stay, shot, hit = _advance(subs, bullets, x, y, speed)
    firing = stay & (subs[:, SHOT] == 0)
    counting = jnp.where(firing, pgx_seaquest.ENEMY_SHOT_INTERVAL, subs[:, SHOT] - 1)
    torpedoes = _fired(torpedoes, subs[:, : RIGHT + 1], firing)
    subs = jnp.where(stay[:, None], subs.at[:, SHOT].set(counting), subs)
    return bullets, _kept(subs, stay), torpedoes, terminal | hit, reward + shot.sum()


def _fired(torpedoes: Array, new: Array, firing: Array) -> Array:
    """The new torpedoes in the free places, in their turns; where there is none, in the first place."""
    free = torpedoes[:, X] == -1
    turn, place = (_after(len(new)) & firing).sum(1), (_before(len(torpedoes)) & free).sum(1)
    into = free[:, None] & firing & (place[:, None] == turn)
    last = firing & (turn == firing.sum() - 1) & (firing.sum() > free.sum())
    into = into.at[0].set(jnp.where(last.any(), last, into[0]))
    return jnp.where(into.any(1)[:, None], jnp.where(into[..., None], new, 0).sum(1), torpedoes)


def _update_enemy_fish(
    bullets: Array, fish: Array, x: Array, y: Array, speed: Array, terminal: Array, reward: Array
) -> tuple[Array, ...]:
    fish, bullets, stay, shot, hit = _advance(fish, bullets, x, y, speed)
    return bullets, _kept(fish, stay), terminal | hit, reward + shot.sum()


def _remove_out_of_bound(rows: Array, _: Array) -> Array:
    """As pgx's: it asks for x < 0 and y > 9 at once, which no row ever has."""
    return rows


def _stepping() -> Any:
    """pgx's own step, which finds our functions instead of its loops under their names."""
    ours = (
        _update_friendly_bullets,
        _update_divers,
        _update_enemy_subs,
        _update_enemy_fish,
        _remove_out_of_bound,
    )
    names = {**vars(pgx_seaquest), **{function.__name__: function for function in ours}}
    for name in ("_update_enemy_bullets", "_step_det", "_step"):
        names[name] = FunctionType(names[name].__code__, names, name, names[name].__defaults__)
    return names["_step"]


class Seaquest(pgx_seaquest.MinAtarSeaquest):
    """To be used as pgx's."""

    _whole_step = staticmethod(_stepping())

    def _step(self, state: Any, action: Array, key: Array) -> Any:
        state = state.replace(legal_action_mask=self.legal_action_mask)
        chosen = self.minimal_action_set[action] if self.use_minimal_action_set else action
        return self._whole_step(state, chosen, key, self.sticky_action_prob)
