"""Run the benchmarks and write a table with its provenance."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks import operations
from benchmarks.measure import Run, interleave, ratio
from catnat_lab.provenance import provenance

COLUMNS = (
    "operation",
    "contender",
    "rows",
    "classes",
    "rival",
    "ratio",
    "quartile_low",
    "quartile_high",
    "limit",
    # on a GPU only: a CPU's times say little of another's
    "microseconds",
    "rival_microseconds",
    "copy_share",  # the bytes that a call must move, at the speed of a plain copy in the same run, by its time
    "peak_mib",  # what a call allocates at its peak, its result included
    "timed",  # "graph": by replays of a CUDA graph of calls, the GPU's own time; "calls": as a user's host makes them
)


@dataclass
class Bench:
    """What is timed where."""

    operations: dict[str, operations.Operation]
    name: str  # of the results
    on_gpu: bool = False
    wait: Callable[[object], object] = lambda result: result
    facts: dict[str, str] = field(default_factory=dict)
    copy: Callable[[], Run] | None = None  # a plain copy of 256 MiB
    peak: Callable[[Run], float] | None = None  # MiB
    capture: Callable[[Run], Run | None] | None = None  # several calls as one, where the measure is bytes a second
    captured: int = 1


def main() -> None:
    """Check, time, print and, with --output, record."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--backend", choices=("torch", "jax"), default="torch")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of torch; JAX has its own default")
    parser.add_argument("--output", type=Path, help="folder for a CSV and its provenance; else nothing is written")
    parser.add_argument("--only", default="", help="time only the operations whose name holds this text")
    parser.add_argument("--rounds", type=int, default=31, help="interleaved rounds; the median is reported")
    parser.add_argument("--threads", type=int, help="of PyTorch on a CPU; by default its own choice")
    parser.add_argument("--seconds", type=float, default=0.05, help="time of one contender in one round")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error(f"--rounds must be at least 2; got {arguments.rounds}")
    if arguments.device == "cuda" and arguments.backend == "jax":
        parser.error("--device is for torch; JAX is timed on its own default device")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch finds no GPU here")
    bench = _bench(arguments.backend, arguments.device)
    chosen = {name: operation for name, operation in bench.operations.items() if arguments.only in name}
    if not chosen:
        parser.error(f"--only {arguments.only!r} fits none of: {', '.join(bench.operations)}")
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    # A head follows a linear layer. The first large matrix product of a process also sets up the BLAS library, which
    # changes the speed of the small ones after it.
    torch.randn(2048, 256) @ torch.randn(256, 256)

    rows: list[tuple[object, ...]] = []
    print(f"{'operation':28} {'contender':32} {'rows x classes':>15} {'time / rival':>13}   limit")
    for name, operation in chosen.items():
        print(f"{name}, against {operation.rival}")
        for shape in operation.shapes:
            for row in _time(bench, name, operation, shape, arguments.rounds, arguments.seconds):
                found, limit = float(str(row[5])), row[8]
                verdict = "" if limit == "" else f"{limit}" if found <= float(str(limit)) else f"{limit}  over"
                print(f"{'':28} {row[1]:32} {f'{shape[0]} x {shape[1]}':>15} {found:13.2f}   {verdict}", flush=True)
                rows.append(row)
            if arguments.output:  # as they come: what is done is kept
                _write(arguments.output, bench, rows)
    if arguments.output:
        print(f"written: {arguments.output / bench.name}.csv and .json")


def _time(
    bench: Bench, name: str, operation: operations.Operation, shape: tuple[int, int], rounds: int, seconds: float
) -> list[tuple[object, ...]]:
    case = operation.case(*shape)
    contenders = {"rival": case.rival, **case.ours}
    copies = case.bytes is not None and bench.copy is not None
    if copies and bench.copy is not None:
        contenders["copy"] = bench.copy()
    graphs = {}
    if case.bytes is not None and bench.capture is not None:
        graphs = {key: graph for key, run in contenders.items() if (graph := bench.capture(run)) is not None}
    times = interleave(contenders | graphs, rounds=rounds, seconds=seconds, wait=bench.wait)
    for key in graphs:
        times[key] = [each / bench.captured for each in times[key]]
    rows = []
    for contender in case.ours:
        found = ratio(times[contender], times["rival"])
        figures = [f"{value:.3f}" for value in (found.median, found.low, found.high)]
        gpu = [""] * 5
        if bench.on_gpu:
            own, rivals = median(times[contender]), median(times["rival"])
            gpu[:2] = [f"{1e6 * own:.1f}", f"{1e6 * rivals:.1f}"]
            gpu[4] = "graph" if contender in graphs else "calls"
            if copies and case.bytes is not None:
                copied = 2 * 4 * operations.COPIED  # bytes read and written by the plain copy
                gpu[2] = f"{case.bytes / copied * median(times['copy']) / own:.3f}"
            if bench.peak is not None:
                gpu[3] = f"{bench.peak(case.ours[contender]):.0f}"
        rows.append((name, contender, *shape, operation.rival, *figures, case.limits.get(contender) or "", *gpu))
    return rows


def _bench(backend: str, device: str) -> Bench:
    if backend == "jax":
        from benchmarks import jax_operations  # who times torch need not have JAX

        jax = jax_operations.jax
        facts = {"jax": version("jax"), "jaxlib": version("jaxlib"), "device": jax.devices()[0].device_kind}
        name = "jax-gpu" if jax_operations.ON_GPU else "jax-cpu"
        return Bench(jax_operations.OPERATIONS, name, jax_operations.ON_GPU, jax.block_until_ready, facts)
    if device == "cuda":
        from benchmarks import gpu_operations

        facts = {"triton": version("triton"), "device": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}
        return Bench(
            gpu_operations.OPERATIONS,
            "gpu",
            True,
            lambda result: torch.cuda.synchronize(),
            facts,
            gpu_operations.copy,
            _peak_mib,
            gpu_operations.captured,
            gpu_operations.CAPTURED,
        )
    return Bench(operations.OPERATIONS, "cpu")


def _peak_mib(run: Run) -> float:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def _write(folder: Path, bench: Bench, rows: list[tuple[object, ...]]) -> None:
    with (folder / f"{bench.name}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    facts: dict[str, Any] = provenance(" ".join(["python -m benchmarks", *sys.argv[1:]])) | bench.facts
    if not bench.on_gpu:
        facts["threads"] = torch.get_num_threads()
    (folder / f"{bench.name}.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
