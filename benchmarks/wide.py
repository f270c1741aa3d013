"""A linear head and its loss over many classes: time and peak memory of one path beside those of all K scores.

Run it on a GPU as `python -m benchmarks.wide [--output FOLDER]`. Each call is a loss and all gradients, in bfloat16.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

import catnat.torch as ct
from benchmarks.measure import Run, interleave
from catnat_lab.provenance import provenance

COLUMNS = ("what", "contender", "rows", "width", "classes", "microseconds", "by_torch", "peak_mib", "timed")
RIVAL = "torch Linear + cross_entropy"
CAPTURED = ("catnat, one path", RIVAL)  # by CUDA graphs too; the host of others waits in between
MAX_TOGETHER = 1 << 31  # weights
SAMPLED = 8192  # classes of a sampled softmax


Make = Callable[[int, int, int, torch.device, torch.dtype], Run]


def head_run(
    make: Callable[..., torch.nn.Module], loss: Callable[[torch.nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]
) -> Make:
    """One call: the loss of a head of one's own, and the gradients of features and weights."""

    def made(rows: int, width: int, classes: int, device: torch.device, dtype: torch.dtype) -> Run:
        torch.manual_seed(0)
        x = torch.randn(rows, width, device=device, dtype=dtype, requires_grad=True)
        target = torch.randint(classes, (rows,), device=device)
        head = make(width, classes, device=device, dtype=dtype)
        inputs = [x, *head.parameters()]
        return lambda: torch.autograd.grad(loss(head, x, target), inputs, allow_unused=True)

    return made


