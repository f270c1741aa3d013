"""The one switch between parameterizations: whatever in the lab turns scores into probabilities goes through here.

A head knows how many scores K classes take, their log-probabilities, and the way back from probabilities to scores, so
that experiments start every parameterization from the same distribution.
"""

import difflib
import json
import math
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

import catnat
import catnat.torch as ct
from catnat_lab.errors import UserError

# The paper's four, in its order.
PAPER_HEADS = ("sparsemax", "softmax", "catnat-sigmoid", "catnat-paper")

_ACTIVATIONS: dict[str, catnat.Activation] = {
    "catnat": catnat.Natural(),  # the library's default
    "catnat-sigmoid": catnat.Sigmoid(),
    "catnat-paper": catnat.Natural(tail=0.0, floor=1e-8),  # with a floor, in every published table
}
# Any member of the family: `catnat-tail0.02`, `catnat-tail0.05-gain2`; the paper's with any floor: `catnat-clip1e-6`,
# or `catnat-revive1e-4`, whose nodes come back from outside their range.
_MEMBER = re.compile(
    r"catnat-(?:tail(?P<tail>[0-9.e-]+)(?:-gain(?P<gain>[0-9.]+))?|(?P<way>clip|revive)(?P<floor>[0-9.e-]+))"
)
# Either may end in a tree, as `Tree.from_nested` takes it: `catnat[[1,3],[0,[2,4]]]`; else it is the balanced one.
FORBIDDEN = 1e4  # how far below the others a forbidden class's score is put: e to the minus that is 0
HEAD_NAMES = ("softmax", "sparsemax", *_ACTIVATIONS)


@dataclass(frozen=True)
class Head:
    """A way from scores [..., width] to K log-probabilities, and back: softmax, and what others do otherwise."""

    name: str
    width: int

    def log_probs(self, scores: Tensor) -> Tensor:
        """Log-probabilities [..., K]; -inf where a class has probability 0."""
        return torch.log_softmax(scores, -1)

    def draw(self, scores: Tensor, *, index: Tensor | None = None, mask: Tensor | None = None) -> ct.Draw:
        """A class a row with its log p and the row's entropy; with ``index`` those classes, as `catnat.torch.draw`."""
        if mask is not None:
            # a finite number, because sparsemax takes no infinities; relative, lest it be too small
            scores = torch.where(mask, scores, scores.amin(-1, keepdim=True) - FORBIDDEN)
        log_probs = self.log_probs(scores)
        if index is None:
            noise = torch.empty_like(log_probs).exponential_().log()
            index = (log_probs.detach() - noise).argmax(-1)
        log_prob = log_probs.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        probs = log_probs.exp()
        entropy = -(probs * torch.where(probs > 0, log_probs, 0.0)).sum(-1)
        return ct.Draw(index, log_prob, entropy)

    def scores_from_probs(self, probs: Tensor) -> Tensor:
        return probs.log()

    def project(self, scores: Tensor) -> Tensor:
        """Scores brought back to where they can learn; the same scores, for all heads but sparsemax."""
        return scores


@dataclass(frozen=True)
class _Sparsemax(Head):
    floor: float = 1e-3

    def log_probs(self, scores: Tensor) -> Tensor:
        from entmax import sparsemax

        # entmax refuses a row that is not a number, and with it all the others
        lost = ~scores.amax(-1, keepdim=True).isfinite()
        probs = sparsemax(torch.where(lost, 0.0, scores), dim=-1)
        inside = probs > 0
        log_probs = torch.where(inside, torch.where(inside, probs, 1.0).log(), -torch.inf)
        return torch.where(lost, torch.nan, log_probs)

    def scores_from_probs(self, probs: Tensor) -> Tensor:
        return probs  # a point of the simplex is its own projection

    def project(self, scores: Tensor) -> Tensor:
        """Keep every class at ``floor`` at least: at probability 0 it is never drawn and its gradient is 0 for good."""
        probs = self.log_probs(scores).exp()
        least = probs.clamp(min=self.floor)
        lost = (probs < self.floor).any(-1, keepdim=True)
        return torch.where(lost, least / least.sum(-1, keepdim=True), scores)


@dataclass(frozen=True)
class _Catnat(Head):
    parameterization: catnat.Parameterization

    def log_probs(self, scores: Tensor) -> Tensor:
        return ct.log_catnat(scores, self.parameterization)

    def draw(self, scores: Tensor, *, index: Tensor | None = None, mask: Tensor | None = None) -> ct.Draw:
        return ct.draw(scores, self.parameterization, index=index, mask=mask)

    def scores_from_probs(self, probs: Tensor) -> Tensor:
        return ct.scores_from_probs(probs, self.parameterization)


