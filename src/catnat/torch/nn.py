"""Modules: the functions with their settings kept, and a linear head of the right width."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized

from catnat.core.errors import REDUCTIONS, CatnatWarning, advised, check_choice, check_share
from catnat.core.parameterization import Parameterization, ParameterizationLike, repr_arguments, resolve
from catnat.torch import _eager, _inputs, functional, sampling
from catnat.torch._compat import autocasts, has_hooks
from catnat.torch._dispatch import linear_walk, must_align, path_walk_for
from catnat.torch._inputs import INTEGERS, check_integers
from catnat.torch._walk import known
from catnat.torch._wide import LinearWalk, TopK, aligned_scores
from catnat.torch.distributions import CatnatCategorical
from catnat.torch.functional import catnat, cross_entropy, log_catnat

__all__ = ["Catnat", "CatnatCrossEntropyLoss", "CatnatLinear", "LogCatnat"]

HASHED = ("activation", "tree", "centers", "prior")  # what stands in a definition as hashes
NO_CLASS = -(1 << 62)  # an id that no class has, and that nothing ignores


def _tell_of_linear(module: Any, state: Any, prefix: str, *rest: Any) -> None:
    """Say that weights of a `torch.nn.Linear` stay behind: with strict=False nothing else would."""
    theirs, ours = f"{prefix}weight", f"{prefix}linear.weight"
    if theirs not in state or ours in state:
        return
    rows = tuple(getattr(state[theirs], "shape", ()))[:1]
    if rows == (module.num_classes - 1,):
        advice = f"As many rows as this head has scores: if they are scores of the same tree, rename it to {ours}"
    else:
        lost = f"What a torch.nn.Linear learned for {module.num_classes} classes cannot become {module.num_classes - 1}"
        advice = f"{lost} scores: train this head anew. All other layers load with strict=False"
    warnings.warn(f"{theirs} is not loaded: CatnatLinear has {ours}. {advice}", CatnatWarning, stacklevel=2)


class Defined(torch.nn.Module):
    """A module whose state says which function its scores mean: a change of activation or tree is never silent.

    The numbers of `Parameterization.definition` are a buffer, one byte per bit of float64, 0 or 255: no cast of the
    module changes them, every format of files keeps them, and an average of equal ones is told apart all the same.
    """

    parameterization: Parameterization
    definition: Tensor

    def __init__(
        self, parameterization: ParameterizationLike, device: torch.device | str | None = None, **also: float
    ) -> None:
        super().__init__()
        self.parameterization = resolve(parameterization)
        self._also = also  # what else may not change in silence
        self.register_buffer("definition", self._own_definition().to(device or torch.get_default_device()))
        self.register_load_state_dict_pre_hook(_compare)

    def reset_parameters(self) -> None:
        """Write the definition anew, as after `to_empty`."""
        with torch.no_grad():
            self.definition.copy_(self._own_definition())

    def _own_definition(self) -> Tensor:
        numbers = np.array([*self.parameterization.definition.values(), *self._also.values()])
        return torch.from_numpy(np.unpackbits(numbers.view(np.uint8)) * np.uint8(255))


def _compare(module: Any, state: Any, prefix: str, *rest: Any) -> None:
    """Refuse scores that mean something else here, before anything is copied; older files say nothing of it."""
    name, ours = f"{prefix}definition", module._own_definition()
    theirs = state.setdefault(name, ours)
    if theirs.is_meta or torch.equal((theirs.cpu() > 127).flatten(), ours > 127):
        return
    here = module.parameterization.definition | module._also
    there = np.packbits((theirs.cpu() > 127).numpy()).view(np.float64)
    pairs = zip(here.items(), there.tolist(), strict=False)
    differing = [
        f"another {what}" if what in HASHED else f"{what} {there:g} there, {own:g} here"
        for (what, own), there in pairs
        if own != there
    ]
    raise RuntimeError(
        f"{name}: these scores were saved with another parameterization ({'; '.join(differing)}). "
        f"Here it is {module.parameterization}: build the module with theirs"
    )


class Catnat(Defined):
    """Probabilities of K classes from K-1 scores; in place of `torch.nn.Softmax`.

    Arguments as in `catnat.torch.log_catnat`.

    Example:
        >>> import torch, catnat.torch as ct
        >>> head = torch.nn.Sequential(torch.nn.Linear(16, 10 - 1), ct.Catnat(10))
        >>> head(torch.zeros(2, 16)).shape
        torch.Size([2, 10])
    """

    @advised
    def __init__(self, parameterization: ParameterizationLike, dim: int = -1) -> None:
        super().__init__(parameterization)
        self.dim = dim

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """[..., K-1] scores to [..., K] probabilities."""
        return catnat(scores, self.parameterization, mask=mask, dim=self.dim)

    def extra_repr(self) -> str:
        """Settings for print()."""
        return repr_arguments(self.parameterization, dim=self.dim)


class LogCatnat(Catnat):
    """Log-probabilities of K classes from K-1 scores; in place of `torch.nn.LogSoftmax`."""

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """[..., K-1] scores to [..., K] log-probabilities."""
        return log_catnat(scores, self.parameterization, mask=mask, dim=self.dim)


class CatnatCrossEntropyLoss(Defined):
    """- log p of the target; in place of `torch.nn.CrossEntropyLoss`. Arguments as in `catnat.torch.cross_entropy`.

    Example:
        >>> import torch, catnat.torch as ct
        >>> loss = ct.CatnatCrossEntropyLoss(10, label_smoothing=0.1)
        >>> loss(torch.zeros(4, 9), torch.tensor([0, 3, 9, 9]))
        tensor(2.3026)
    """

    weight: Tensor | None

    @advised
    def __init__(
        self,
        parameterization: ParameterizationLike,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        dim: int | None = None,
    ) -> None:
        super().__init__(parameterization)
        check_choice("reduction", reduction, REDUCTIONS)
        check_share("label_smoothing", label_smoothing)
        self.ignore_index, self.reduction = ignore_index, reduction
        self.label_smoothing, self.dim = label_smoothing, dim
        self.register_buffer("weight", weight)

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        """Loss of [..., K-1] scores against class ids or probabilities."""
        names = "weight", "ignore_index", "reduction", "label_smoothing", "dim"
        return cross_entropy(scores, target, self.parameterization, **{name: getattr(self, name) for name in names})

    def extra_repr(self) -> str:
        """Settings for print()."""
        return repr_arguments(self.parameterization, {"weight": self.weight}, reduction=self.reduction, dim=self.dim)


class _Scores(torch.nn.Linear):
    """The layer inside a head. Its bias starts by itself, for who resets modules one by one, the outer ones first."""

    start: Sequence[float] | float = 0.0

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.start_bias()

    @torch.no_grad()
    def start_bias(self) -> None:
        """Uniform classes, or those of given frequencies."""
        if self.bias is not None:
            self.bias.copy_(torch.tensor(self.start, dtype=torch.float64, device="cpu"))


class CatnatLinear(Defined):
    """A linear layer and a catnat: from features to K classes, with K-1 outputs inside, so the width cannot be wrong.

    It starts uniform, up to the small random weights that `torch.nn.Linear` has too, or at given class frequencies.

    With many classes `loss`, `log_prob` and `sample` read one path of the tree: of K-1 rows of weights, about log2 K.
    `forward`, `log_probs` and `distribution` compute all of them.

    Args:
        in_features: size of the last axis of the inputs.
        parameterization: how many classes, or a `catnat.Parameterization` of them.
        class_frequencies: [K] what the classes' probabilities are at the start, for a zero input; None is uniform.
        bias: whether the scores have one.
        device, dtype: as in `torch.nn.Linear`.

    Example:
        >>> import torch, catnat.torch as ct
        >>> head = ct.CatnatLinear(16, 10)
        >>> x, target = torch.zeros(2, 16), torch.tensor([3, 9])
        >>> head(x).shape, head.loss(x, target).shape, head.mode(x).shape
        (torch.Size([2, 10]), torch.Size([]), torch.Size([2]))
    """

    @advised
    def __init__(
        self,
        in_features: int,
        parameterization: ParameterizationLike,
        *,
        class_frequencies: Tensor | None = None,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(parameterization, device)
        self.num_classes = self.parameterization.num_classes
        self.in_features, self.out_features = in_features, self.num_classes  # as of a torch.nn.Linear
        self.linear = _Scores(in_features, self.num_classes - 1, bias=bias, device=device, dtype=dtype)
        if class_frequencies is not None:
            frequencies = torch.as_tensor(class_frequencies, dtype=torch.float64, device="cpu")
            if not bias:
                raise ValueError("class_frequencies need a bias to start from; got bias=False")
            if frequencies.shape != (self.num_classes,):
                wanted = f"one number per class: {self.num_classes}; got {tuple(frequencies.shape)}"
                raise ValueError(f"class_frequencies must hold {wanted}")
            if not bool(((frequencies > 0) & frequencies.isfinite()).all()):
                raise ValueError("class_frequencies must be finite and above 0: a class that never comes has no score")
            self.linear.start = functional.scores_from_probs(frequencies, self.parameterization).tolist()
            self.linear.start_bias()
        self.register_load_state_dict_pre_hook(_tell_of_linear)

    def reset_parameters(self) -> None:
        """Start anew: small random weights, and the bias of the class frequencies; also after `to_empty`."""
        super().reset_parameters()
        self.linear.reset_parameters()

    @property
    def weight(self) -> Tensor:
        """[K-1, in_features] that of the layer inside: a row a node, not a class."""
        return self.linear.weight

    @property
    def bias(self) -> Tensor | None:
        """[K-1] that of the layer inside."""
        return self.linear.bias

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("weight", "bias"):
            super().__setattr__(name, value)
            return
        own = getattr(self.linear, name)  # tied weights, too, are the layer's
        if own is not None and isinstance(value, Tensor) and value.shape != own.shape:
            wanted = f"the shape {tuple(own.shape)}, a row per node and not per class"
            raise ValueError(f"{name} must have {wanted}; got {tuple(value.shape)}")
        setattr(self.linear, name, value)

    def scores(self, x: Tensor) -> Tensor:
        """[..., in_features] to [..., K-1]."""
        layer = self.linear
        if self._is_own() and not is_parametrized(layer) and must_align(self.parameterization, x, layer.weight):
            return aligned_scores(x, layer.weight, layer.bias)
        return layer(x)

    def log_probs(self, x: Tensor) -> Tensor:
        """[..., in_features] to [..., K] log-probabilities."""
        return log_catnat(self.scores(x), self.parameterization)

    def forward(self, x: Tensor) -> Tensor:
        """The same as `log_probs`."""
        return self.log_probs(x)

    def loss(
        self,
        x: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """- log p of the targets; settings as in `catnat.torch.cross_entropy`.

        Class ids without label smoothing need the scores on their paths alone.
        """
        check_choice("reduction", reduction, REDUCTIONS)
        has_ids = isinstance(target, Tensor) and target.dtype in INTEGERS
        walk = self._path_walk(x) if has_ids and label_smoothing == 0 else None
        if walk is None:
            settings: Any = {"ignore_index": ignore_index, "reduction": reduction, "label_smoothing": label_smoothing}
            return cross_entropy(self.scores(x), target, self.parameterization, weight=weight, dim=-1, **settings)
        _inputs.check_target_ids(target, x.shape[:-1])
        rows, ids = self._rows(x, target, ignore_index, walk, "target")
        dtype = self._answer_dtype(x)
        if weight is None and reduction != "none":
            return walk.loss(rows, ids, ignore_index, reduction, dtype)
        losses = walk.losses(rows, ids, ignore_index).reshape(target.shape)
        if weight is not None:
            _inputs.check_class_weights(weight, walk.plan)
            weight = weight.to(losses.dtype)
        return _eager.weighted(losses, target, ignore_index, weight, reduction).to(dtype)

    def log_prob(self, x: Tensor, index: Tensor) -> Tensor:
        """log p of classes whose shape broadcasts with the batch of [..., in_features]: one per row, or several."""
        walk = self._path_walk(x)
        if walk is None:
            return functional.log_prob(self.scores(x), index, self.parameterization)
        check_integers(index, "index")
        shape = _eager.joint_shape(index, x.shape[:-1], f"the batch {tuple(x.shape[:-1])} of x")
        rows, ids = self._rows(x.expand(*shape, -1), index.expand(shape), NO_CLASS, walk, "index")
        return -walk.losses(rows, ids, NO_CLASS).reshape(shape).to(self._answer_dtype(x))

    def sample(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """A class per row."""
        walk = self._path_walk(x)
        if walk is None:
            return sampling.sample(self.scores(x), self.parameterization, generator=generator)
        return walk.sample(x.reshape(-1, x.shape[-1]), generator).reshape(x.shape[:-1])

    def topk(self, x: Tensor, k: int, *, beam: int | None = None) -> TopK:
        """The ``k`` likeliest classes of every row and their log-probabilities: [..., k] each.

        With ``beam=None`` all K scores are computed. A number, at least k, follows that many subtrees down the tree
        instead. What it finds has its right log-probability, but a likelier class may have been missed, in a subtree
        that was unlikely as a whole.
        """
        if not 1 <= k <= self.num_classes:
            raise ValueError(f"k must lie in [1, {self.num_classes}]; got {k}")
        if beam is None:
            log_p, classes = self.log_probs(x).topk(k)
        elif beam < k:
            raise ValueError(f"beam must be at least k = {k}; got {beam}")
        else:
            self._check_features(x)
            walk = linear_walk(self.parameterization, x, self.linear.weight, self.linear.bias)
            found = walk.topk(x.reshape(-1, x.shape[-1]), k, min(beam, self.num_classes))
            log_p, classes = (t.reshape(*x.shape[:-1], k) for t in found)
            log_p = log_p.to(self._answer_dtype(x))
        return TopK(log_p, known(torch.where(log_p.isnan(), self.num_classes, classes), self.num_classes))

    def mode(self, x: Tensor, *, beam: int | None = None) -> Tensor:
        """The likeliest class of every row, about which the largest score says nothing; ``beam`` as in `topk`."""
        if beam is not None:
            return self.topk(x, 1, beam=beam).classes.squeeze(-1)
        return sampling.mode(self.scores(x), self.parameterization)

    def distribution(self, x: Tensor, *, mask: Tensor | None = None) -> CatnatCategorical:
        """A `CatnatCategorical` per row."""
        return CatnatCategorical(self.scores(x), self.parameterization, mask=mask)

    def extra_repr(self) -> str:
        """Settings for print()."""
        bias = None if self.linear.bias is not None else False
        return repr_arguments(self.parameterization, {"in_features": self.linear.in_features}, bias=bias)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"  # of its one part the width says all

    # -- one path ------------------------------------------------------------------------------------------------

    def _path_walk(self, x: Tensor) -> LinearWalk | None:
        """The walk along one path; None where all scores are as fast, or are wanted."""
        self._check_features(x)
        own = self.parameterization, x, self.linear.weight, self.linear.bias
        return path_walk_for(*own) if self._is_own() else None

    def _is_own(self) -> bool:
        """Whether the layer is ours alone: what replaces its call, as adapters do, or watches it must see all of it."""
        own = isinstance(self.linear, torch.nn.Linear) and type(self.linear).forward is torch.nn.Linear.forward
        return own and "forward" not in vars(self.linear) and not has_hooks(self.linear)

    def _rows(self, x: Tensor, target: Tensor, ignored: int, walk: LinearWalk, argument: str) -> tuple[Tensor, Tensor]:
        """What a loss takes: features [R, D] and class ids [R] that are checked."""
        if target.device != x.device:
            raise ValueError(f"{argument} must be on the device of x, {x.device}; got {target.device}")
        if not x.is_cuda:  # there the kernels look themselves
            _inputs.check_index(target, walk.plan, argument, ignored)
        return x.reshape(target.numel(), x.shape[-1]), target.long().reshape(-1)

    def _answer_dtype(self, x: Tensor) -> torch.dtype:
        """That of a loss from all scores: under autocast float32."""
        own = self.linear.weight.dtype
        return torch.float32 if autocasts(x.device) and own != torch.float64 else own

    def _check_features(self, x: Tensor) -> None:
        width, weight = self.linear.in_features, self.linear.weight
        if not isinstance(x, Tensor) or x.dim() == 0 or x.shape[-1] != width:
            came = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"x must be a tensor of shape [..., in_features = {width}]; got {came}")
        if x.device != weight.device:
            raise ValueError(f"x must be on the device of the weights, {weight.device}; got {x.device}")
        if x.dtype != weight.dtype and not (autocasts(x.device) and x.is_floating_point()):
            raise TypeError(f"x must have the dtype of the weights, {weight.dtype}; got {x.dtype}")
