"""The latent module against the same program with torch's own Gumbel-softmax: forward and backward, interleaved.

python -m benchmarks.latents [--device cuda] [--how eager | compile | graph]
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

import catnat.torch as ct

SIZES = ((128, 32, 32, 512), (4096, 1, 512, 64))  # rows, variables, classes, features


def theirs(linear: torch.nn.Linear, h: Tensor, classes: int) -> Tensor:
    """Samples and the KL from the uniform prior, as written by hand."""
    logits = linear(h).unflatten(-1, (-1, classes))
    z, log_q = F.gumbel_softmax(logits, tau=0.5, hard=True), logits.log_softmax(-1)
    return z.sum() + (log_q.exp() * (log_q + math.log(classes))).sum((-1, -2)).mean()


def ours(latent: ct.CategoricalLatent, h: Tensor) -> Tensor:
    """The module."""
    q = latent(h)
    return q.z.sum() + q.loss().mean()


def step(call: Callable[[], Tensor]) -> None:
    """One forward and backward."""
    call().backward()


def captured(call: Callable[[], None]) -> Callable[[], None]:
    """The same as one CUDA graph: what is left is the GPU's own time."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def milliseconds(call: Callable[[], None], device: str, calls: int) -> float:
    """Of one step."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls * 1e3


def main() -> None:
    """A line a size and head: the ratio of the medians, and the milliseconds of torch's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--how", choices=("eager", "compile", "graph"), default="eager", help="how all programs run")
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    calls = 20 if arguments.device == "cuda" else 1
    for rows, variables, classes, features in SIZES:
        h = torch.randn(rows, features, device=arguments.device)
        linear = torch.nn.Linear(features, variables * classes, device=arguments.device)
        contenders: dict[str, Callable[[], Tensor]] = {"torch": partial(theirs, linear, h, classes)}
        for head in ("natural", "softmax"):
            latent = ct.CategoricalLatent(features, variables, classes, head=head, device=arguments.device)
            contenders[head] = partial(ours, latent, h)
        if arguments.how == "compile":
            contenders = {name: torch.compile(call, fullgraph=True) for name, call in contenders.items()}
        steps = {name: partial(step, call) for name, call in contenders.items()}
        if arguments.how == "graph":
            steps = {name: captured(call) for name, call in steps.items()}
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(arguments.rounds + 3):
            for name, run in steps.items():
                times[name].append(milliseconds(run, arguments.device, calls))
        times = {name: found[3:] for name, found in times.items()}  # the first ones compile
        for head in ("natural", "softmax"):
            ratio = median(times[head]) / median(times["torch"])
            print(f"{rows} x {variables} x {classes} {head:8} {ratio:.2f} of torch's {median(times['torch']):.2f} ms")


if __name__ == "__main__":
    main()