class _Gate(torch.autograd.Function):
    """Scores brought to their range; from outside, a gradient passes if a descent step would lead back inside."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, low: Tensor, high: Tensor) -> Tensor:
        ctx.save_for_backward((scores > high).to(scores.dtype) - (scores < low).to(scores.dtype))
        return scores.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (side,) = ctx.saved_tensors
        return torch.where((side == 0) | (side * gradient > 0), gradient, 0.0), None, None


@dataclass(frozen=True)
class _Revived(_Catnat):
    """The paper's activation up to its floor, beyond which a node can come back. Its values are the clip's."""

    floor: float

    def log_probs(self, scores: Tensor) -> Tensor:
        return super().log_probs(self._gated(scores))

    def draw(self, scores: Tensor, *, index: Tensor | None = None, mask: Tensor | None = None) -> ct.Draw:
        return super().draw(self._gated(scores), index=index, mask=mask)

    def _gated(self, scores: Tensor) -> Tensor:
        return cast(
            Tensor, _Gate.apply(scores, *_range(self.parameterization, self.floor, scores.dtype, scores.device))
        )


@cache
def _range(
    pi: catnat.Parameterization, floor: float, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """[K-1] the lowest and the highest score of every node."""
    centers = torch.tensor(pi.centers, dtype=dtype, device=device)
    reach = math.pi - catnat.Natural(tail=0.0, floor=floor).margin
    return centers - reach, centers + reach


@cache
def head(name: str, num_classes: int) -> Head:
    pi = parameterization_of(name, num_classes)
    if pi is None:
        return (_Sparsemax if name == "sparsemax" else Head)(name, num_classes)
    if (found := _MEMBER.fullmatch(parts_of(name)[0])) and found["way"] == "revive":
        exact = replace(pi, activation=catnat.Natural(tail=0.0, floor=0.0))  # it has a slope where the gate holds it
        return _Revived(name, num_classes - 1, exact, float(found["floor"]))
    return _Catnat(name, num_classes - 1, pi)


def parameterization_of(name: str, num_classes: int) -> catnat.Parameterization | None:
    """A catnat head's, with its tree; None of softmax and sparsemax."""
    activation, (_, tree) = activation_of(name), parts_of(name)
    if activation is None:
        return None
    if tree is not None and tree.num_classes != num_classes:
        raise UserError(f"head {name!r} has a tree of {tree.num_classes} classes; here there are {num_classes}")
    return catnat.Parameterization(num_classes, activation, tree)


def parts_of(name: str) -> tuple[str, catnat.Tree | None]:
    """The name of a head's activation, and the tree that its own ends in; None where it says none."""
    if re.search(r"\s", name):
        raise UserError(f"head must be a name without spaces; got {name!r}")
    base, bracket, rest = name.partition("[")
    try:
        return base, catnat.Tree.from_nested(json.loads(bracket + rest)) if bracket else None
    except json.JSONDecodeError:
        problem: object = "these are no nested pairs of class ids"
    except (ValueError, RecursionError) as found:
        problem = found
    raise UserError(f"head {name!r} must end in a tree such as [[0,1],2]: {problem}")


def activation_of(name: str) -> catnat.Activation | None:
    """A catnat head's; None of softmax and sparsemax, and an error of any other name, or of what is no tree."""
    base, tree = parts_of(name)
    if (found := _MEMBER.fullmatch(base)) is None:
        if base not in HEAD_NAMES or (tree and base not in _ACTIVATIONS):
            forms = "catnat-tailT[-gainG], catnat-clipFLOOR or catnat-reviveFLOOR, a catnat with or without a tree"
            near = difflib.get_close_matches(base, HEAD_NAMES, 1)
            hint = f" (did you mean {near[0]}?)" if near and near[0] != base else ""
            raise UserError(f"head must be one of {', '.join(HEAD_NAMES)}, {forms}; got {name!r}{hint}")
        return _ACTIVATIONS.get(base)
    try:
        if found["way"]:
            return catnat.Natural(tail=0.0, floor=float(found["floor"]))
        tail, gain = float(found["tail"]), float(found["gain"] or 1)
        amplitude = 2 * math.pi / gain
        return catnat.Natural(amplitude=amplitude, tail=tail, floor=None if tail else 1e-8)
    except (ValueError, ZeroDivisionError) as problem:
        raise UserError(f"head {name!r} is no member of the family: {problem}") from None


def is_natural(name: str) -> bool:
    """Whether a head's nodes have a natural range, and so a share of them that is outside it.

    By its name alone: old studies have heads that are gone.
    """
    return name.startswith("catnat") and not name.startswith("catnat-sigmoid")


def natural_reach(activation: catnat.Activation | None) -> float | None:
    """How far from its centre a node's score can be and stay inside the natural range; None where nothing is outside.

    Outside, the paper's activation has no slope at all, and the default's no longer grows.
    """
    return activation.joint / activation.gain if isinstance(activation, catnat.Natural) else None
