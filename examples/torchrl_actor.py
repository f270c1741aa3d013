"""TorchRL: an actor of a contextual bandit with forbidden arms, trained by REINFORCE, with catnat and with softmax.

pip install ".[torchrl]" && python examples/torchrl_actor.py [steps]
"""

import sys

import torch
from tensordict import TensorDict
from tensordict.nn import InteractionType, TensorDictModule, set_interaction_type
from torchrl.data import Categorical
from torchrl.modules import MaskedCategorical, ProbabilisticActor

from catnat.integrations.torchrl import catnat_actor

ARMS, FEATURES, ROWS = 16, 8, 256


def network(outputs: int, name: str) -> TensorDictModule:
    layers = torch.nn.Sequential(torch.nn.Linear(FEATURES, 64), torch.nn.Tanh(), torch.nn.Linear(64, outputs))
    return TensorDictModule(layers, in_keys=["observation"], out_keys=[name])


def train(actor: ProbabilisticActor, steps: int) -> float:
    """Mean reward of the likeliest allowed arm, as a share of the best one's."""
    rewards_of = torch.randn(FEATURES, ARMS)  # what an arm pays is linear in what is seen
    optimizer = torch.optim.Adam(actor.parameters(), lr=3e-3)

    def play() -> tuple[TensorDict, torch.Tensor, torch.Tensor]:
        seen, mask = torch.randn(ROWS, FEATURES), torch.rand(ROWS, ARMS) < 0.5
        mask[:, 0] = True  # one arm is always allowed
        pays = (seen @ rewards_of).masked_fill(~mask, -torch.inf)
        out = actor(TensorDict({"observation": seen, "action_mask": mask}, [ROWS]))
        return out, pays.gather(1, out["action"][:, None])[:, 0], pays.amax(1)

    for _ in range(steps):
        out, reward, _ = play()
        optimizer.zero_grad()
        (-out["action_log_prob"] * (reward - reward.mean())).mean().backward()
        optimizer.step()
    with torch.no_grad(), set_interaction_type(InteractionType.DETERMINISTIC):
        _, reward, best = play()
    return float(reward.mean() / best.mean())


if __name__ == "__main__":
    torch.set_num_threads(1)  # so small a network is fastest on one core
    steps = int((sys.argv + [1500])[1])
    common = {"return_log_prob": True, "default_interaction_type": InteractionType.RANDOM}
    keys = {"logits": "logits", "mask": "action_mask"}
    for name in ("catnat", "softmax"):
        torch.manual_seed(0)
        if name == "catnat":
            actor = catnat_actor(network(ARMS - 1, "scores"), Categorical(ARMS), mask_key="action_mask", **common)
        else:
            actor = ProbabilisticActor(network(ARMS, "logits"), keys, distribution_class=MaskedCategorical, **common)
        print(f"{name}: {train(actor, steps):.0%} of the best reward after {steps} steps")
