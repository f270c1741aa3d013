"""The stranger's swap: catnat's default where softmax was, with softmax's optimiser and rate, and whether it trains.

Run it as `python -m benchmarks.swap [--backend torch|jax|both] [--digits FOLDER] [--output FOLDER]`. Two classifiers,
scikit-learn's digits and MNIST, four heads, five settings of the optimiser each, or SGD at the rates of `--sgd`. The
rule: the default is never below the sigmoid by more than one standard error, and loses no seed that the sigmoid keeps.
Without `--digits`, a folder with MNIST's four IDX files, the small digits alone are trained.

All heads of a seed start from the same weights (a catnat head, one score narrower, from the first nine columns of the
last layer) and see the same batches, in PyTorch and in JAX. So accuracies are compared in pairs, seed by seed.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import t as student
from torch import Tensor
from torch.nn import functional

import catnat
import catnat.torch as ct
from catnat_lab.provenance import provenance
from catnat_lab.stats import summarize
from catnat_lab.vae.digits import load_digits, load_labels

CLASSES = 10
CHANCE = 0.2  # below twice the accuracy of a guess a run counts as lost

DEFAULT, JUDGE = "catnat", "catnat-sigmoid"  # what is judged, and by what
Heads = dict[str, catnat.Parameterization | None]  # None is softmax
HEADS: Heads = {
    "softmax": None,
    JUDGE: catnat.Parameterization(CLASSES, "sigmoid"),
    DEFAULT: catnat.Parameterization(CLASSES),
    "catnat-paper": catnat.Parameterization(CLASSES, catnat.Natural(tail=0.0)),  # the paper's: what was mended
}

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
Layers = list[tuple[Any, Any]]  # weights [..., in, out] and biases [..., out], of NumPy, torch or JAX
Found = list[list[tuple[float, float | None]]]  # by head and seed: accuracy, and the share beyond the natural range
PM = "\N{PLUS-MINUS SIGN}"


@dataclass(frozen=True)
class Setting:
    """An optimiser and its rate; all else is the library's own default."""

    optimiser: str
    rate: float

    def __str__(self) -> str:
        return f"{self.optimiser} {self.rate:g}"


@dataclass(frozen=True)
class Task:
    """A multilayer perceptron with ReLU, and how long it is trained."""

    name: str
    sizes: tuple[int, ...]
    epochs: int
    batch: int
    settings: tuple[Setting, ...]
    last: bool = False  # whether a last batch that is not full is kept, as torch's DataLoader does unless told
    momentum: float = 0.0  # SGD's


DIGITS_SETTINGS = (("Adam", 1e-3), ("Adam", 1e-2), ("SGD", 0.02), ("SGD", 0.1), ("SGD", 0.5))
MNIST_SETTINGS = (("Adam", 1e-4), ("Adam", 1e-3), ("Adam", 1e-2), ("SGD", 0.01), ("SGD", 0.1))
TASKS = {
    "digits": Task("digits", (64, 64, CLASSES), 30, 32, tuple(Setting(*each) for each in DIGITS_SETTINGS)),
    "mnist": Task("mnist", (784, 256, 128, CLASSES), 2, 128, tuple(Setting(*each) for each in MNIST_SETTINGS)),
}


@dataclass(frozen=True)
class Split:
    """Images, a row each, from 0 to 1, and their classes: for training and for the test."""

    train: tuple[Floats, Ids]
    test: tuple[Floats, Ids]


@dataclass(frozen=True)
class Row:
    """One run: its accuracy on the test set (NaN if its probabilities are), and its nodes beyond the natural range."""

    task: str
    backend: str
    optimiser: str
    rate: float
    head: str
    seed: int
    accuracy: float
    beyond: float | None  # a share of all nodes at all test images; None of softmax

    @property
    def lost(self) -> bool:
        """Whether it knows no more than chance, or nothing."""
        return not self.accuracy >= CHANCE


# ---------------------------------------------------------------- data


def small_digits(split: int = 0) -> Split:
    """scikit-learn's 1,797 digits of 8 x 8 pixels, shuffled once a split: half to train on, half to test on."""
    from sklearn.datasets import load_digits as load_small  # type: ignore[import-untyped]

    images, classes = load_small(return_X_y=True)
    shuffled = np.random.default_rng(split).permutation(len(images))  # they come writer by writer
    x, y = (images[shuffled] / 16).astype(np.float32), classes[shuffled].astype(np.int64)
    half = len(x) // 2  # a large test set: its own noise is in every accuracy
    return Split((x[:half], y[:half]), (x[half:], y[half:]))


