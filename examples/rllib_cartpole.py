"""Ray RLlib: PPO on CartPole with catnat and with softmax, one line apart.

pip install ".[rllib]" && python examples/rllib_cartpole.py [iterations]
"""

import logging
import sys

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from catnat.integrations.rllib import CatnatPPOModule


def train(spec: RLModuleSpec, iterations: int) -> float:
    """Mean return of the last iteration's episodes."""
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=8)
        .training(train_batch_size_per_learner=2000, minibatch_size=128, num_epochs=6, lr=1e-3, gamma=0.99)
        .rl_module(rl_module_spec=spec)
        .debugging(seed=0, log_level="ERROR")
    )
    algorithm = config.build_algo()
    for _ in range(iterations):
        result = algorithm.train()
    algorithm.stop()
    return result["env_runners"]["episode_return_mean"]


if __name__ == "__main__":
    iterations = int((sys.argv + [8])[1])
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    for name, spec in {"catnat": RLModuleSpec(CatnatPPOModule), "softmax": RLModuleSpec()}.items():
        print(f"{name}: mean return {train(spec, iterations):.0f} of 500 after {2000 * iterations} steps")
    ray.shutdown()
