"""Steps a second of PPO's updates, play and learning, beside the games alone and a plain eager loop, in one run.

Run it as `python -m benchmarks.rl [--device cuda] [--game Breakout] [--envs 8 64] [--output FOLDER]`. The contenders
take turns, one rollout each, and medians and quartiles are taken. All of them leave the cores to the games: with a GPU
torch has one thread.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import quantiles

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

from catnat_lab.devices import one_thread
from catnat_lab.provenance import provenance
from catnat_lab.rl.games import Atari, make_games
from catnat_lab.rl.ppo import ActorCritic, Learner, Settings

COLUMNS = ("contender", "envs", "steps_per_second", "low", "high", "of_games_alone", "by_plain_loop")


def games_alone(settings: Settings) -> Callable[[], None]:
    """The games by actions drawn before, and nothing else: of Atari ale-py's own step, without our bookkeeping."""
    games = make_games(settings.game, settings.envs)
    games.reset(1)
    step = games.env.step if isinstance(games, Atari) else games.step
    actions = np.random.default_rng(0).integers(0, games.actions, (settings.rollout, settings.envs))

    def rollout() -> None:
        for chosen in actions:
            step(chosen)

    return rollout


def ours(settings: Settings, device: torch.device) -> Callable[[], object]:
    """One update of our learner."""
    learner = Learner(settings, make_games(settings.game, settings.envs), device)
    return learner.update


def plain_loop(settings: Settings, device: torch.device) -> Callable[[], None]:
    """PPO with softmax as anybody would write it: torch.distributions, one call after another, the same games."""
    games = make_games(settings.game, settings.envs)
    seen, _ = games.reset(1)
    network = ActorCritic(games.observation, games.actions).to(device)
    optimizer = torch.optim.Adam(network.parameters(), settings.rate, eps=1e-5)
    steps, copies = settings.rollout, settings.envs
    observations = torch.zeros((steps, *seen.shape), device=device)
    actions, log_probs, rewards, ends, values = (torch.zeros((steps, copies), device=device) for _ in range(5))
    now = torch.tensor(seen, device=device)
    end = torch.zeros(copies, device=device)

    def update() -> None:
        nonlocal now, end
        for t in range(steps):
            observations[t], ends[t] = now, end
            with torch.no_grad():
                scores, value = network(now)
                policy = Categorical(logits=scores)
                action = policy.sample()
            actions[t], log_probs[t], values[t] = action, policy.log_prob(action), value
            step = games.step(action.cpu().numpy())
            rewards[t] = torch.tensor(np.sign(step.reward), device=device)
            now = torch.tensor(step.observation, device=device)
            end = torch.tensor(step.lost, device=device, dtype=torch.float32)
        with torch.no_grad():
            following, advantages, carried = network(now)[1], torch.zeros_like(rewards), 0.0
            for t in reversed(range(steps)):
                last = t == steps - 1
                goes_on, after = 1 - (end if last else ends[t + 1]), following if last else values[t + 1]
                surprise = rewards[t] + settings.discount * after * goes_on - values[t]
                advantages[t] = carried = surprise + settings.discount * settings.gae_lambda * goes_on * carried
            returns = advantages + values
        for _ in range(settings.epochs):
            for rows in torch.randperm(settings.batch, device=device).view(settings.minibatches, -1):
                scores, value = network(observations.flatten(0, 1)[rows])
                policy = Categorical(logits=scores)
                ratio = (policy.log_prob(actions.flatten()[rows]) - log_probs.flatten()[rows]).exp()
                advantage = advantages.flatten()[rows]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                near = ratio.clamp(1 - settings.clip, 1 + settings.clip)
                goal, before = returns.flatten()[rows], values.flatten()[rows]
                close = before + (value - before).clamp(-settings.clip, settings.clip)
                value_loss = 0.5 * torch.max((value - goal) ** 2, (close - goal) ** 2).mean()
                loss = torch.max(-advantage * ratio, -advantage * near).mean()
                loss = loss - settings.entropy * policy.entropy().mean() + settings.value * value_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(network.parameters(), settings.max_grad_norm)
                optimizer.step()

    return update


def main() -> None:
    """Time and print; with --output, record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rl", description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--game", default="Breakout")
    parser.add_argument("--envs", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--rollout", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.set_float32_matmul_precision("high")
    with one_thread(device):
        rows = timed(arguments, device)
    for row in (COLUMNS, *rows):
        print(f"{row[0]:22} {row[1]:>5} {row[2]:>17} {row[3]:>7} {row[4]:>7} {row[5]:>15} {row[6]:>14}")
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        name = f"throughput-{arguments.game.lower()}-{device.type}"
        with (arguments.output / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows((COLUMNS, *rows))
        facts = provenance(" ".join(["python -m benchmarks.rl", *sys.argv[1:]]), device)
        (arguments.output / f"{name}.json").write_text(json.dumps(facts, indent=2) + "\n")


def timed(arguments: argparse.Namespace, device: torch.device) -> list[tuple[str, ...]]:
    """The rows of the table."""
    rows = []
    for envs in arguments.envs:
        settings = replace(Settings(game=arguments.game), envs=envs, rollout=arguments.rollout)
        contenders: dict[str, Callable[[], object]] = {
            "games alone": games_alone(settings),
            "plain loop, softmax": plain_loop(settings, device),
            "ours, softmax": ours(replace(settings, head="softmax"), device),
            "ours, catnat-paper": ours(replace(settings, head="catnat-paper"), device),
        }
        speeds: dict[str, list[float]] = {name: [] for name in contenders}
        for round_ in range(arguments.rounds + 1):
            for name, rollout in contenders.items():
                started = time.perf_counter()
                rollout()
                if device.type == "cuda":
                    torch.cuda.synchronize()
                if round_:  # the first captures graphs and fills caches
                    speeds[name].append(settings.batch / (time.perf_counter() - started))
        found = {name: quantiles(values, n=4, method="inclusive") for name, values in speeds.items()}
        alone, plain = found["games alone"][1], found["plain loop, softmax"][1]
        for name, (low, middle, high) in found.items():
            ratios = f"{middle / alone:.3f}", f"{middle / plain:.2f}"
            rows.append((name, f"{envs}", f"{middle:.0f}", f"{low:.0f}", f"{high:.0f}", *ratios))
    return rows


if __name__ == "__main__":
    main()
