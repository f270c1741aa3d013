"""A linear head and its loss over many classes: time and peak memory of one path beside those of all K scores.

Run it on a GPU as `python -m benchmarks.wide [--output FOLDER]`. Each call is a loss and all gradients, in bfloat16.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F

import catnat.torch as ct
from benchmarks.measure import Run, interleave
from catnat_lab.provenance import provenance

COLUMNS = ("what", "contender", "rows", "width", "classes", "microseconds", "by_torch", "peak_mib", "timed")
RIVAL = "torch Linear + cross_entropy"
SAMPLED = 8192  # classes of a sampled softmax


def with_gradients(module: torch.nn.Module, x: torch.Tensor, loss: Callable[[], torch.Tensor]) -> Run:
    """One call: the loss, and the gradients of features and weights."""
    inputs = [x, *(p for p in module.parameters() if p.requires_grad)]
    return lambda: torch.autograd.grad(loss(), inputs)


def contenders(
    rows: int, width: int, classes: int, device: torch.device, dtype: torch.dtype
) -> Iterator[tuple[str, Run]]:
    """Each head with weights of its own, made when it is asked for."""
    torch.manual_seed(0)
    x = torch.randn(rows, width, device=device, dtype=dtype, requires_grad=True)
    target = torch.randint(classes, (rows,), device=device)
    for name, sparse in (("catnat, one path", False), ("catnat, one path, sparse gradient", True)):
        head = ct.CatnatLinear(width, classes, sparse=sparse, device=device, dtype=dtype)
        yield name, with_gradients(head, x, lambda head=head: head.loss(x, target))  # type: ignore[misc]
    linear = torch.nn.Linear(width, classes, device=device, dtype=dtype)
    yield RIVAL, with_gradients(linear, x, lambda: F.cross_entropy(linear(x), target))
    if classes <= 200_000:
        own = torch.nn.Linear(width, classes - 1, device=device, dtype=dtype)
        yield "catnat, all scores", with_gradients(own, x, lambda: ct.cross_entropy(own(x), target))
    try:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss
    except ImportError:
        pass
    else:
        fused = LigerFusedLinearCrossEntropyLoss()
        liger = torch.nn.Linear(width, classes, device=device, dtype=dtype)
        yield "Liger's fused", with_gradients(liger, x, lambda: fused(liger.weight, x, target, liger.bias))
    cutoffs = [classes // 20, classes // 5]
    adaptive = torch.nn.AdaptiveLogSoftmaxWithLoss(width, classes, cutoffs, device=device, dtype=dtype)
    yield "torch adaptive softmax", with_gradients(adaptive, x, lambda: adaptive(x, target).loss)
    table = torch.nn.Embedding(classes, width, device=device, dtype=dtype)

    def sampled() -> torch.Tensor:
        """The targets and so many other classes, drawn anew, in place of all."""
        drawn = torch.randint(classes, (SAMPLED,), device=device)
        own = (table(target) * x).sum(-1, keepdim=True)
        return F.cross_entropy(torch.cat((own, x @ table(drawn).T), 1).float(), torch.zeros_like(target))

    yield f"sampled softmax, {SAMPLED}", with_gradients(table, x, sampled)


def drawing(rows: int, width: int, classes: int, device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, Run]]:
    """One step of sampling."""
    x = torch.randn(rows, width, device=device, dtype=dtype)
    head = ct.CatnatLinear(width, classes, device=device, dtype=dtype)
    linear = torch.nn.Linear(width, classes, device=device, dtype=dtype)
    yield "catnat, one path", lambda: head.sample(x)
    yield RIVAL, lambda: torch.multinomial(linear(x).float().softmax(-1), 1) if classes < 1 << 24 else None


def peak_mib(run: Run, device: torch.device) -> float:
    """What a call allocates at its peak, its results included."""
    if device.type != "cuda":
        return float("nan")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def captured(run: Run) -> Run | None:
    """The same as a CUDA graph: the GPU's own time. None where the host must wait in between."""
    try:
        for _ in range(2):
            run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = run()
    except (RuntimeError, torch.AcceleratorError):
        return None

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
        runs, peaks = {}, {}
        for name, run in (contenders if what == "loss" else drawing)(*size, device, dtype):
            if arguments.only not in name and name != RIVAL:
                continue
            try:
                run()
                peaks[name] = peak_mib(run, device)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                print(f"{what} {name} {size}: {str(error).splitlines()[0][:90]}", flush=True)
                rows.append((what, name, *size, "", "", "", "does not run"))
                continue
            runs[name, "calls"] = run
            if arguments.graphs and cuda and (graph := captured(run)) is not None:
                runs[name, "graph"] = graph
        times = interleave(runs, rounds=arguments.rounds, seconds=arguments.seconds, wait=wait)  # type: ignore[arg-type]
        found = {key: median(values) for key, values in times.items()}
        for (name, timed), seconds in found.items():
            rival = found.get((RIVAL, timed))
            ratio = "" if rival is None else f"{seconds / rival:.4f}"
            row = (what, name, *size, f"{1e6 * seconds:.1f}", ratio, f"{peaks[name]:.1f}", timed)
            rows.append(row)
            print("{:6} {:36} {:>5} {:>5} {:>8} {:>10} {:>8} {:>9} {}".format(*map(str, row)), flush=True)
        del runs, run
        if cuda:
            torch.cuda.empty_cache()
        if arguments.output:
            arguments.output.mkdir(parents=True, exist_ok=True)
            with (arguments.output / "wide.csv").open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows((COLUMNS, *rows))
            facts = provenance(" ".join(["python -m benchmarks.wide", *sys.argv[1:]]), device)
            (arguments.output / "wide.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
