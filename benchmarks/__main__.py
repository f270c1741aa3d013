"""Run the benchmarks and write a table with its provenance."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path

import torch

from benchmarks.measure import interleave, ratio
from benchmarks.operations import OPERATIONS
from catnat_lab.provenance import provenance

COLUMNS = ("operation", "activation", "rows", "classes", "rival", "ratio", "quartile_low", "quartile_high", "limit")


def main() -> None:
    """Check, time, print and, with --output, record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--output", type=Path, help="folder for cpu.csv and cpu.json; nothing is written without it")
    parser.add_argument("--only", default="", help="time only the operations whose name holds this text")
    parser.add_argument("--rounds", type=int, default=31, help="interleaved rounds; the median is reported")
    parser.add_argument("--seconds", type=float, default=0.05, help="time of one contender in one round")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error(f"--rounds must be at least 2; got {arguments.rounds}")
    chosen = {name: operation for name, operation in OPERATIONS.items() if arguments.only in name}
    if not chosen:
        parser.error(f"--only {arguments.only!r} fits none of: {', '.join(OPERATIONS)}")
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
            times = interleave({"rival": case.rival, **case.ours}, rounds=arguments.rounds, seconds=arguments.seconds)
            for activation in case.ours:
                found = ratio(times[activation], times["rival"])
                limit = case.limits[activation]
                verdict = "" if limit is None else f"{limit}" if found.median <= limit else f"{limit}  over"
                print(f"{'':28} {activation:10} {f'{shape[0]} x {shape[1]}':>15} {found.median:13.2f}   {verdict}")
                figures = (f"{value:.3f}" for value in (found.median, found.low, found.high))
                rows.append((name, activation, *shape, operation.rival, *figures, "" if limit is None else limit))
    if arguments.output:
        _write(arguments.output, rows)


def _write(folder: Path, rows: list[tuple[object, ...]]) -> None:
    with (folder / "cpu.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    command = " ".join(["python -m benchmarks", *sys.argv[1:]])
    (folder / "cpu.json").write_text(json.dumps(provenance(command), indent=2) + "\n")
    print(f"written: {folder / 'cpu.csv'} and {folder / 'cpu.json'}")


if __name__ == "__main__":
    main()
