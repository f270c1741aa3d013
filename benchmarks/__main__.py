"""Run the benchmarks and write a table with its provenance."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from benchmarks import operations
from benchmarks.measure import interleave, ratio
from catnat_lab.provenance import provenance

COLUMNS = (
    "operation",
    "activation",
    "rows",
    "classes",
    "rival",
    "ratio",
    "quartile_low",
    "quartile_high",
    "limit",
    "rival_microseconds",  # on a GPU only: a CPU's times say little of another's
)


def main() -> None:
    """Check, time, print and, with --output, record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--backend", choices=("torch", "jax"), default="torch")
    parser.add_argument("--output", type=Path, help="folder for a CSV and its provenance; else nothing is written")
    parser.add_argument("--only", default="", help="time only the operations whose name holds this text")
    parser.add_argument("--rounds", type=int, default=31, help="interleaved rounds; the median is reported")
    parser.add_argument("--seconds", type=float, default=0.05, help="time of one contender in one round")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error(f"--rounds must be at least 2; got {arguments.rounds}")
    registry, on_gpu, device, wait = _registry(arguments.backend)
    chosen = {name: operation for name, operation in registry.items() if arguments.only in name}
    if not chosen:
        parser.error(f"--only {arguments.only!r} fits none of: {', '.join(registry)}")
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(0)
    # A head follows a linear layer. The first large matrix product of a process also sets up the BLAS library, which
    # changes the speed of the small ones after it.
    torch.randn(2048, 256) @ torch.randn(256, 256)

    rows = []
    print(f"{'operation':28} {'activation':10} {'rows x classes':>15} {'time / rival':>13}   limit")
    for name, operation in chosen.items():
        print(f"{name}, against {operation.rival}")
        for shape in operation.shapes:
            case = operation.case(*shape)
            contenders = {"rival": case.rival, **case.ours}
            times = interleave(contenders, rounds=arguments.rounds, seconds=arguments.seconds, wait=wait)
            for activation in case.ours:
                found = ratio(times[activation], times["rival"])
                limit = case.limits[activation]
                verdict = "" if limit is None else f"{limit}" if found.median <= limit else f"{limit}  over"
                print(f"{'':28} {activation:10} {f'{shape[0]} x {shape[1]}':>15} {found.median:13.2f}   {verdict}")
                figures = (f"{value:.3f}" for value in (found.median, found.low, found.high))
                rival = f"{1e6 * median(times['rival']):.0f}" if on_gpu else ""
                rows.append((name, activation, *shape, operation.rival, *figures, limit or "", rival))
            if arguments.output:  # as they come: what is done is kept
                _write(arguments.output, device, rows, arguments.backend)
    if arguments.output:
        print(f"written: {arguments.output / device}.csv and .json")


def _registry(backend: str) -> tuple[dict[str, operations.Operation], bool, str, Callable[[object], object]]:
    """The operations, whether they run on a GPU, what the results are called, and how to wait for one."""
    if backend == "torch":
        return operations.OPERATIONS, False, "cpu", lambda result: result
    from benchmarks import jax_operations  # who times torch need not have JAX

    on_gpu = jax_operations.ON_GPU
    name = "jax-gpu" if on_gpu else "jax-cpu"
    return jax_operations.OPERATIONS, on_gpu, name, jax_operations.jax.block_until_ready


def _write(folder: Path, device: str, rows: list[tuple[object, ...]], backend: str) -> None:
    with (folder / f"{device}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    command = " ".join(["python -m benchmarks", *sys.argv[1:]])
    facts = provenance(command)
    if backend == "jax":
        from importlib.metadata import version

        import jax

        facts |= {"jax": version("jax"), "jaxlib": version("jaxlib"), "device": jax.devices()[0].device_kind}
    (folder / f"{device}.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
