"""sb3-contrib: MaskablePPO on a game where most moves are forbidden, with catnat and with softmax.

A card game of patience: each turn shows a number, the player discards one of twelve cards and is paid for a near match.
A card is gone once it is played, and the mask says so.

pip install ".[sb3]" && python examples/maskable_ppo.py [steps]
"""

import sys

import gymnasium as gym
import numpy as np
import torch
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from stable_baselines3.common.env_util import make_vec_env

from catnat.integrations.sb3_contrib import MaskableCatnatPolicy

CARDS = 12


class Patience(gym.Env):
    """Match every number with a card; 12 turns, at most 1 a turn."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(0, 1, (2 * CARDS,), np.float32)
        self.action_space = gym.spaces.Discrete(CARDS)

    def _see(self) -> np.ndarray:
        asked = np.eye(CARDS)[self.asked[CARDS - self.hand.sum()]] if self.hand.any() else np.zeros(CARDS)
        return np.concatenate([asked, self.hand]).astype(np.float32)

    def action_masks(self) -> np.ndarray:
        return self.hand

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.hand, self.asked = np.ones(CARDS, bool), self.np_random.permutation(CARDS)
        return self._see(), {}

    def step(self, card: int):
        assert self.hand[card], "this card is gone"
        reward = 1 - abs(self.asked[CARDS - self.hand.sum()] - card) / CARDS
        self.hand[card] = False
        return self._see(), float(reward), not self.hand.any(), False, {}


if __name__ == "__main__":
    torch.set_num_threads(1)  # so small a network is fastest on one core
    for name, policy in {"catnat": MaskableCatnatPolicy, "softmax": "MlpPolicy"}.items():
        model = MaskablePPO(policy, make_vec_env(Patience, 8), n_steps=128, batch_size=256, seed=0, device="cpu")
        model.learn(int((sys.argv + [20_000])[1]))
        mean, spread = evaluate_policy(model, model.get_env(), n_eval_episodes=100)
        print(f"{name}: return {mean:.1f} ± {spread:.1f} of {CARDS} after {model.num_timesteps} steps")
