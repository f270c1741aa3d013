"""PPO in one file, in the manner of CleanRL, on CartPole: catnat and softmax differ in two words.

pip install ".[torch]" gymnasium && python examples/cleanrl_ppo.py [steps]
"""

import sys

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import catnat.torch as ct

ENVS, LENGTH, GAMMA, LAMBDA, CLIP = 8, 128, 0.99, 0.95, 0.2
HEADS = {"catnat": (2 - 1, lambda x: ct.CatnatCategorical(x, 2)), "softmax": (2, lambda x: Categorical(logits=x))}


def train(head: str, steps: int) -> float:
    torch.manual_seed(0)
    envs = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * ENVS, autoreset_mode="SameStep")
    outputs, make_policy = HEADS[head]
    actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))
    critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1), nn.Flatten(0))
    nn.init.orthogonal_(actor[-1].weight, 0.01)  # begin near the uniform policy
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-3, eps=1e-5)
    obs, running, returns = torch.from_numpy(envs.reset(seed=0)[0]), np.zeros(ENVS), [0.0]
    for _ in range(steps // (ENVS * LENGTH)):
        rows = []
        with torch.no_grad():
            for _ in range(LENGTH):  # play
                policy, value = make_policy(actor(obs)), critic(obs)
                action = policy.sample()
                new_obs, reward, ended, cut, _ = envs.step(action.numpy())
                done, running = ended | cut, running + reward
                rows.append((obs, action, policy.log_prob(action), value, torch.tensor(reward), torch.tensor(~done)))
                returns += running[done].tolist()
                running[done], obs = 0, torch.from_numpy(new_obs)
            seen, actions, before, values, rewards, goes_on = map(torch.stack, zip(*rows, strict=True))
            advantages = rewards + GAMMA * goes_on * torch.cat([values[1:], critic(obs)[None]]) - values
            for t in reversed(range(LENGTH - 1)):
                advantages[t] += GAMMA * LAMBDA * goes_on[t] * advantages[t + 1]
        batch = [x.flatten(0, 1).float() for x in (seen, actions, before, advantages, advantages + values)]
        for part in [p for _ in range(8) for p in torch.randperm(ENVS * LENGTH).chunk(4)]:  # learn
            x, action, log_before, gain, target = (column[part] for column in batch)
            policy, gain = make_policy(actor(x)), (gain - gain.mean()) / gain.std()
            ratio = (policy.log_prob(action) - log_before).exp()
            clipped = torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain)
            optimizer.zero_grad()
            ((critic(x) - target) ** 2 / 2 - clipped - 0.01 * policy.entropy()).mean().backward()
            nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.5)
            optimizer.step()
    return sum(returns[-20:]) / 20  # of the last twenty episodes


if __name__ == "__main__":
    torch.set_num_threads(1)  # so small a network is fastest on one core
    for head in ("catnat", "softmax"):
        print(f"{head}: return {train(head, int((sys.argv + [40_000])[1])):.0f} of 500")
