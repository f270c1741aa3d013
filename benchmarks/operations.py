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
from catnat_lab import reference

ACTIVATIONS = ("sigmoid", "natural")
CHECKED_ROWS = 4
COPIED = 1 << 26  # float32 numbers in the plain copy that bandwidths are compared with


@dataclass(frozen=True)
class Case:
    """One shape: the rival, ours by activation, and how much of the rival's time ours may take at most."""

    rival: Run
    ours: dict[str, Run]
    limits: dict[str, float | None]
    bytes: int | None = None  # that a call must read and write, where that is the measure


@dataclass(frozen=True)
class Operation:
    """A name, the rival's name, and the case of every shape (rows, classes)."""

    rival: str
    shapes: tuple[tuple[int, int], ...]
    case: Callable[[int, int], Case]


def _forward_backward(function: Callable[[Tensor], Tensor], x: Tensor, gradient: Tensor) -> Run:
    return lambda: torch.autograd.grad(function(x), x, gradient)


def check(
    name: str, came: np.ndarray, expected: np.ndarray, scale: np.ndarray | None = None, tolerance: float = 2e-6
) -> None:
    """Stop everything unless ``came`` is what the oracle says, relative to ``scale`` or to itself."""
    size = np.abs(expected if scale is None else scale)
    error = float(np.max(np.abs(came - expected) / np.maximum(1, size)))
    if not error < tolerance:
        raise SystemExit(f"benchmarks: {name} is wrong by {error:.1e} against the oracle; nothing was timed")


def check_gradient(
    name: str, came: np.ndarray, scores: np.ndarray, upstream: np.ndarray, pi: catnat.Parameterization
) -> None:
    """Against the oracle's gradient, relative to the size of the terms it sums: floats cannot do better than that."""
    _, _, slope_left, slope_right = reference.activation(scores, pi)
    below = reference.mass_below(np.abs(upstream), pi)
    size = below[..., 2::2] * np.abs(slope_left) + below[..., 3::2] * np.abs(slope_right)
    check(f"{name}, gradient", came, reference.log_catnat_gradient(scores, upstream, pi), size)


def check_draws(name: str, counts: np.ndarray, scores: np.ndarray, pi: catnat.Parameterization) -> None:
    """Stop everything unless the classes' counts, drawn from one row of scores, fit the probabilities."""
    # how often every node was passed and left to the right: a binomial count, whatever the number of classes
    passed = reference.mass_below(np.asarray(counts, np.float64), pi)
    right = np.exp(reference.activation(scores, pi)[1][0])
    often = passed[2::2] + passed[3::2] > 500
    total = (passed[2::2] + passed[3::2])[often]
    z = (passed[3::2][often] - total * right[often]) / np.sqrt(total * right[often] * (1 - right[often]) + 1)
    if not np.max(np.abs(z)) < 6:
        raise SystemExit(f"benchmarks: {name} does not follow its probabilities; nothing was timed")


def _few(tensor: Tensor) -> np.ndarray:
    return tensor.detach()[:CHECKED_ROWS].double().numpy()


def log_probabilities(rows: int, classes: int) -> Case:
    """All log-probabilities, forward and backward."""
    scores = torch.randn(rows, classes - 1, requires_grad=True)
    logits = torch.randn(rows, classes, requires_grad=True)
    gradient = torch.randn(rows, classes)
    ours = {}
    for activation in ACTIVATIONS:
        pi = catnat.Parameterization(classes, activation)
        run = _forward_backward(lambda s, pi=pi: ct.log_catnat(s, pi), scores, gradient)
        expected = reference.log_catnat(_few(scores), pi)
        check(f"log_catnat {activation}", _few(ct.log_catnat(scores, pi)), expected)
        check_gradient(f"log_catnat {activation}", _few(run()[0]), _few(scores), _few(gradient), pi)
        ours[activation] = run
    return Case(_forward_backward(lambda x: F.log_softmax(x, -1), logits, gradient), ours, _at_most(1.5))


def masked_log_probabilities(rows: int, classes: int) -> Case:
    """All log-probabilities of the allowed classes, forward and backward."""
    scores = torch.randn(rows, classes - 1, requires_grad=True)
    logits = torch.randn(rows, classes, requires_grad=True)
    mask = torch.rand(rows, classes) < 0.7
    mask[:, 0] = True
    gradient = torch.where(mask, torch.randn(rows, classes), 0.0)
    ours = {}
    for activation in ACTIVATIONS:
        pi = catnat.Parameterization(classes, activation)
        allowed = mask[:CHECKED_ROWS].numpy()
        expected = reference.log_catnat(_few(scores), pi, allowed)
        came = _few(ct.log_catnat(scores, pi, mask=mask))
        check(f"masked log_catnat {activation}", came[allowed], expected[allowed])
        ours[activation] = _forward_backward(lambda s, pi=pi: ct.log_catnat(s, pi, mask=mask), scores, gradient)

    def rival(x: Tensor) -> Tensor:
        return F.log_softmax(torch.where(mask, x, -torch.inf), -1)

    return Case(_forward_backward(rival, logits, gradient), ours, _at_most(1.5))


