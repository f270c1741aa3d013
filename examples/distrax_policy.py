"""A policy in distrax: REINFORCE on a board where eight moves lead to a goal, and walls forbid some of them.

Both policies mask the moves that leave the board; a masked move is never taken.
Needs: pip install ".[distrax]" optax
"""

import distrax
import jax
import jax.numpy as jnp
import optax

from catnat.integrations.distrax import CatnatCategorical

SIDE, STEPS, GAMES, GOAL = 8, 20, 64, jnp.array([7, 3])
MOVES = jnp.array([(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j])


def play(policy, key):
    """One game: its reward (minus one per step before the goal) and the sum of the moves' log-probabilities."""

    def step(place, key):
        onto = place + MOVES
        allowed = ((onto >= 0) & (onto < SIDE)).all(-1)
        move, log_prob = policy(place, allowed).sample_and_log_prob(seed=key)
        there = (place == GOAL).all()
        return jnp.where(there, place, onto[move]), (jnp.where(there, 0.0, -1.0), jnp.where(there, 0.0, log_prob))

    start = jax.random.randint(key, (2,), 0, SIDE)
    _, (reward, log_prob) = jax.lax.scan(step, start, jax.random.split(key, STEPS))
    return reward.sum(), log_prob.sum()


def reached(width, distribution, updates=600):
    """The mean reward of the last 50 of 600 updates with Adam at 1e-3."""
    features = lambda place: jax.nn.one_hot(place, SIDE).ravel()  # noqa: E731
    weights = [jax.random.normal(jax.random.key(0), (2 * SIDE, 64)) / 4, jnp.zeros((64, width))]
    optimizer = optax.adam(1e-3)

    def loss(weights, key):
        policy = lambda p, allowed: distribution(jnp.tanh(features(p) @ weights[0]) @ weights[1], allowed)  # noqa: E731
        reward, log_prob = jax.vmap(lambda key: play(policy, key))(jax.random.split(key, GAMES))
        return -((reward - reward.mean()) * log_prob).mean(), reward.mean()

    def update(carry, key):
        gradient, reward = jax.grad(loss, has_aux=True)(carry[0], key)
        change, state = optimizer.update(gradient, carry[1])
        return (optax.apply_updates(carry[0], change), state), reward

    keys = jax.random.split(jax.random.key(1), updates)
    return jax.lax.scan(update, (weights, optimizer.init(weights)), keys)[1][-50:].mean()


softmax = reached(8, lambda logits, allowed: distrax.Categorical(logits=jnp.where(allowed, logits, -1e9)))
catnat = reached(8 - 1, lambda scores, allowed: CatnatCategorical(scores, 8, mask=allowed))
print(f"reward per game: softmax {softmax:.2f}, catnat {catnat:.2f}")
