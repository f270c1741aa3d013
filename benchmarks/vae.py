"""Steps a second of the convolutional VAE: stacks of runs against a plain PyTorch loop, in turn, on one device.

Run it as `python -m benchmarks.vae [--device cuda] [--output FOLDER]`. Images are random: they cost what digits cost.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import torch

import catnat.torch as ct
from catnat_lab.devices import Repeated
from catnat_lab.heads import PAPER_HEADS, head
from catnat_lab.provenance import provenance
from catnat_lab.vae.digits import Digits, images_of
from catnat_lab.vae.model import convolutional, cross_entropy, kl_from_uniform
from catnat_lab.vae.train import Plan, Run, Trainer
from tests.lab import plain_autoencoder as plain

PLAN = Plan(variables=20, classes=16, batch=100)
MODEL = convolutional(PLAN.variables, PLAN.classes)


def plain_loop(device: torch.device, name: str) -> Callable[[], None]:
    """One step of one model in torch.nn, as anybody would write it: Adam, straight-through Gumbel samples."""
    encoder, decoder = (module.to(device) for module in plain.modules(MODEL))
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    data = torch.rand(6000, 1, 28, 28, device=device)
    one = head(name, PLAN.classes)

    def step() -> None:
        x = data[torch.randint(len(data), (PLAN.batch,), device=device)]
        scores = encoder(x).view(-1, PLAN.variables, PLAN.classes)
        log_q = one.log_probs(scores[..., : one.width])
        z = torch.nn.functional.gumbel_softmax(log_q, 0.8, hard=True)
        logits = decoder(z.flatten(1))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="sum") / len(x)
        loss = loss + kl_from_uniform(log_q).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def stacked(device: torch.device, runs: int) -> Callable[[], None]:
    """One step of so many runs, the paper's heads in turn."""
    random = torch.randint(0, 256, (12_000, 784), dtype=torch.uint8)
    images = images_of(Digits(random, random[:100], "noise"), ("grey",), False)
    chosen = sorted((Run("grey", PAPER_HEADS[i % 4], 1e-3, i) for i in range(runs)), key=lambda run: run.head)
    trainer = Trainer(chosen, PLAN, images, ("grey",), device)
    done = 0

    def step() -> None:
        nonlocal done
        trainer.step(done)
        done += 1

    return step


def by_vmap(device: torch.device, runs: int) -> Callable[[], None]:
    """The same by torch's own means: modules stacked, their calls mapped, its fused Adam, one captured graph a step.

    Torch's fused Adam takes one rate for a tensor, so it cannot train runs at rates of their own.
    """
    modules = [plain.modules(MODEL) for _ in range(runs)]
    stacks = [torch.func.stack_module_state([pair[i].to(device) for pair in modules]) for i in (0, 1)]
    names = sorted(PAPER_HEADS[i % 4] for i in range(runs))
    heads = [(list(group), head(name, PLAN.classes)) for name, group in groupby(range(runs), key=names.__getitem__)]
    weights = [value for parameters, _ in stacks for value in parameters.values()]
    data = torch.rand(6000, 1, 28, 28, device=device)
    optimizer = torch.optim.Adam(weights, lr=1e-3, fused=True, capturable=device.type == "cuda")

    def network(which: int, x: torch.Tensor) -> torch.Tensor:
        def call(parameters: dict[str, Any], buffers: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(modules[0][which], (parameters, buffers), (x,))

        return torch.func.vmap(call, randomness="different")(*stacks[which], x)

    def once() -> None:
        x = data[torch.randint(len(data), (runs, PLAN.batch), device=device)]
        scores = network(0, x).view(runs, PLAN.batch, PLAN.variables, PLAN.classes)
        log_q = torch.cat([one.log_probs(scores[rows[0] : rows[-1] + 1, ..., : one.width]) for rows, one in heads])
        logits = network(1, ct.latents.gumbel_softmax(log_q, 0.8).flatten(2)).flatten(2)
        bound = cross_entropy(logits, x.flatten(2)) + kl_from_uniform(log_q)
        gradients = torch.autograd.grad(bound.mean(1).sum(), weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient.contiguous()  # torch's fused step wants one layout
        optimizer.step()

    repeated = Repeated(weights, device)
    return lambda: repeated(once)  # which keeps alive what a captured graph reads


def main() -> None:
    """Time and print; with --output, record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vae", description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 4, 16, 40, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of one contender in one round")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.set_float32_matmul_precision("high")
    contenders = {("plain loop, softmax", 1): plain_loop(device, "softmax")}
    contenders[("plain loop, catnat-paper", 1)] = plain_loop(device, "catnat-paper")
    most = max(arguments.runs)
    contenders[("stack_module_state, vmap, fused Adam", most)] = by_vmap(device, most)
    contenders |= {("stacked", runs): stacked(device, runs) for runs in arguments.runs}

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    speeds: dict[tuple[str, int], list[float]] = {key: [] for key in contenders}
    calls = {}
    for key, step in contenders.items():
        for _ in range(4):
            step()
        wait()
        started = time.perf_counter()
        step()
        wait()
        calls[key] = max(1, int(arguments.seconds / (time.perf_counter() - started)))
    for _ in range(arguments.rounds):
        for key, step in contenders.items():
            started = time.perf_counter()
            for _ in range(calls[key]):
                step()
            wait()
            speeds[key].append(key[1] * calls[key] / (time.perf_counter() - started))
    rival = median(speeds["plain loop, softmax", 1])
    rows = [(name, runs, f"{median(v):.0f}", f"{median(v) / rival:.2f}") for (name, runs), v in speeds.items()]
    columns = ("contender", "runs", "steps_per_second", "by_plain_softmax")
    for row in (columns, *rows):
        print(f"{row[0]:38} {row[1]:>5} {row[2]:>18} {row[3]:>18}")
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        with (arguments.output / f"throughput-{device.type}.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows((columns, *rows))
        facts = provenance(" ".join(["python -m benchmarks.vae", *sys.argv[1:]]), device)
        (arguments.output / f"throughput-{device.type}.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