def mnist(folder: Path) -> Split:
    """MNIST's own split of 60,000 and 10,000, from its four IDX files."""
    images = load_digits(folder)
    labels = load_labels(folder, images)
    parts = [
        (pixels.numpy().astype(np.float32) / np.float32(255), classes.numpy())
        for pixels, classes in zip((images.train, images.test), labels, strict=True)
    ]
    return Split(*parts)


# ---------------------------------------------------------------- what all heads of a seed share


def start(sizes: Sequence[int], seed: int) -> Layers:
    """The first weights [in, out] and biases [out], with the bounds of `torch.nn.Linear`."""
    random = np.random.default_rng([seed, 0])
    layers = []
    for before, after in pairwise(sizes):
        bound = 1 / math.sqrt(before)
        weight, bias = (random.uniform(-bound, bound, shape) for shape in ((before, after), after))
        layers.append((weight.astype(np.float32), bias.astype(np.float32)))
    return layers


def order(count: int, batch: int, epochs: int, seed: int, last: bool = False) -> list[Ids]:
    """Which images every step sees, each epoch in a new order. What fills no batch is left out, or is the last one."""
    random = np.random.default_rng([seed, 1])
    end = count if last else count - count % batch
    return [
        shuffled[first : first + batch]
        for shuffled in (random.permutation(count) for _ in range(epochs))
        for first in range(0, end, batch)
    ]


def stack(parts: Sequence[Layers]) -> Layers:
    """Layers of several seeds along a new first axis."""
    return [(np.stack([w for w, _ in seeds]), np.stack([b for _, b in seeds])) for seeds in zip(*parts, strict=True)]


def width(pi: catnat.Parameterization | None) -> int:
    """How many of the last layer's columns a head reads."""
    return CLASSES if pi is None else pi.num_nodes


# ---------------------------------------------------------------- PyTorch: one loop over stacked tensors


def torch_layers(seeds: Layers, heads: int, device: torch.device) -> Layers:
    """Stacked layers as parameters [heads, seeds, ...]. Both optimisers work by element: no run sees another."""

    def parameter(part: Floats) -> Tensor:
        return torch.from_numpy(part).to(device).expand(heads, *part.shape).clone().requires_grad_()

    return [(parameter(weight), parameter(bias)) for weight, bias in seeds]


def torch_scores(layers: Layers, x: Tensor) -> Tensor:
    """[..., rows, CLASSES] of x [..., rows, pixels]."""
    for depth, (weight, bias) in enumerate(layers):
        x = torch.matmul(torch.relu(x) if depth else x, weight) + bias.unsqueeze(-2)
    return x


def torch_losses(layers: Layers, heads: Sequence[catnat.Parameterization | None], x: Tensor, y: Tensor) -> Tensor:
    """[heads, seeds] the mean loss of every run over its batch, x [seeds, rows, pixels] and y [seeds, rows]."""
    losses = []
    for pi, scores in zip(heads, torch_scores(layers, x), strict=True):
        if pi is None:
            each = functional.cross_entropy(scores.flatten(0, 1), y.flatten(), reduction="none").view_as(y)
        else:
            each = ct.cross_entropy(scores[..., : width(pi)], y, pi, reduction="none", dim=-1)
        losses.append(each.mean(-1))
    return torch.stack(losses)


