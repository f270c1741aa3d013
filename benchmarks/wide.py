"""A linear head and its loss over many classes: time and peak memory of one path beside those of all K scores.

Run it on a GPU as `python -m benchmarks.wide [--output FOLDER]`, or with `--device cpu --parts CPU`. Each call is a
loss and all gradients, in bfloat16 on a GPU and in float32 on a CPU. What a folder has is not timed again,
so that a run can be cut off and go on.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import catnat
import catnat.torch as ct
from benchmarks.measure import Run, interleave
from catnat_lab.provenance import provenance

COLUMNS = (
    "part", "what", "contender", "rows", "width", "classes",
    "microseconds", "by_torch", "peak_mib", "extra_mib", "timed",
)  # fmt: skip
RIVAL = "torch Linear + cross_entropy"
CAPTURED = ("catnat, one path", "catnat, one path, Huffman tree", RIVAL)  # by CUDA graphs too; the host of others waits
MAX_TOGETHER = 1 << 31  # weights
MAX_CAPTURED = 40_000  # MiB; a graph has memory of its own
NO_ROOM = "out of memory"
SAMPLED = 8192  # classes of a sampled softmax


@dataclass(frozen=True)
class Part:
    """Sizes, and who is timed on them."""

    rows: tuple[int, ...]
    widths: tuple[int, ...]
    classes: tuple[int, ...]
    contenders: tuple[str, ...] = ()  # all but the Huffman tree
    graphs: bool = False

    def names(self) -> list[str]:
        """Of the contenders."""
        return [n for n in CONTENDERS if (n in self.contenders if self.contenders else "Huffman" not in n)]


PATHS = ("catnat, one path", RIVAL)
PARTS = {
    "large": Part((8192,), (4096,), (131_072,), (*PATHS, "catnat, one path, Huffman tree"), graphs=True),
    "middle": Part((2048,), (1024,), (32_768,), (*PATHS, "catnat, one path, Huffman tree"), graphs=True),
    "over K": Part((2048,), (256,), tuple(10**i for i in range(3, 8)), PATHS, graphs=True),
    "grid": Part((8192, 2048, 256), (4096, 1024, 256), (10_000, 32_768, 131_072, 1_000_000)),
    "CPU": Part((256,), (128,), (20_000, 200_000), PATHS),
    "smoke": Part((4,), (8,), (100,)),
}  # fmt: skip
BATCHES = (1, 32, 256)  # of one step of sampling, of the two first parts


Row = tuple[Any, ...]
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
    """The target and so many other classes, drawn anew, in place of all; the gradient is sparse."""
    drawn = torch.randint(len(table.weight), (SAMPLED,), device=x.device)  # type: ignore[arg-type]
    chosen = table(torch.cat((target, drawn)))
    own = (chosen[: len(target)] * x).sum(-1, keepdim=True)
    return F.cross_entropy(torch.cat((own, x @ chosen[len(target) :].T), 1), torch.zeros_like(target))


def adaptive(width: int, classes: int, **like: Any) -> torch.nn.Module:
    """A twentieth of the classes at once, the rest in two parts."""
    return torch.nn.AdaptiveLogSoftmaxWithLoss(width, classes, [classes // 20, classes // 5], **like)


def all_scores(head: torch.nn.Module, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Of every node, for the loss of all classes."""
    assert isinstance(head, ct.CatnatLinear)
    return ct.cross_entropy(head.scores(x), target, head.parameterization)


def huffman(width: int, classes: int, **like: Any) -> torch.nn.Module:
    """A tree for Zipf's law. Here all targets are as likely, so that its paths are longer than a balanced tree's."""
    tree = catnat.Tree.huffman(1 / np.arange(1, classes + 1))
    return ct.CatnatLinear(width, catnat.Parameterization(classes, tree=tree), **like)


