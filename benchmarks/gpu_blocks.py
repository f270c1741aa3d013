"""Which shape of program is the fastest: candidates for `catnat.torch._gpu.blocks`, timed side by side on this GPU.

`python -m benchmarks.gpu_blocks --output FILE` writes one line for every number of classes, dtype, activation, way and
candidate: its time divided by that of torch.log_softmax, the rival, measured in turn with it. "table" is what the
library has now; every candidate's result is compared with the table's before it is timed.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import catnat
from benchmarks.gpu_operations import CAPTURED, captured
from catnat.torch._bernoulli import bernoulli_of
from catnat.torch._gpu import blocks, launch

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")  # without a GPU in Triton's interpreter: a rehearsal
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Candidate(NamedTuple):
    """One kernel, and the shape of its programs."""

    classes: int
    dtype: str
    activation: str
    way: str  # "forward" or "backward"
    block: tuple[int, ...] | None  # None: the library's table
    gather: bool = False

    @property
    def name(self) -> str:
        """In the output."""
        if self.block is None:
            return "table"
        return "x".join(map(str, self.block)) + (" gather" if self.gather else "")


def candidates(classes: int, dtype: str, activation: str, way: str) -> Iterator[Candidate]:
    """The table's, and others around it."""
    yield Candidate(classes, dtype, activation, way, None)
    levels = (classes - 1).bit_length()
    if levels <= 10:  # the whole tree, of several rows
        shapes = list(itertools.product([levels], (512, 1024, 2048), (1, 2, 4)))
    else:  # parts of one row
        shapes = [(depth, 1 << depth, warps) for depth in (9, 10, 11) for warps in (1, 2, 4) if depth > 9 or warps < 4]
    for shape in shapes:
        yield Candidate(classes, dtype, activation, way, shape)
        if way == "backward" and levels <= 9 and shape[2] == 1:
            yield Candidate(classes, dtype, activation, way, shape, True)


def run_of(candidate: Candidate, x: Tensor, gradient: Tensor) -> Callable[[], Tensor]:
    """A call of the kernel, in the candidate's shape."""
    bernoulli = bernoulli_of(catnat.Parameterization(candidate.classes, candidate.activation), DEVICE)
    assert bernoulli is not None
    tables = blocks.walk_block, blocks.pull_block, blocks.writes_whole_rows

    def run() -> Tensor:
        if candidate.block is not None:
            block = blocks.Block(*candidate.block)
            blocks.walk_block = lambda classes, exact: block
            blocks.pull_block = lambda classes, exact: block
            blocks.writes_whole_rows = lambda classes, exact: candidate.gather
        launch._walk_launcher.cache_clear()
        launch._pull_launcher.cache_clear()
        try:
            if candidate.way == "forward":
                return launch.walk(x, bernoulli, False)
            return launch.pull(x, bernoulli, gradient, False)
        finally:
            blocks.walk_block, blocks.pull_block, blocks.writes_whole_rows = tables

    return run


def inputs(classes: int, dtype: str, rows: int) -> tuple[Tensor, Tensor]:
    """Scores and an upstream gradient."""
    return (torch.randn(rows, k, device=DEVICE).to(DTYPES[dtype]) for k in (classes - 1, classes))  # type: ignore[return-value]


def compile_one(candidate: Candidate) -> str:
    """Compile a candidate in a process of its own, for Triton's cache on disk."""
    try:
        run_of(candidate, *inputs(candidate.classes, candidate.dtype, 96))()
        return ""
    except Exception as error:  # too large a program, say
        return f"{candidate}: {error}"


def replayed(run: Callable[[], object]) -> Callable[[], object]:
    """Some calls as one CUDA graph."""
    if not ON_GPU:
        return run
    graph = captured(run)
    if graph is None:
        raise RuntimeError("a call cannot be captured")
    return graph


def milliseconds(replay: Callable[[], object]) -> float:
    """Of one replay."""
    if not ON_GPU:
        return 1.0
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def time_group(group: list[Candidate], elements: int, rounds: int) -> Iterator[tuple[Candidate, float, float]]:
    """(candidate, its time by the rival's, the rival's microseconds) for candidates of one problem."""
    first = group[0]
    x, gradient = inputs(first.classes, first.dtype, elements // first.classes)
    logits = torch.randn_like(gradient)
    if first.way == "forward":
        rival = replayed(lambda: torch.log_softmax(logits, -1))
    else:
        log_p = torch.log_softmax(logits, -1)
        rival = replayed(lambda: torch._log_softmax_backward_data(gradient, log_p, -1, log_p.dtype))
    expected = run_of(first, x, gradient)()
    for candidate in group:
        try:
            run = run_of(candidate, x, gradient)
            found = run()
            tolerance = 1e-5 if first.dtype == "float32" else 2e-2
            torch.testing.assert_close(found[::97], expected[::97], rtol=tolerance, atol=tolerance)
            del found
            replay = replayed(run)
            times = [(milliseconds(replay), milliseconds(rival)) for _ in range(rounds + 1)][1:]
        except Exception as error:
            print(f"{candidate}: {str(error)[:200]}", flush=True)
            continue
        yield (
            candidate,
            statistics.median(a / b for a, b in times),
            statistics.median(b for _, b in times) / CAPTURED * 1e3,
        )


def main() -> None:
    """Compile all, then time all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_blocks", description=__doc__)
    parser.add_argument("--classes", type=int, nargs="+", default=[100, 128, 200, 300, 777, 1000, 3000])
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    parser.add_argument("--activations", nargs="+", default=["natural"])
    parser.add_argument("--table-only", action="store_true", help="time what the library has, no candidates")
    parser.add_argument("--elements", type=int, default=1 << 26)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, required=True, help="the CSV to write")
    arguments = parser.parse_args()
    groups = [
        list(candidates(*problem))[: 1 if arguments.table_only else None]
        for problem in itertools.product(
            arguments.classes, arguments.dtypes, arguments.activations, ("forward", "backward")
        )
    ]
    if ON_GPU:
        workers = max(1, (os.cpu_count() or 2) - 2)
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
            for error in pool.map(compile_one, [c for group in groups for c in group], chunksize=2):
                if error:
                    print(error[:300], flush=True)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    with arguments.output.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("classes", "dtype", "activation", "way", "block", "ratio", "rival_microseconds"))
        for group in groups:
            found = sorted(time_group(group, arguments.elements, arguments.rounds), key=lambda row: row[1])
            for candidate, ratio, rival in found:
                writer.writerow((*candidate[:4], candidate.name, f"{ratio:.3f}", f"{rival:.1f}"))
            file.flush()
            best = ", ".join(f"{c.name} {ratio:.3f}" for c, ratio, _ in found[:4])
            table = [ratio for c, ratio, _ in found if c.block is None]
            print(*group[0][:4], f"table {table[0] if table else 0:.3f}; best: {best}", flush=True)


if __name__ == "__main__":
    main()