def train_torch(
    task: Task,
    setting: Setting,
    heads: Sequence[catnat.Parameterization | None],
    seeds: Sequence[int],
    split: Split,
    device: torch.device,
) -> Found:
    """Accuracy and share beyond the natural range of every head and seed."""
    layers = torch_layers(stack([start(task.sizes, seed) for seed in seeds]), len(heads), device)
    parameters = [part for layer in layers for part in layer]
    optimiser = (
        torch.optim.Adam(parameters, lr=setting.rate)
        if setting.optimiser == "Adam"
        else torch.optim.SGD(parameters, lr=setting.rate, momentum=task.momentum)
    )
    (x, y), (test_x, test_y) = (
        tuple(torch.from_numpy(part).to(device) for part in half) for half in (split.train, split.test)
    )
    orders = [order(len(x), task.batch, task.epochs, seed, task.last) for seed in seeds]
    for step in zip(*orders, strict=True):
        ids = torch.from_numpy(np.stack(step)).to(device)  # [seeds, batch]
        optimiser.zero_grad()
        torch_losses(layers, heads, x[ids], y[ids]).sum().backward()  # a sum: every run has its own gradient
        optimiser.step()
    found: Found = []
    with torch.no_grad():
        for h, pi in enumerate(heads):
            found.append([])
            for s in range(len(seeds)):  # one by one: the test set need not be copied for every run
                scores = torch_scores([(w[h, s], b[h, s]) for w, b in layers], test_x)[:, : width(pi)]
                log_p = torch.log_softmax(scores, -1) if pi is None else ct.log_catnat(scores, pi)
                right = float((log_p.argmax(-1) == test_y).double().mean())
                beyond = None if pi is None else float(ct.saturation(scores, pi))
                found[-1].append((math.nan if bool(log_p.isnan().any()) else right, beyond))
    return found


# ---------------------------------------------------------------- JAX: one run, mapped over the seeds


def jax_scores(layers: Layers, x: Any) -> Any:
    """[rows, CLASSES] of x [rows, pixels], for one run."""
    import jax

    for depth, (weight, bias) in enumerate(layers):
        x = (jax.nn.relu(x) if depth else x) @ weight + bias
    return x


def jax_loss(layers: Layers, pi: catnat.Parameterization | None, x: Any, y: Any) -> Any:
    """The mean loss of one run over its batch."""
    import optax

    import catnat.jax as cj

    scores = jax_scores(layers, x)
    if pi is None:
        return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()
    return cj.cross_entropy(scores[..., : width(pi)], y, pi).mean()


@cache
def jax_training(optimiser: str, pi: catnat.Parameterization | None) -> Any:
    """A compiled function of layers [seeds, ...], orders [seeds, steps, batch], images, classes and a rate."""
    import jax
    import optax

    rule = {"Adam": optax.adam, "SGD": optax.sgd}[optimiser]

    def train(layers: Layers, orders: Any, x: Any, y: Any, rate: Any) -> Layers:
        update = rule(rate)

        def step(state: Any, ids: Any) -> tuple[Any, None]:
            layers, memory = state
            change, memory = update.update(jax.grad(jax_loss)(layers, pi, x[ids], y[ids]), memory)
            return (optax.apply_updates(layers, change), memory), None

        return jax.lax.scan(step, (layers, update.init(layers)), orders)[0][0]

    return jax.jit(jax.vmap(train, in_axes=(0, 0, None, None, None)))


def train_jax(
    task: Task,
    setting: Setting,
    heads: Sequence[catnat.Parameterization | None],
    seeds: Sequence[int],
    split: Split,
    device: torch.device,
) -> Found:
    """As `train_torch`, in JAX with optax."""
    import jax
    import jax.numpy as jnp

    import catnat.jax as cj

    found: Found = []
    # full float32 on a GPU too, as in PyTorch
    with jax.default_device(jax.devices(device.type)[0]), jax.default_matmul_precision("highest"):
        first = jax.tree.map(jnp.asarray, stack([start(task.sizes, seed) for seed in seeds]))
        (x, y), (test_x, test_y) = (tuple(map(jnp.asarray, half)) for half in (split.train, split.test))
        assert not (task.last or task.momentum), "neither is written in JAX"
        orders = jnp.asarray(np.stack([order(len(x), task.batch, task.epochs, seed) for seed in seeds]))
        for pi in heads:
            layers = jax_training(setting.optimiser, pi)(first, orders, x, y, setting.rate)
            found.append([])
            for s in range(len(seeds)):
                scores = jax_scores([(w[s], b[s]) for w, b in layers], test_x)[:, : width(pi)]
                log_p = jax.nn.log_softmax(scores) if pi is None else cj.log_catnat(scores, pi)
                right = float((log_p.argmax(-1) == test_y).mean())
                beyond = None if pi is None else float(cj.saturation(scores, pi))
                found[-1].append((math.nan if bool(jnp.isnan(log_p).any()) else right, beyond))
    return found


TRAIN = {"torch": train_torch, "jax": train_jax}


