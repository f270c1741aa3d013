"""What tests of reinforcement learning share."""

from __future__ import annotations

import gymnasium


def short_cartpole(steps: int) -> str:
    """The name of a CartPole that time ends after so many steps."""
    name = f"ShortCartPole{steps}-v0"
    if name not in gymnasium.registry:
        entry = gymnasium.spec("CartPole-v1").entry_point
        gymnasium.register(name, entry, max_episode_steps=steps)
    return name
