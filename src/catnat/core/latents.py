"""What both backends' latent variables share: the settings, checked."""

from __future__ import annotations

from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from catnat.core.errors import check_between, check_choice, check_num_classes
from catnat.core.parameterization import ACTIVATIONS, Activation, Natural, Parameterization, Sigmoid
from catnat.core.tree import Floats

HEADS = ("softmax", *ACTIVATIONS)
# what others call ours, for whoever types it
KNOWN_AS = {
    "catnat": "natural",
    "gumbel-softmax": "gumbel",
    "gumbel_softmax": "gumbel",
    "straight_through": "straight-through",
}


class Stats(NamedTuple):
    """How a batch uses its classes, per variable: without a gradient, for a log."""

    usage: Any  # [variables, classes] share of the draws
    perplexity: Any  # [variables] exp of the entropy of the usage: how many classes are as good as used
    entropy: Any  # [variables] mean entropy of q, in nats
    dead: Any  # [variables] share of the classes that were never drawn


def in_shapes(values: Any) -> str:
    """The repr of a tuple with names: of its arrays the dtype and shape."""
    shown = (
        f"{name}={str(a.dtype).removeprefix('torch.')}{list(a.shape)}" if hasattr(a, "shape") else f"{name}={a!r}"
        for name, a in values._asdict().items()
    )
    return f"{type(values).__name__}({', '.join(shown)})"


def check_sizes(**sizes: object) -> None:
    """Raise unless every size is a whole number above 0, or None."""
    for name, value in sizes.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} must be a whole number above 0; got {value!r}")


def check_prior(shape: tuple[int, ...], expected: tuple[int, ...], off: float, learns: bool) -> None:
    """Raise unless a prior holds log-probabilities of a shape that fits, for a latent that learns none of its own."""
    if learns:
        raise ValueError('prior must be None where the latent learns one of its own: prior="learned"')
    if shape[-2:] != expected[-2:] or len(shape) > len(expected):
        raise ValueError(f"prior must be [..., {expected[-2]}, {expected[-1]}]; got {tuple(shape)}")
    if off > 0.1:  # 16 bits sum less exactly
        raise ValueError(f"prior must be log-probabilities, whose exp sums to 1; got log-sums up to {off:g} from 0")


def tau_of(estimator: str, tau: Any) -> Any:
    """A temperature, or the usual one of an estimator."""
    if tau is None:
        return 1.0 if estimator in ("reinmax", "straight-through") else 0.5
    return tau


def check_tau(estimator: str, tau: object) -> None:
    """Raise where a call hands a temperature to what has none."""
    if estimator == "score-function" and tau is not None:
        raise ValueError(f"tau must be None with the estimator 'score-function', which has no temperature; got {tau}")


def check_features(shape: tuple[int, ...], wide: int, axis: str, channel_first: bool) -> None:
    """Raise unless features are as wide as the module reads them."""
    if len(shape) < 1 + channel_first or shape[1 if channel_first else -1] != wide:
        maps = not channel_first and len(shape) > 2 and shape[1] == wide
        hint = f"; for feature maps [N, {wide}, ...] say channel_first=True" if maps else ""
        raise ValueError(f"h must be {wide} wide along {axis}; got shape {tuple(shape)}{hint}")


def check_unimix(value: float) -> float:
    """The share of the uniform distribution that is mixed in, in [0, 1)."""
    if check_between("unimix", value, 0.0, 1.0) == 1:
        raise ValueError("unimix must be below 1: nothing would be learned; got 1")
    return float(value)


def check_variables(shape: tuple[int, ...], variables: int) -> None:
    """Raise unless indices have a last axis of the variables."""
    if not shape or shape[-1] != variables:
        raise ValueError(f"indices must be [..., {variables}], the variables last; got shape {tuple(shape)}")


def parameterization_of(head: str | Activation | Parameterization, classes: int) -> Parameterization | None:
    """What the scores of a head mean; None for softmax."""
    if isinstance(classes, Parameterization):
        raise TypeError(f"classes must be a whole number; what is no plain number goes into head=; got {classes!r}")
    if check_num_classes(classes) < 2:
        raise ValueError(f"classes must be at least 2: one class is no choice; got {classes}")
    if isinstance(head, Parameterization):
        if head.num_classes != classes:
            raise ValueError(f"head must have as many classes as the latent, {classes}; got {head!r}")
        return head
    if not isinstance(head, Activation):
        check_choice("head", head, HEADS, KNOWN_AS)
    return None if head == "softmax" else Parameterization(classes, head)


def vanishes(pi: Parameterization | None) -> bool:
    """Whether finite scores may give a class the probability 0."""
    kind = None if pi is None else pi.activation
    return not (kind is None or type(kind) is Sigmoid or (type(kind) is Natural and kind.tail > 0))


def log_prior_of(prior: Any, variables: int, classes: int) -> Floats | None:
    """[variables, classes] log-probabilities of a prior that is fixed; None for one that is learned."""
    if isinstance(prior, str):
        check_choice("prior", prior, ("uniform", "learned"))
        return None if prior == "learned" else np.full((variables, classes), -np.log(classes))
    if hasattr(prior, "detach"):  # a tensor, wherever it lies and whatever its dtype
        prior = prior.detach().double().cpu()
    probs = np.asarray(prior, np.float64)
    shapes = (classes,), (variables, classes)
    if probs.shape not in shapes or not ((probs > 0) & (probs < np.inf)).all():
        raise ValueError(
            f"prior must be 'uniform', 'learned', or finite probabilities above 0 of shape {shapes[0]} or {shapes[1]}; "
            f"got {probs.tolist() if probs.size < 9 else f'shape {probs.shape}'}"
        )
    return np.broadcast_to(np.log(probs / probs.sum(-1, keepdims=True)), (variables, classes))


def number_of(log_prior: Floats | None) -> float:
    """A number that fixed priors which differ do not share, nor one that is learned."""
    return 0.0 if log_prior is None else float(crc32(log_prior.astype(np.float32).tobytes()))
