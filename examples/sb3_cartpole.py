"""Stable-Baselines3: PPO on CartPole with catnat and with softmax, all settings SB3's own.

pip install ".[sb3]" && python examples/sb3_cartpole.py [steps]
"""

import sys

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy

from catnat.integrations.sb3 import CatnatPolicy

if __name__ == "__main__":
    torch.set_num_threads(1)  # so small a network is fastest on one core
    for name, policy in {"catnat": CatnatPolicy, "softmax": "MlpPolicy"}.items():
        model = PPO(policy, "CartPole-v1", seed=0, device="cpu")
        model.learn(int((sys.argv + [12_000])[1]))
        mean, spread = evaluate_policy(model, model.get_env(), n_eval_episodes=10)
        print(f"{name}: return {mean:.0f} ± {spread:.0f} of 500 after {model.num_timesteps} steps")
        # model.save("cartpole") and PPO.load("cartpole") work as ever
