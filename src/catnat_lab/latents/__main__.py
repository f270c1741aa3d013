"""`python -m catnat_lab.latents run` goes on with the study until its time is up; `report` writes its tables.

On a GPU it needs torch and NumPy alone.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from catnat_lab.errors import UserError
from catnat_lab.files import write
from catnat_lab.latents import records
from catnat_lab.latents.rule import STAGES, Rule, next_group
from catnat_lab.latents.train import ESTIMATORS, Cell, Setting, train
from catnat_lab.provenance import provenance
from catnat_lab.vae.digits import load_digits

HELD_OUT = 5_000  # of the training images, for the search
START = 25.0  # seconds a group takes before its first step, and to be judged
STEP, RUN_STEP = 6e-4, 4e-5  # seconds a step and a run's step are guessed to take, until a group was timed
REHEARSAL = Rule(sizes=((2, 4), (3, 5)), short=1, long=2, final_seeds=2)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        if options.command == "run":
            run(options, sys.argv[1:] if arguments is None else list(arguments))
        else:
            from catnat_lab.latents.report import report  # SciPy is not needed to train

            write(options.folder / "latents.md", report(records.read(options.folder / "runs")))
    except UserError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    return 0


def run(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Train group after group in the rule's order; none is begun that would not be done in time."""
    begun, device = time.monotonic(), torch.device(options.device)
    rule, images, test = _prepared(options, device)
    slower = 1.0
    while (group := next_group(rule, records.read(options.output))) is not None:
        epochs = rule.epochs(group.stage)
        setting = _setting(options, epochs, precise=group.stage == "control")
        searches = group.stage in ("coarse", "full")
        held_out = min(HELD_OUT, len(images) // 10)
        used = images[:-held_out] if searches else images
        judged = {"validation": images[-held_out:]} if searches else {"test": test}
        steps = epochs * (len(used) // setting.batch)
        guess = steps * (STEP + RUN_STEP * len(group.runs)) * _heavier(group.cell)
        name = f"{group.stage} {group.cell.variables}x{group.cell.classes} {group.cell.estimator}"
        spent = time.monotonic() - begun
        expected = START + guess * slower
        if spent + expected > options.seconds:
            print(f"{spent:.0f} s: no time for {name}, {len(group.runs)} runs: {expected:.0f} s", flush=True)
            return
        outcomes = train(group.runs, group.cell, setting, used, judged | {"train": used}, device)
        took = time.monotonic() - begun - spent
        slower = took / guess  # with what it took to begin: rather too long than too late
        about = provenance(f"python -m catnat_lab.latents {' '.join(arguments)}", device)
        about |= {"commit": options.commit} if options.commit else {}
        records.keep(options.output, group, epochs, outcomes, about | {"seconds": f"{took:.1f}"})
        bounds = [float(found["validation" if searches else "test"]) for found in outcomes]
        lowest = min((bound for bound in bounds if bound == bound), default=float("nan"))
        print(f"{spent + took:.0f} s: {name}, {len(bounds)} runs in {took:.0f} s; lowest {lowest:.2f}", flush=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    print("nothing is left", flush=True)


def _heavier(cell: Cell) -> float:
    """About how much longer a step is than with small codes and one draw."""
    return (1 + cell.variables * cell.classes / 1000) * (1 + (ESTIMATORS[cell.estimator] - 1) / 4)


def _prepared(options: argparse.Namespace, device: torch.device) -> tuple[Rule, Tensor, Tensor]:
    """The rule, the training and the test images, on the device."""
    digits = load_digits(options.digits)
    rule = REHEARSAL if options.rehearse else Rule()
    chosen = replace(
        rule,
        sizes=tuple(size for size in rule.sizes if not options.sizes or f"{size[0]}x{size[1]}" in options.sizes),
        estimators=tuple(name for name in rule.estimators if not options.estimators or name in options.estimators),
        stages=tuple(options.stages),
    )
    if not chosen.sizes or not chosen.estimators:
        raise UserError(f"no cell has the sizes {options.sizes} and the estimators {options.estimators}")
    few = (200, 50) if options.rehearse else (len(digits.train), len(digits.test))
    return chosen, digits.train[: few[0]].to(device), digits.test[: few[1]].to(device)


def _setting(options: argparse.Namespace, epochs: int, *, precise: bool) -> Setting:
    whole = Setting(epochs, precise=precise, plain=options.plain)
    return replace(whole, batch=20, hidden=(16, 8), samples=1) if options.rehearse else whole


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m catnat_lab.latents", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="go on with the study")
    running.add_argument("--digits", type=Path, required=True, help="folder with MNIST's image files")
    running.add_argument("--output", type=Path, default=Path("results/latents/runs"), help="folder of the rows")
    running.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing that would end later")
    running.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    running.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    running.add_argument("--estimators", nargs="+", default=())
    running.add_argument("--sizes", nargs="+", default=(), help="such as 16x8")
    running.add_argument("--plain", action="store_true", help="on a GPU: capture and compile nothing")
    running.add_argument("--rehearse", action="store_true", help="the same at toy size, in seconds")
    running.add_argument("--commit", default="", help="of the code, where git cannot be asked")
    telling = commands.add_parser("report", help="write the tables")
    telling.add_argument("--folder", type=Path, default=Path("results/latents"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
