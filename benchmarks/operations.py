"""What is timed against what, and how it is checked first.

An operation builds, for one shape, its rival and our contenders as calls without arguments, and compares our values and
gradients with the float64 oracle. To time another operation, add one function here and its name to `OPERATIONS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import catnat
import catnat.torch as ct
from benchmarks.measure import Run
from catnat.core import reference

ACTIVATIONS = ("sigmoid", "natural")
CHECKED_ROWS = 4


@dataclass(frozen=True)
class Case:
    """One shape: the rival, ours by activation, and how much of the rival's time ours may take at most."""

    rival: Run
    ours: dict[str, Run]
    limits: dict[str, float]


@dataclass(frozen=True)
class Operation:
    """A name, the rival's name, and the case of every shape (rows, classes)."""

    rival: str
    shapes: tuple[tuple[int, int], ...]
    case: Callable[[int, int], Case]


def _forward_backward(function: Callable[[Tensor], Tensor], x: Tensor, gradient: Tensor) -> Run:
    return lambda: torch.autograd.grad(function(x), x, gradient)


def _check(name: str, came: Tensor, expected: np.ndarray, scale: np.ndarray) -> None:
    error = float(np.max(np.abs(came.detach().double().numpy() - expected) / np.maximum(1, np.abs(scale))))
    if not error < 1e-5:
        raise SystemExit(f"benchmarks: {name} is wrong by {error:.1e} against the oracle; nothing was timed")


def log_probabilities(rows: int, classes: int) -> Case:
    """All log-probabilities, forward and backward."""
    scores = torch.randn(rows, classes - 1, requires_grad=True)
    logits = torch.randn(rows, classes, requires_grad=True)
    gradient = torch.randn(rows, classes)
    ours = {}
    for activation in ACTIVATIONS:
        pi = catnat.Parameterization(classes, activation)
        run = _forward_backward(lambda s, pi=pi: ct.log_catnat(s, pi), scores, gradient)
        few, upstream = scores.detach().double().numpy()[:CHECKED_ROWS], gradient.double().numpy()[:CHECKED_ROWS]
        expected = reference.log_catnat(few, pi)
        _check(f"log_catnat {activation}", ct.log_catnat(scores, pi)[:CHECKED_ROWS], expected, expected)
        size = reference.log_catnat_gradient(few, np.abs(upstream), pi)
        slope = reference.log_catnat_gradient(few, upstream, pi)
        _check(f"log_catnat {activation} gradient", run()[0][:CHECKED_ROWS], slope, 1 + np.abs(size) + upstream.max())
        ours[activation] = run
    small = rows * classes < 1000
    limits = {"sigmoid": 3.0 if small else 3.5, "natural": 4.5 if small else 5.0}
    return Case(_forward_backward(lambda x: F.log_softmax(x, -1), logits, gradient), ours, limits)


def log_probability_of_one(rows: int, classes: int) -> Case:
    """The log-probability of one class a row, forward and backward."""
    scores = torch.randn(rows, classes - 1, requires_grad=True)
    logits = torch.randn(rows, classes, requires_grad=True)
    index, gradient = torch.randint(classes, (rows,)), torch.randn(rows)
    ours = {}
    for activation in ACTIVATIONS:
        pi = catnat.Parameterization(classes, activation)
        ours[activation] = _forward_backward(lambda s, pi=pi: ct.log_prob(s, index, pi), scores, gradient)
        expected = reference.log_prob(scores.detach().double().numpy()[:CHECKED_ROWS], index[:CHECKED_ROWS].numpy(), pi)
        _check(f"log_prob {activation}", ct.log_prob(scores, index, pi)[:CHECKED_ROWS], expected, expected)

    def rival(x: Tensor) -> Tensor:
        return F.log_softmax(x, -1).gather(-1, index.unsqueeze(-1)).squeeze(-1)

    return Case(_forward_backward(rival, logits, gradient), ours, dict.fromkeys(ACTIVATIONS, 1.0))


def one_sample(rows: int, classes: int) -> Case:
    """One draw a row."""
    scores, logits = torch.randn(rows, classes - 1), torch.randn(rows, classes)
    ours = {}
    for activation in ACTIVATIONS:
        pi = catnat.Parameterization(classes, activation)
        drawn = ct.sample(scores[:1], pi, sample_shape=(20_000,)).flatten()
        frequency = torch.bincount(drawn, minlength=classes).double().numpy() / drawn.numel()
        expected = reference.catnat(scores[:1].double().numpy(), pi)[0]
        if not np.max(np.abs(frequency - expected)) < 0.02:
            raise SystemExit(f"benchmarks: sample {activation} does not follow its probabilities; nothing was timed")
        ours[activation] = lambda pi=pi: ct.sample(scores, pi)
    return Case(lambda: torch.multinomial(F.softmax(logits, -1), 1), ours, dict.fromkeys(ACTIVATIONS, 1.0))


OPERATIONS = {
    "log_catnat forward+backward": Operation(
        "torch.log_softmax",
        ((8, 18), (1024, 18), (3840, 32), (512, 1024), (8, 65536)),
        log_probabilities,
    ),
    "log_prob forward+backward": Operation(
        "torch.log_softmax + gather",
        ((3840, 32), (16384, 32), (4096, 64), (4096, 256), (512, 1024), (8, 65536)),
        log_probability_of_one,
    ),
    "sample": Operation(
        "torch.softmax + multinomial",
        ((1024, 18), (3840, 32), (4096, 256), (512, 1024), (8, 65536)),
        one_sample,
    ),
}