def run(
    task: Task,
    backend: str,
    setting: Setting,
    seeds: Sequence[int],
    split: Split,
    device: torch.device,
    heads: Heads = HEADS,
) -> list[Row]:
    """All heads and seeds of one setting."""
    found = TRAIN[backend](task, setting, list(heads.values()), seeds, split, device)
    return [
        Row(task.name, backend, setting.optimiser, setting.rate, head, seed, *result)
        for head, results in zip(heads, found, strict=True)
        for seed, result in zip(seeds, results, strict=True)
    ]


# ---------------------------------------------------------------- what the rows say


@dataclass(frozen=True)
class Finding:
    """The default beside the sigmoid in one setting, in pairs of seeds."""

    task: str
    backend: str
    setting: Setting
    difference: float  # mean accuracy of the default minus the sigmoid's, over seeds in which both are numbers
    error: float  # its standard error
    lost: tuple[int, ...]  # seeds that the default lost and the sigmoid did not

    @property
    def below(self) -> bool:
        """Whether the default is below the sigmoid by more than a standard error."""
        return self.difference < -self.error

    @property
    def broken(self) -> bool:
        """Whether the rule is."""
        return self.below or bool(self.lost)

    def __str__(self) -> str:
        # Without any spread the ratio is undefined, and the difference says it all.
        ratio = f", {self.difference / self.error:+.1f} standard errors" if self.error > 0 else ""
        lost = f"; lost where the sigmoid is not: seed {', '.join(map(str, self.lost))}" if self.lost else ""
        verdict = "**broken**" if self.broken else "kept"
        return (
            f"{self.task}, {self.backend}, {self.setting}: {100 * self.difference:+.2f} {PM} {100 * self.error:.2f} "
            f"points{ratio}{lost}: {verdict}."
        )


def findings(rows: Sequence[Row], head: str = DEFAULT) -> list[Finding]:
    """One per task, backend and setting, in the order of the rows."""
    result = []
    for task, backend, setting in _settings(rows):
        chosen = {(row.head, row.seed): row for row in rows if _key(row) == (task, backend, setting)}
        pairs = [(row, chosen[JUDGE, seed]) for (name, seed), row in chosen.items() if name == head]
        differences = [a.accuracy - b.accuracy for a, b in pairs if math.isfinite(a.accuracy + b.accuracy)]
        lost = tuple(a.seed for a, b in pairs if a.lost and not b.lost)
        if differences:
            mean, error = _mean_and_error(differences)
        else:  # no pair of numbers: then only the lost seeds speak
            mean, error = math.nan, math.nan
        result.append(Finding(task, backend, setting, mean, error, lost))
    return result


def report(rows: Sequence[Row]) -> str:
    """Tables, then what they say; every sentence is computed from the rows."""
    seeds = len({row.seed for row in rows})
    text = [
        "### The stranger's swap: softmax's settings, another head",
        "",
        f"Test accuracy at the end of training in per cent: mean {PM} standard error over {seeds} seeds (worst seed).",
    ]
    for task, backend in dict.fromkeys((row.task, row.backend) for row in rows):
        text += ["", *_table([row for row in rows if (row.task, row.backend) == (task, backend)])]
    found = findings(rows)
    text += ["", f"**{DEFAULT} minus {JUDGE}**, mean {PM} standard error of the difference, paired by seed", ""]
    text += [f"- {finding}" for finding in found]
    text += ["", "**In short**", "", *[f"- {sentence}" for sentence in _remarks(rows, found, seeds)]]
    return "\n".join([*text, "", verdict(found), ""])


def verdict(found: Sequence[Finding]) -> str:
    """The rule, and whether it is kept."""
    rule = (
        f"Rule: {DEFAULT} is never below {JUDGE} by more than one standard error of the paired difference, and no seed "
        f"ends below {100 * CHANCE:g}% or as NaN where {JUDGE} does not."
    )
    broken = [finding for finding in found if finding.broken]
    if not broken:
        return f"{rule} **Verdict: kept in all {len(found)} settings.**"
    where = "; ".join(
        f"{f.task}, {f.backend}, {f.setting} ({_why(f)})"  # what broke it, so that a hair is told from a failure
        for f in broken
    )
    return f"{rule} **Verdict: broken in {len(broken)} of {len(found)} settings: {where}.**"


def _why(finding: Finding) -> str:
    reasons = [f"{100 * finding.difference:+.2f} {PM} {100 * finding.error:.2f} points"] if finding.below else []
    return ", ".join([*reasons, *([f"{len(finding.lost)} seeds lost"] if finding.lost else [])])


