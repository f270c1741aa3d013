"""REINFORCE with masks: learn a short round trip through fourteen cities, with catnat and with softmax.

The policy sees where it is and where it has been, and chooses the next city; a city that was visited is forbidden.

pip install ".[torch]" && python examples/reinforce_masks.py [steps]
"""

import sys

import torch
from torch.distributions import Categorical

import catnat.torch as ct

CITIES, TRIPS = 14, 256


def catnat_policy(scores: torch.Tensor, allowed: torch.Tensor) -> Categorical:
    return ct.CatnatCategorical(scores, CITIES, mask=allowed)


def softmax_policy(logits: torch.Tensor, allowed: torch.Tensor) -> Categorical:
    return Categorical(logits=logits.masked_fill(~allowed, -1e9))


def travel(network, policy, distances: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Length and log-probability of every trip."""
    here, start = torch.zeros(TRIPS, dtype=torch.long), torch.zeros(TRIPS, dtype=torch.long)
    allowed = torch.ones(TRIPS, CITIES, dtype=torch.bool).scatter(1, here[:, None], False)
    length, log_prob = torch.zeros(TRIPS), torch.zeros(TRIPS)
    for _ in range(CITIES - 1):
        seen = torch.cat([torch.nn.functional.one_hot(here, CITIES), allowed], -1).float()
        choice = policy(network(seen), allowed)
        city = choice.sample()
        log_prob, length = log_prob + choice.log_prob(city), length + distances[here, city]
        allowed, here = allowed.scatter(1, city[:, None], False), city
    return length + distances[here, start], log_prob


if __name__ == "__main__":
    torch.set_num_threads(1)  # so small a network is fastest on one core
    steps = int((sys.argv + [400])[1])
    places = torch.rand(CITIES, 2, generator=torch.Generator().manual_seed(0))
    for name, policy, outputs in (("catnat", catnat_policy, CITIES - 1), ("softmax", softmax_policy, CITIES)):
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Linear(2 * CITIES, 128), torch.nn.Tanh(), torch.nn.Linear(128, outputs))
        optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
        lengths = []
        for _ in range(steps):
            length, log_prob = travel(network, policy, torch.cdist(places, places))
            optimizer.zero_grad()
            ct.score_function(length, log_prob, ct.LeaveOneOut()).mean().backward()
            optimizer.step()
            lengths.append(float(length.mean()))
        print(f"{name}: a trip of {lengths[-1]:.2f} after {steps} steps, {lengths[0]:.2f} at first")
