"""Reinforcement learning: PPO with any head as its policy, on Atari, on gymnasium's small problems and on MinAtar."""