def fused(head: torch.nn.Module, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Chunks of rows at a time, with the gradients worked out on the way."""
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    found: torch.Tensor = LigerFusedLinearCrossEntropyLoss()(head.weight, x, target, head.bias)
    return found


def sampled(table: torch.nn.Module, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The target and so many other classes, drawn anew, in place of all."""
    drawn = torch.randint(len(table.weight), (SAMPLED,), device=x.device)  # type: ignore[arg-type]
    own = (table(target) * x).sum(-1, keepdim=True)
    return F.cross_entropy(torch.cat((own, x @ table(drawn).T), 1).float(), torch.zeros_like(target))


def adaptive(width: int, classes: int, **like: Any) -> torch.nn.Module:
    """A twentieth of the classes at once, the rest in two parts."""
    return torch.nn.AdaptiveLogSoftmaxWithLoss(width, classes, [classes // 20, classes // 5], **like)


CONTENDERS: dict[str, Make] = {
    "catnat, one path": head_run(ct.CatnatLinear, lambda head, x, target: head.loss(x, target)),
    "catnat, one path, sparse gradient": head_run(
        partial(ct.CatnatLinear, sparse=True), lambda head, x, target: head.loss(x, target)
    ),
    RIVAL: head_run(torch.nn.Linear, lambda head, x, target: F.cross_entropy(head(x), target)),
    "catnat, all scores": head_run(
        lambda width, classes, **like: torch.nn.Linear(width, classes - 1, **like),
        lambda head, x, target: ct.cross_entropy(head(x), target),
    ),
    "Liger's fused": head_run(torch.nn.Linear, fused),
    "torch adaptive softmax": head_run(adaptive, lambda head, x, target: head(x, target).loss),
    f"sampled softmax, {SAMPLED}": head_run(
        lambda width, classes, **like: torch.nn.Embedding(classes, width, **like), sampled
    ),
}


def draw_run(make: Callable[..., Any], draw: Callable[[Any, torch.Tensor], torch.Tensor]) -> Make:
    """One step of sampling."""

    def made(rows: int, width: int, classes: int, device: torch.device, dtype: torch.dtype) -> Run:
        x, head = torch.randn(rows, width, device=device, dtype=dtype), make(width, classes, device=device, dtype=dtype)
        return torch.no_grad()(lambda: draw(head, x))

    return made


DRAWING: dict[str, Make] = {
    "catnat, one path": draw_run(ct.CatnatLinear, lambda head, x: head.sample(x)),
    RIVAL: draw_run(torch.nn.Linear, lambda head, x: torch.multinomial(head(x).float().softmax(-1), 1)),
}


def peak_mib(run: Run, device: torch.device) -> float:
    """What a call allocates at its peak, its results included."""
    if device.type != "cuda":
        return float("nan")
    gc.collect()  # garbage that is freed while it runs would count as memory that it did not take
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = run()
    torch.cuda.synchronize()
    found = torch.cuda.max_memory_allocated() - before
    del result
    return found / 2**20


def captured(run: Run) -> Run:
    """The same as a CUDA graph: the GPU's own time."""
    for _ in range(2):
        run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()

    def replay(keeps: object = (run, result)) -> None:  # what the graph reads and writes must live
        graph.replay()

    return replay


def main() -> None:
    """Time and print; with --output, record as they come."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wide", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, nargs="+", default=[256, 2048, 8192])
    parser.add_argument("--widths", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--classes", type=int, nargs="+", default=[10_000, 32_768, 131_072, 1_000_000])
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 32, 256], help="of one step of sampling")
    parser.add_argument("--only", default="", help="contenders whose name holds this text, beside torch's")
    parser.add_argument("--graphs", action="store_true", help="time CUDA graphs too, where they can be captured")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.02)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    device, dtype = torch.device(arguments.device), torch.bfloat16
    cuda = device.type == "cuda"
    wait = (lambda result: torch.cuda.synchronize()) if cuda else (lambda result: None)
    sizes = [("loss", r, w, k) for w in arguments.widths for k in arguments.classes for r in arguments.rows]
    sizes += [("sample", r, w, k) for w in arguments.widths for k in arguments.classes for r in arguments.batches]
    rows: list[tuple[object, ...]] = []
    for what, *size in sizes:
        peaks: dict[str, float] = {}
        found: dict[tuple[str, str], float] = {}
        runs: dict[tuple[str, str], Run] = {}
        # very large heads are timed one by one, so that each has the whole memory
        alone = size[1] * size[2] > MAX_TOGETHER
        names = [
            name for name in (CONTENDERS if what == "loss" else DRAWING) if arguments.only in name or name == RIVAL
        ]
        for name in names:
            try:
                run = (CONTENDERS if what == "loss" else DRAWING)[name](*size, device, dtype)
                run()
                peaks[name] = peak_mib(run, device)
                runs[name, "calls"] = run
                if arguments.graphs and cuda and name in CAPTURED:
                    runs[name, "graph"] = captured(run)
            except (torch.OutOfMemoryError, RuntimeError, ImportError) as error:
                print(f"{what} {name} {size}: {str(error).splitlines()[0][:90]}", flush=True)
                rows.append((what, name, *size, "", "", "", "does not run"))
            if runs and (alone or name == names[-1]):
                times = interleave(runs, rounds=arguments.rounds, seconds=arguments.seconds, wait=wait)  # type: ignore[arg-type]
                found |= {key: median(values) for key, values in times.items()}
                runs, run = {}, None
                if cuda:
                    torch.cuda.empty_cache()
        for (name, timed), seconds in found.items():
            rival = found.get((RIVAL, timed))
            ratio = "" if rival is None else f"{seconds / rival:.4f}"
            row = (what, name, *size, f"{1e6 * seconds:.1f}", ratio, f"{peaks[name]:.1f}", timed)
            rows.append(row)
            print("{:6} {:36} {:>5} {:>5} {:>8} {:>10} {:>8} {:>9} {}".format(*map(str, row)), flush=True)
        if arguments.output:
            arguments.output.mkdir(parents=True, exist_ok=True)
            with (arguments.output / "wide.csv").open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows((COLUMNS, *rows))
            facts = provenance(" ".join(["python -m benchmarks.wide", *sys.argv[1:]]), device)
            (arguments.output / "wide.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