CONTENDERS: dict[str, Make] = {
    "catnat, one path": head_run(ct.CatnatLinear, lambda head, x, target: head.loss(x, target)),
    "catnat, one path, Huffman tree": head_run(huffman, lambda head, x, target: head.loss(x, target)),
    RIVAL: head_run(torch.nn.Linear, lambda head, x, target: F.cross_entropy(head(x), target)),
    "catnat, all scores": head_run(ct.CatnatLinear, all_scores),
    "Liger's fused": head_run(torch.nn.Linear, fused),
    "torch adaptive softmax": head_run(adaptive, lambda head, x, target: head(x, target).loss),
    f"sampled softmax, {SAMPLED}": head_run(
        lambda width, classes, **like: torch.nn.Embedding(classes, width, sparse=True, **like), sampled
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


def memory_of(run: Run, device: torch.device) -> tuple[float, float]:
    """MiB that a call allocates at its peak, and how much of that its results are not."""
    if device.type != "cuda":
        return float("nan"), float("nan")
    gc.collect()  # garbage that is freed while it runs would count as memory that it did not take
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = run()
    torch.cuda.synchronize()
    peak, kept = torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before
    del result
    return peak / 2**20, (peak - kept) / 2**20


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


def measure(
    part: str, what: str, names: list[str], size: tuple[int, int, int], device: torch.device, **timing: Any
) -> list[Row]:
    """The rows of one size."""
    makers = CONTENDERS if what == "loss" else DRAWING
    cuda = device.type == "cuda"
    wait = (lambda result: torch.cuda.synchronize()) if cuda else (lambda result: None)
    memory: dict[str, tuple[float, float]] = {}
    found: dict[tuple[str, str], float] = {}
    runs: dict[tuple[str, str], Run] = {}
    rows: list[Row] = []
    # very large heads are timed one by one, so that each has the whole memory
    alone = max(size[:2]) * size[2] > MAX_TOGETHER
    for name in names:
        run = None
        try:
            run = makers[name](*size, device, torch.bfloat16 if cuda else torch.float32)
            run()
            memory[name] = memory_of(run, device)
            runs[name, "calls"] = run
            if PARTS[part].graphs and cuda and name in CAPTURED and memory[name][0] < MAX_CAPTURED:
                runs[name, "graph"] = captured(run)
        except torch.OutOfMemoryError:
            rows.append((part, what, name, *size, "", "", "", "", NO_ROOM))
        except ImportError:
            rows.append((part, what, name, *size, "", "", "", "", "not installed"))
        if runs and (alone or name == names[-1]):
            try:
                times = interleave(runs, wait=wait, **timing)  # type: ignore[arg-type]
                found |= {key: median(values) for key, values in times.items()}
            except torch.OutOfMemoryError:  # a first call had room, the next one finds it in pieces
                rows += [(part, what, each, *size, "", "", "", "", NO_ROOM) for each, timed in runs if timed == "calls"]
            runs, run = {}, None
            if cuda:
                torch.cuda.empty_cache()
    for (name, timed), time in found.items():
        rival = found.get((RIVAL, timed))
        ratio = "" if rival is None else f"{time / rival:.4f}"
        rows.append((part, what, name, *size, f"{1e6 * time:.1f}", ratio, *(f"{m:.1f}" for m in memory[name]), timed))
    return rows


def draw(folder: Path) -> None:
    """The time over K, as `wide.svg` beside the table: the GPU's own, and that of calls where there is no graph."""
    import matplotlib.pyplot as plt

    with (folder / "wide.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["part"] == "over K" and row["microseconds"]]
    kinds = {(row["contender"], row["timed"]) for row in rows}
    rows = [row for row in rows if row["timed"] == "graph" or (row["contender"], "graph") not in kinds]
    figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
    for name in dict.fromkeys(row["contender"] for row in rows):
        own = [row for row in rows if row["contender"] == name]
        label, style = (name, "o-") if own[0]["timed"] == "graph" else (f"{name}, eager", "o--")
        axes.loglog([int(r["classes"]) for r in own], [float(r["microseconds"]) for r in own], style, label=label)
    axes.set(xlabel="classes", ylabel="microseconds", title="loss and all gradients, 2048 rows of width 256, one H200")
    axes.title.set_fontsize("small")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    plt.rcParams["svg.hashsalt"] = "catnat"  # the same file from the same table
    figure.savefig(folder / "wide.svg", metadata={"Date": None})


def main() -> None:
    """Time and print; with --output, record as they come."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wide", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["large", "middle", "over K", "grid"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.01)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--draw", action="store_true", help="time nothing; draw what --output has")
    arguments = parser.parse_args()
    if arguments.draw:
        draw(arguments.output)
        return
    device, output = torch.device(arguments.device), arguments.output
    rows: list[Row] = []
    if output and (output / "wide.csv").exists():
        with (output / "wide.csv").open(newline="") as file:
            rows = [tuple(row) for row in csv.reader(file)][1:]
    done = {tuple(map(str, row[:6])) for row in rows}
    for part in arguments.parts:
        chosen = PARTS[part]
        sizes = [("loss", (r, w, k)) for w in chosen.widths for k in chosen.classes for r in chosen.rows]
        if part not in ("over K", "grid", "CPU"):
            sizes += [("sample", (r, chosen.widths[0], chosen.classes[0])) for r in BATCHES]
        for what, size in sizes:
            names = chosen.names() if what == "loss" else list(DRAWING)
            missing = [name for name in names if tuple(map(str, (part, what, name, *size))) not in done]
            if not missing:
                continue
            timed = [name for name in names if name in missing or name == RIVAL]
            found = measure(part, what, timed, size, device, rounds=arguments.rounds, seconds=arguments.seconds)
            found = [row for row in found if row[2] in missing]
            rows += found
            for row in found:
                print("{:7} {:6} {:34} {:>5} {:>5} {:>8} {:>10} {:>8} {:>9} {:>9} {}".format(*row), flush=True)
            if output:
                output.mkdir(parents=True, exist_ok=True)
                with (output / "wide.csv").open("w", newline="") as file:
                    csv.writer(file, lineterminator="\n").writerows((COLUMNS, *rows))
                facts = provenance(" ".join(["python -m benchmarks.wide", *sys.argv[1:]]), device)
                (output / "wide.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
