"""What is timed against what on a GPU: 64 million elements for every number of classes, and the sizes of a policy.

Beside the one rival that ratios are against, others run along where they are installed: torch.compile of our own plain
tensor code, entmax's sparsemax, Liger's softmax and cross-entropy, QuACK's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import catnat
import catnat.torch as ct
from benchmarks.measure import Run
from benchmarks.operations import ACTIVATIONS, COPIED, Case, Operation, check, check_draws
from catnat.torch import _eager
from catnat.torch._bernoulli import bernoulli_of
from catnat.torch._dispatch import plan_for
from catnat.torch._gpu import launch
from catnat_lab import reference

ELEMENTS = 1 << 26
CLASSES = (
    *(4, 8, 16, 18, 32, 100, 128, 200, 300, 512, 777, 1000, 1024),
    *(3000, 4096, 8192, 32768, 50257, 65536, 131072),
)
SHAPES = tuple((ELEMENTS // k, k) for k in CLASSES)
COMPILED_CLASSES = (8, 128, 1024, 8192)  # torch.compile takes its time
CAPTURED = 10
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}


def copy() -> Run:
    """A plain copy, whose bandwidth is the measure of all."""
    source = torch.randn(COPIED, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _random(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(rows, columns, device="cuda").to(dtype)


def _few(tensor: Tensor) -> np.ndarray:
    """Rows from both ends of the batch, so of the first program and of the last."""
    return torch.cat((tensor[:2], tensor[-2:])).detach().double().cpu().numpy()


def _optional(module: str, name: str) -> Callable[..., Any] | None:
    try:
        return getattr(importlib.import_module(module), name)
    except Exception:  # not installed, or not for this machine
        return None


def captured(run: Run) -> Run | None:
    """CAPTURED calls as one CUDA graph, None where a call cannot be captured."""
    try:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            run()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(CAPTURED):
                run()
    except RuntimeError:
        return None
    return graph.replay


def _works(run: Run) -> bool:
    """Whether a rival takes this size."""
    try:
        run()
        return True
    except Exception:
        return False


def _poisoned(function: Callable[[], Tensor]) -> Tensor:
    """A result in memory that was full of NaN before: what was not written shows."""
    for _ in range(2):
        result = function()
        result.fill_(torch.nan)
        del result
    return function()


def _plain(classes: int, activation: str) -> Callable[[Tensor], Tensor]:
    """Our own plain tensor code, as torch.compile gets it."""
    like = torch.empty(0, device="cuda")
    plan = plan_for(catnat.Parameterization(classes, activation), torch.float32, like)
    return lambda s: _eager.log_classes(s, plan)


def forward(rows: int, classes: int, *, dtype: torch.dtype) -> Case:
    """All log-probabilities."""
    scores, logits = _random(rows, classes - 1, dtype), _random(rows, classes, dtype)
    ours: dict[str, Run] = {}
    for activation in ACTIVATIONS:
        pi = catnat.Parameterization(classes, activation)
        run = partial(ct.log_catnat, scores, pi)
        found = _poisoned(run)
        check(f"log_catnat {activation}", _few(found), reference.log_catnat(_few(scores), pi), None, TOLERANCE[dtype])
        if not torch.isfinite(found).all():
            raise SystemExit(f"benchmarks: log_catnat {activation} left cells of {rows} x {classes} unwritten")
        del found
        ours[activation] = run
    if dtype == torch.float32:
        if classes in COMPILED_CLASSES:
            compiled = torch.compile(_plain(classes, "sigmoid"), dynamic=False)
            ours["torch.compile of eager sigmoid"] = lambda: compiled(scores)
        if 128 <= classes <= 1024 and (sparsemax := _optional("entmax", "sparsemax")):
            ours["entmax sparsemax"] = lambda: sparsemax(logits, -1)
    for name, module, function in (
        ("Liger softmax", "liger_kernel.ops.softmax", "_softmax_forward"),
        ("QuACK softmax", "quack.softmax", "softmax"),
    ):
        if (rival := _optional(module, function)) and _works(partial(rival, logits)):
            ours[name] = partial(rival, logits)
    moved = scores.element_size() * rows * (2 * classes - 1)
    limits: dict[str, float | None] = dict.fromkeys(ACTIVATIONS, 1.1)
    return Case(lambda: torch.log_softmax(logits, -1), ours, limits, moved)


def backward(rows: int, classes: int, *, dtype: torch.dtype) -> Case:
    """Their gradient alone."""
    scores, gradient = _random(rows, classes - 1, dtype), _random(rows, classes, dtype)
    log_p = torch.log_softmax(_random(rows, classes, dtype), -1)
    ours: dict[str, Run] = {}
    for activation in ACTIVATIONS:
        pi = catnat.Parameterization(classes, activation)
        bernoulli = bernoulli_of(pi, scores.device)
        assert bernoulli is not None
        run = partial(launch.pull, scores, bernoulli, gradient, False)
        found = _poisoned(run)
        x, upstream = _few(scores), _few(gradient)
        _, _, left, right = reference.activation(x, pi)
        below = reference.mass_below(np.abs(upstream), pi)
        size = below[..., 2::2] * np.abs(left) + below[..., 3::2] * np.abs(right)
        if dtype != torch.float32:
            size += below[..., 2::2] + below[..., 3::2]
        expected = reference.log_catnat_gradient(x, upstream, pi)
        check(f"gradient {activation}", _few(found), expected, size, TOLERANCE[dtype])
        if not torch.isfinite(found).all():
            raise SystemExit(f"benchmarks: gradient {activation} left cells of {rows} x {classes} unwritten")
        del found
        ours[activation] = run
    moved = scores.element_size() * rows * (3 * classes - 2)
    limits: dict[str, float | None] = dict.fromkeys(ACTIVATIONS, 1.15)
    return Case(lambda: torch._log_softmax_backward_data(gradient, log_p, -1, dtype), ours, limits, moved)


def head(rows: int, classes: int) -> Case:
    """A draw, its log-probability and the entropy, and then the gradient of the latter two."""
    scores = _random(rows, classes - 1).requires_grad_()
    logits = _random(rows, classes).requires_grad_()
    ours: dict[str, Run] = {}
    for activation in ACTIVATIONS:
        pi = catnat.Parameterization(classes, activation)
        drawn = ct.draw(scores[:1].expand(20_000, -1), pi).sample
        counts = torch.bincount(drawn, minlength=classes).cpu().numpy()
        check_draws(f"draw {activation}", counts, scores[:1].detach().double().cpu().numpy(), pi)
        ours[activation] = lambda pi=pi: ct.draw(scores, pi)
        ours[f"{activation} with gradient"] = lambda pi=pi: _with_gradient(ct.draw(scores, pi), scores)

    def rival() -> tuple[Tensor, Tensor, Tensor]:
        policy = torch.distributions.Categorical(logits=logits)
        action = policy.sample()
        return action, policy.log_prob(action), policy.entropy()

    ours["torch Categorical with gradient"] = lambda: _with_gradient(rival(), logits)
    return Case(rival, ours, dict.fromkeys(ACTIVATIONS, 0.5))


def _with_gradient(found: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    return torch.autograd.grad(found[1].sum() + found[2].sum(), x)[0]


def sampling(rows: int, classes: int) -> Case:
    """One draw a row."""
    logits = torch.randn(rows, classes, device="cuda")
    scores = logits[:, :-1]  # rows a stride apart: the memory of one matrix is enough for both
    ours: dict[str, Run] = {}
    for activation in ACTIVATIONS:
        pi = catnat.Parameterization(classes, activation)
        drawn = ct.sample(scores[0], pi, sample_shape=(20_000,))
        counts = torch.bincount(drawn, minlength=classes).cpu().numpy()
        check_draws(f"sample {activation}", counts, scores[:1].double().cpu().numpy(), pi)
        ours[activation] = lambda pi=pi: ct.sample(scores, pi)
    return Case(lambda: torch.multinomial(torch.softmax(logits, -1), 1), ours, dict.fromkeys(ACTIVATIONS, 0.1))


def loss(rows: int, classes: int, *, dtype: torch.dtype) -> Case:
    """The mean cross-entropy against class ids, forward and backward."""
    scores = _random(rows, classes - 1, dtype).requires_grad_()
    logits = _random(rows, classes, dtype).requires_grad_()
    target = torch.randint(classes, (rows,), device="cuda")
    ours: dict[str, Run] = {}
    for activation in ACTIVATIONS:
        pi = catnat.Parameterization(classes, activation)
        came = ct.cross_entropy(scores, target, pi, reduction="none")
        expected = reference.cross_entropy(_few(scores), _few(target.unsqueeze(1))[:, 0].astype(np.int64), pi)
        check(f"cross_entropy {activation}", _few(came.unsqueeze(1))[:, 0], expected, None, TOLERANCE[dtype])
        ours[activation] = lambda pi=pi: torch.autograd.grad(ct.cross_entropy(scores, target, pi), scores)
    if liger := _optional("liger_kernel.ops.cross_entropy", "LigerCrossEntropyFunction"):
        own = logits.detach().clone().requires_grad_()  # it writes the gradient over its input

        def run() -> object:
            return torch.autograd.grad(liger.apply(own, target, None)[0], own)

        if _works(run):
            ours["Liger cross_entropy"] = run
    limits: dict[str, float | None] = dict.fromkeys(ACTIVATIONS, 1.2)
    return Case(lambda: torch.autograd.grad(F.cross_entropy(logits, target), logits), ours, limits)


LOSS_SHAPES = tuple((ELEMENTS // k, k) for k in (32, 1024, 8192, 50257, 131072))
HEAD_SHAPES = tuple((4096, k) for k in (4, 18, 64, 1024))
OPERATIONS = {
    **{
        f"log_catnat {way}, {name}": Operation(rival, SHAPES, partial(case, dtype=dtype))
        for name, dtype in DTYPES.items()
        for way, rival, case in (
            ("forward", "torch.log_softmax", forward),
            ("backward", "torch.log_softmax's backward", backward),
        )
    },
    "sample + log_prob + entropy": Operation("torch Categorical's three calls", HEAD_SHAPES, head),
    "sample": Operation("torch.softmax + multinomial", ((65536, 131072),), sampling),
    **{
        f"cross_entropy forward+backward, {name}": Operation(
            "torch cross_entropy", LOSS_SHAPES, partial(loss, dtype=dtype)
        )
        for name, dtype in DTYPES.items()
    },
}