def _remarks(rows: Sequence[Row], found: Sequence[Finding], seeds: int) -> list[str]:
    """What is to be seen at a glance."""
    below, above = sum(f.below for f in found), sum(f.difference > f.error for f in found)
    expected = len(found) * float(student.cdf(-1, seeds - 1))
    result = [
        f"{DEFAULT} is below {JUDGE} by more than a standard error in {below} of {len(found)} settings, and above by "
        f"more than one in {above}. Were the two equal, {expected:.1f} would be so far below by chance (Student's t)."
    ]
    for head in dict.fromkeys(row.head for row in rows):
        runs = [row for row in rows if row.head == head]
        shares = [row.beyond for row in runs if row.beyond is not None and math.isfinite(row.beyond)]
        told = [f"{sum(row.lost for row in runs)} of {len(runs)} runs lost"]
        if any(shares):
            told.append(f"nodes beyond the natural range: {min(shares):.0%} to {max(shares):.0%}")
        if head not in ("softmax", JUDGE):
            broken = sum(finding.broken for finding in findings(rows, head))
            told.append(f"the rule broken in {broken} of {len(found)} settings")
        result.append(f"{head}: {'; '.join(told)}.")
    keys = _settings(rows)
    gaps = _finite([_mean(rows, key, DEFAULT) - _mean(rows, key, "softmax") for key in keys])
    if gaps:
        result.append(f"{DEFAULT} minus softmax, by setting: {min(gaps):+.2f} to {max(gaps):+.2f} points.")
    twins = [((task, "torch", setting), (task, "jax", setting)) for task, backend, setting in keys if backend == "jax"]
    steady = ("softmax", JUDGE, DEFAULT)  # a head that loses runs loses others in every backend
    gaps = _finite([abs(_mean(rows, a, head) - _mean(rows, b, head)) for a, b in twins if a in keys for head in steady])
    if gaps:
        result.append(
            "PyTorch and JAX train from the same weights on the same batches, so they are not two samples: the means "
            f"of {', '.join(steady)} are at most {max(gaps):.2f} points apart."
        )
    return result


def _finite(shares: Sequence[float]) -> list[float]:
    """Those that are numbers, in points."""
    return [100 * share for share in shares if math.isfinite(share)]


def _table(rows: Sequence[Row]) -> list[str]:
    """Heads down, settings across."""
    keys = _settings(rows)
    lines = [
        f"| {rows[0].task}, {rows[0].backend} | {' | '.join(str(setting) for *_, setting in keys)} |",
        f"| --- |{' ---: |' * len(keys)}",
    ]
    for head in dict.fromkeys(row.head for row in rows):
        cells = []
        for key in keys:
            values = [row.accuracy for row in rows if row.head == head and _key(row) == key]
            numbers = [value for value in values if math.isfinite(value)]
            if len(numbers) < len(values):
                cells.append(f"{len(values) - len(numbers)} of {len(values)} NaN")
            else:
                mean, error = _mean_and_error(numbers)
                cells.append(f"{100 * mean:.2f} {PM} {100 * error:.2f} ({100 * min(numbers):.1f})")
        lines.append(f"| {head} | {' | '.join(cells)} |")
    return lines


def _key(row: Row) -> tuple[str, str, Setting]:
    return row.task, row.backend, Setting(row.optimiser, row.rate)


def _settings(rows: Sequence[Row]) -> list[tuple[str, str, Setting]]:
    return list(dict.fromkeys(map(_key, rows)))


def _mean(rows: Sequence[Row], key: tuple[str, str, Setting], head: str) -> float:
    return float(np.mean([row.accuracy for row in rows if row.head == head and _key(row) == key]))


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The error of a single value is not known: NaN."""
    found = summarize(values)
    return found.mean, found.std / math.sqrt(found.count)


# ---------------------------------------------------------------- the command


def write(folder: Path, rows: Sequence[Row], facts: dict[str, str]) -> None:
    """`swap.csv`, every run; `swap.md`, the tables and what they say; `swap.json`, where they come from."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "swap.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            shown = asdict(row)
            writer.writerow(
                shown | {key: round(shown[key], 6) for key in ("accuracy", "beyond") if shown[key] is not None}
            )
    (folder / "swap.md").write_text(report(rows))
    (folder / "swap.json").write_text(json.dumps(facts, indent=2) + "\n")