def log_probability_of_one(rows: int, classes: int) -> Case:
    """The log-probability of one class a row, forward and backward."""
    scores = torch.randn(rows, classes - 1, requires_grad=True)
    logits = torch.randn(rows, classes, requires_grad=True)
    index, gradient = torch.randint(classes, (rows,)), torch.randn(rows)
    ours = {}
    for activation in ACTIVATIONS:
        pi = catnat.Parameterization(classes, activation)
        run = _forward_backward(lambda s, pi=pi: ct.log_prob(s, index, pi), scores, gradient)
        expected = reference.log_prob(_few(scores), index[:CHECKED_ROWS].numpy(), pi)
        check(f"log_prob {activation}", _few(ct.log_prob(scores, index, pi)), expected)
        upstream = F.one_hot(index[:CHECKED_ROWS], classes).numpy() * _few(gradient)[:, None]
        check_gradient(f"log_prob {activation}", _few(run()[0]), _few(scores), upstream, pi)
        ours[activation] = run

    def rival(x: Tensor) -> Tensor:
        return F.log_softmax(x, -1).gather(-1, index.unsqueeze(-1)).squeeze(-1)

    return Case(_forward_backward(rival, logits, gradient), ours, _at_most(1.5 if classes < 32 else 1.0))


def loss(rows: int, classes: int) -> Case:
    """The mean cross-entropy against class ids, forward and backward."""
    scores = torch.randn(rows, classes - 1, requires_grad=True)
    logits = torch.randn(rows, classes, requires_grad=True)
    target, one = torch.randint(classes, (rows,)), torch.ones(())
    ours = {}
    for activation in ACTIVATIONS:
        pi = catnat.Parameterization(classes, activation)
        expected = reference.cross_entropy(_few(scores), target[:CHECKED_ROWS].numpy(), pi)
        came = ct.cross_entropy(scores, target, pi, reduction="none")
        check(f"cross_entropy {activation}", _few(came), expected)
        ours[activation] = _forward_backward(lambda s, pi=pi: ct.cross_entropy(s, target, pi), scores, one)
    return Case(_forward_backward(lambda x: F.cross_entropy(x, target), logits, one), ours, _at_most(1.5))


def _at_most(limit: float | None) -> dict[str, float | None]:
    return dict.fromkeys(ACTIVATIONS, limit)


def one_sample(rows: int, classes: int) -> Case:
    """One draw a row."""
    scores, logits = torch.randn(rows, classes - 1), torch.randn(rows, classes)
    ours = {}
    for activation in ACTIVATIONS:
        pi = catnat.Parameterization(classes, activation)
        drawn = ct.sample(scores[:1], pi, sample_shape=(20_000,)).flatten()
        counts = torch.bincount(drawn, minlength=classes).numpy()
        check_draws(f"sample {activation}", counts, _few(scores)[:1], pi)
        ours[activation] = lambda pi=pi: ct.sample(scores, pi)
    limits = _at_most(1.0 if rows * classes >= 1024 * 18 else None)
    return Case(lambda: torch.multinomial(F.softmax(logits, -1), 1), ours, limits)


def _policy(policy: torch.distributions.Categorical) -> tuple[Tensor, Tensor, Tensor]:
    action = policy.sample()
    return action, policy.log_prob(action), policy.entropy()


def acting(rows: int, classes: int) -> Case:
    """A policy's step: a draw per row, its log p and the entropy, by the distribution's three calls and by `draw`."""
    scores, logits = torch.randn(rows, classes - 1), torch.randn(rows, classes)
    ours: dict[str, Run] = {}
    for activation in ACTIVATIONS:
        pi = catnat.Parameterization(classes, activation)
        action, log_prob, entropy = ct.draw(scores, pi)
        check(f"draw {activation}, entropy", _few(entropy), reference.entropy(_few(scores), pi))
        expected = reference.log_prob(_few(scores), action[:CHECKED_ROWS].numpy(), pi)
        check(f"draw {activation}, log p", _few(log_prob), expected)
        ours[f"CatnatCategorical {activation}"] = lambda pi=pi: _policy(ct.CatnatCategorical(scores, pi))
        ours[f"draw {activation}"] = lambda pi=pi: ct.draw(scores, pi)
    return Case(lambda: _policy(torch.distributions.Categorical(logits=logits)), ours, dict.fromkeys(ours, 1.0))


SMALL = ((8, 6), (8, 18))
SHAPES = (*SMALL, (1024, 18), (3840, 32), (16384, 32), (4096, 256), (512, 1024), (8, 65536))
OPERATIONS = {
    "log_catnat forward+backward": Operation("torch.log_softmax", SHAPES, log_probabilities),
    "log_prob forward+backward": Operation("torch.log_softmax + gather", SHAPES, log_probability_of_one),
    "cross_entropy forward+backward": Operation("torch cross_entropy", SHAPES, loss),
    "masked log_catnat forward+backward": Operation("torch.log_softmax, masked", SHAPES, masked_log_probabilities),
    "sample": Operation("torch.softmax + multinomial", SHAPES, one_sample),
    "sample + log_prob + entropy": Operation("torch Categorical", (*SMALL, (1024, 18)), acting),
}