def _natural(tail: float) -> catnat.Parameterization | None:
    return catnat.Parameterization(CLASSES, catnat.Natural(tail=tail))


def _steeper(gain: float) -> catnat.Parameterization | None:
    """The default with its scores times the gain."""
    return catnat.Parameterization(CLASSES, catnat.Natural(amplitude=2 * math.pi / gain))


def main() -> None:
    """Train, print and, with --output, record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.swap", description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("torch", "jax", "both"), default="both")
    parser.add_argument("--tasks", choices=tuple(TASKS), nargs="+", help="default: digits, and mnist with --digits")
    parser.add_argument("--digits", type=Path, help="folder with MNIST's four IDX files, plain or gzipped")
    parser.add_argument("--seeds", type=int, default=5, help="at least 2: one run has no standard error")
    parser.add_argument("--first-seed", type=int, default=0, help="later ones are fresh: no choice was made on them")
    parser.add_argument("--tails", type=float, nargs="+", default=[], help="more heads: natural with these tails")
    parser.add_argument("--gains", type=float, nargs="+", default=[], help="more heads: the default, so much steeper")
    parser.add_argument("--sgd", type=float, nargs="+", help="SGD at these rates, in place of a task's five settings")
    parser.add_argument("--last-batch", action="store_true", help="train on a last batch that is not full, too")
    parser.add_argument("--own-splits", action="store_true", help="each seed parts the small digits in its own way")
    parser.add_argument("--momentum", type=float, default=0.0, help="SGD's")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--output", type=Path, help="folder for swap.csv, swap.md and swap.json")
    arguments = parser.parse_args()
    tasks = arguments.tasks or ["digits", *(["mnist"] if arguments.digits else [])]
    if "mnist" in tasks and arguments.digits is None:
        parser.error("mnist needs --digits FOLDER, with MNIST's four IDX files")
    if arguments.seeds < 2:
        parser.error(f"--seeds must be at least 2; got {arguments.seeds}")
    if arguments.first_seed < 0:
        parser.error(f"--first-seed must be at least 0; got {arguments.first_seed}")
    if (arguments.last_batch or arguments.momentum) and arguments.backend != "torch":
        parser.error("--last-batch and --momentum need --backend torch")
    if arguments.own_splits and tasks != ["digits"]:
        parser.error(f"--own-splits goes with the task digits alone; got {' '.join(tasks)}")
    if not 0 <= arguments.momentum < 1:
        parser.error(f"--momentum must be at least 0 and below 1; got {arguments.momentum:g}")
    device = torch.device(arguments.device)
    backends = ("torch", "jax") if arguments.backend == "both" else (arguments.backend,)
    heads = HEADS | {f"tail {tail:g}": _natural(tail) for tail in arguments.tails}
    heads |= {f"gain {gain:g}": _steeper(gain) for gain in arguments.gains}
    # where a user keeps MNIST is nobody's business
    words = ["FOLDER" if arguments.digits and Path(word) == arguments.digits else word for word in sys.argv[1:]]
    facts = provenance(" ".join(["python -m benchmarks.swap", *words]), device)
    facts |= {"default": repr(catnat.Parameterization(CLASSES).activation)} | (
        {"jax": version("jax")} if "jax" in backends else {}
    )
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    rows: list[Row] = []
    for name in tasks:
        if arguments.own_splits:
            splits = [([seed], small_digits(seed)) for seed in seeds]
        else:
            splits = [(list(seeds), small_digits() if name == "digits" else mnist(arguments.digits))]
        for backend in backends:
            started = time.perf_counter()
            task = replace(TASKS[name], last=arguments.last_batch, momentum=arguments.momentum)
            for setting in [Setting("SGD", rate) for rate in arguments.sgd or ()] or task.settings:
                for some, split in splits:
                    rows += run(task, backend, setting, some, split, device, heads)
                taken = f"{time.perf_counter() - started:.0f}"
                print(f"{name}, {backend}, {setting}: {taken} s", file=sys.stderr, flush=True)
            facts[f"seconds, {name}, {backend}"] = taken
            if arguments.output:  # after every part: what was trained is not lost with the next
                write(arguments.output, rows, facts)
    print(report(rows))


if __name__ == "__main__":
    main()
