"""Modules: the functions with their settings kept, and a linear head of the right width."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, pad
from torch.nn.utils.parametrize import is_parametrized

from catnat.core.errors import MASK_MODES, REDUCTIONS, CatnatWarning, check_choice, check_num_classes, check_share
from catnat.core.parameterization import Parameterization, listed, resolve
from catnat.core.tree import Tree
from catnat.torch import _eager, _wide, functional, sampling
from catnat.torch._compat import autocasts, has_hooks, is_plain
from catnat.torch._dispatch import wide_plan_for
from catnat.torch._inputs import (
    INTEGERS,
    ParameterizationLike,
    check_class_weights,
    check_index,
    check_integers,
    check_target_ids,
)
from catnat.torch._plan import Plan
from catnat.torch._wide import TopK
from catnat.torch.distributions import CatnatCategorical
from catnat.torch.functional import catnat, cross_entropy, log_catnat

# to torch.fx each of these is one operation: what it traces is not a tensor
for _name in ("catnat", "cross_entropy", "log_catnat"):
    torch.fx.wrap(_name)

PATH_FROM = {"cpu": 2048, "cuda": 8192}  # classes; with fewer the scores of all nodes are as fast
ALIGNED_FROM, ALIGNED_ROWS = 8192, 256  # classes and rows; a small product is not worth a copy of the weights
NO_CLASS = -(1 << 62)  # an id that no class has, and that nothing ignores


def _keep(module: Any, state: Any, prefix: str, metadata: dict[str, Any]) -> None:
    """Write down what the scores mean, beside the module's version: no key more, and none missing in older files."""
    metadata["parameterization"] = resolve(module.parameterization, 1).describe()  # which says nothing of K


def _compare(module: Any, state: Any, prefix: str, metadata: dict[str, Any], *rest: Any) -> None:
    """Refuse scores that mean something else here; a state_dict without what `_keep` writes is taken as it is."""
    errors = rest[-1]
    ours = resolve(module.parameterization, 1).describe()
    theirs = metadata.get("parameterization", ours)
    if theirs != ours:
        errors.append(f"parameterization of {prefix[:-1] or 'the module'}: saved with {theirs}; here it is {ours}.")


def _tell_of_linear(module: Any, state: Any, prefix: str, *rest: Any) -> None:
    """Say that weights of a `torch.nn.Linear` stay behind: with strict=False nothing else would."""
    theirs, ours = f"{prefix}weight", f"{prefix}linear.weight"
    if theirs not in state or ours in state:
        return
    rows = tuple(getattr(state[theirs], "shape", ()))[:1]
    if rows == (module.num_classes - 1,):
        advice = f"As many rows as this head has scores: if they are scores of the same tree, rename it to {ours}"
    else:
        advice = (
            f"What a torch.nn.Linear learned for {module.num_classes} classes cannot become {module.num_classes - 1} "
            "scores: train this head anew. All other layers load with strict=False"
        )
    warnings.warn(f"{theirs} is not loaded: CatnatLinear has {ours}. {advice}", CatnatWarning, stacklevel=2)


class _Watching(torch.nn.Module):
    """A module that can look after its scores, and whose state_dict knows the parameterization."""

    parameterization: ParameterizationLike

    def __init__(self, warn: bool) -> None:
        super().__init__()
        self.warn = warn
        self.register_state_dict_post_hook(_keep)
        self.register_load_state_dict_pre_hook(_compare)

    def _look_at(self, scores: Tensor) -> None:
        """Warn once, if asked to, where more than half of the nodes are beyond the natural range."""
        if self.warn and isinstance(scores, Tensor) and is_plain(scores):
            share = float(functional.saturation(scores, self.parameterization, dim=getattr(self, "dim", -1)))
            if share > 0.5:
                self.warn = False
                warnings.warn(
                    f"{share:.0%} of the nodes are beyond their natural range, where the Fisher information falls off: "
                    "a smaller learning rate, a smaller initial scale or a larger tail keeps them inside",
                    CatnatWarning,
                    stacklevel=3,
                )


class Catnat(_Watching):
    """Probabilities of K classes from K-1 scores; in place of `torch.nn.Softmax`.

    Args:
        parameterization: a `catnat.Parameterization`, or the name (or value) of an activation on the balanced tree.
        dim: the axis of the scores, and of the classes in the result.
        mask_mode: as in `catnat.torch.log_catnat`.
        warn: give one `catnat.CatnatWarning` when more than half of the nodes are beyond their natural range.

    Example:
        >>> import torch, catnat.torch as ct
        >>> head = torch.nn.Sequential(torch.nn.Linear(16, 10 - 1), ct.Catnat())
        >>> head(torch.zeros(2, 16)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        parameterization: ParameterizationLike = "natural",
        dim: int = -1,
        *,
        mask_mode: str = "renormalize",
        warn: bool = False,
    ) -> None:
        super().__init__(warn)
        check_choice("mask_mode", mask_mode, MASK_MODES)
        resolve(parameterization, 1)  # a wrong one is refused here, not at the first call
        self.parameterization = parameterization
        self.dim = dim
        self.mask_mode = mask_mode

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """[..., K-1] scores to [..., K] probabilities."""
        self._look_at(scores)
        return catnat(scores, self.parameterization, mask=mask, mask_mode=self.mask_mode, dim=self.dim)

    def extra_repr(self) -> str:
        """Settings for print()."""
        mask_mode = None if self.mask_mode == "renormalize" else self.mask_mode
        return listed(self.parameterization, dim=self.dim, mask_mode=mask_mode)


class LogCatnat(Catnat):
    """Log-probabilities of K classes from K-1 scores; in place of `torch.nn.LogSoftmax`."""

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """[..., K-1] scores to [..., K] log-probabilities."""
        self._look_at(scores)
        return log_catnat(scores, self.parameterization, mask=mask, mask_mode=self.mask_mode, dim=self.dim)


class CatnatCrossEntropyLoss(_Watching):
    """- log p of the target; in place of `torch.nn.CrossEntropyLoss`. Arguments as in `catnat.torch.cross_entropy`.

    Example:
        >>> import torch, catnat.torch as ct
        >>> loss = ct.CatnatCrossEntropyLoss(label_smoothing=0.1)
        >>> loss(torch.zeros(4, 9), torch.tensor([0, 3, 9, 9]))
        tensor(2.3026)
    """

    weight: Tensor | None

    def __init__(
        self,
        parameterization: ParameterizationLike = "natural",
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        dim: int = -1,
        warn: bool = False,
    ) -> None:
        super().__init__(warn)
        check_choice("reduction", reduction, REDUCTIONS)
        check_share("label_smoothing", label_smoothing)
        resolve(parameterization, 1)
        self.parameterization = parameterization
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing
        self.dim = dim
        self.register_buffer("weight", weight)

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        """Loss of [..., K-1] scores against class ids or probabilities."""
        self._look_at(scores)
        return cross_entropy(
            scores,
            target,
            self.parameterization,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
            dim=self.dim,
        )

    def extra_repr(self) -> str:
        """Settings for print()."""
        return listed(self.parameterization, {"weight": self.weight}, reduction=self.reduction, dim=self.dim)


class CatnatLinear(_Watching):
    """A linear layer and a catnat: from features to K classes, with K-1 outputs inside, so the width cannot be wrong.

    It starts uniform, up to the small random weights that `torch.nn.Linear` has too, or at given class frequencies.

    With many classes `loss`, `log_prob` and `sample` read one path of the tree: of K-1 rows of weights, about log2 K.
    `forward`, `log_probs` and `distribution` compute all of them.

    Args:
        in_features: size of the last axis of the inputs.
        num_classes: K, how many.
        parameterization: a `catnat.Parameterization` of K classes, or the name (or value) of an activation.
        class_frequencies: [K] what the classes' probabilities are at the start, for a zero input; None is uniform.
        bias: whether the scores have one.
        sparse: whether the gradient of weights and bias is a sparse tensor of the nodes that were passed, as
            `torch.optim.SparseAdam` and `torch.optim.SGD` (without weight decay) take it. `loss` then reads one path
            whatever K is. What computes all scores, torch.compile and second derivatives give dense gradients.
        warn: give one `catnat.CatnatWarning` when more than half of the nodes are beyond their natural range. It looks
            at all scores, so nothing is computed from one path until it was given.
        device: as in `torch.nn.Linear`.
        dtype: as in `torch.nn.Linear`.

    Example:
        >>> import torch, catnat.torch as ct
        >>> head = ct.CatnatLinear(16, 10)
        >>> x, target = torch.zeros(2, 16), torch.tensor([3, 9])
        >>> head(x).shape, head.loss(x, target).shape, head.mode(x).shape
        (torch.Size([2, 10]), torch.Size([]), torch.Size([2]))
    """

    parameterization: Parameterization
    sparse = False  # of heads that were pickled before there was a choice

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        parameterization: ParameterizationLike = "natural",
        *,
        class_frequencies: Tensor | None = None,
        bias: bool = True,
        sparse: bool = False,
        warn: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(warn)
        if sparse and warn:
            raise ValueError("sparse=True reads one path, warn=True looks at all scores: give one of them")
        self.num_classes = check_num_classes(num_classes)
        self.parameterization = resolve(parameterization, self.num_classes)
        if self.parameterization.num_classes != self.num_classes:
            raise ValueError(
                f"parameterization must have num_classes = {self.num_classes} classes; "
                f"it has {self.parameterization.num_classes}"
            )
        self.sparse = sparse
        self.linear = torch.nn.Linear(in_features, self.num_classes - 1, bias=bias, device=device, dtype=dtype)
        self.register_load_state_dict_pre_hook(_tell_of_linear)
        if not bias:
            if class_frequencies is not None:
                raise ValueError("class_frequencies need a bias to start from; got bias=False")
            return
        with torch.no_grad():
            self.linear.bias.zero_()
            if class_frequencies is not None:
                frequencies = torch.as_tensor(class_frequencies, dtype=torch.float64, device="cpu")
                if frequencies.shape != (self.num_classes,):
                    shape = tuple(frequencies.shape)
                    raise ValueError(
                        f"class_frequencies must hold one number per class: {self.num_classes}; got {shape}"
                    )
                if not bool(((frequencies > 0) & frequencies.isfinite()).all()):
                    raise ValueError(
                        "class_frequencies must be finite and above 0: a class that never comes has no score"
                    )
                self.linear.bias.copy_(functional.scores_from_probs(frequencies, self.parameterization))

    @property
    def in_features(self) -> int:
        """Size of the last axis of the inputs, as of a `torch.nn.Linear`."""
        return self.linear.in_features

    @property
    def out_features(self) -> int:
        """Size of the last axis of the outputs, as of a `torch.nn.Linear`: K."""
        return self.num_classes

    def scores(self, x: Tensor) -> Tensor:
        """[..., in_features] to [..., K-1]."""
        scores = self._aligned_scores(x) if self._is_misaligned(x) else self.linear(x)
        self._look_at(scores)
        return scores

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
        plan = None
        if isinstance(target, Tensor) and target.dtype in INTEGERS and label_smoothing == 0:
            plan = self._path_plan(x)
        else:
            self._must_not_be_sparse("class ids without label smoothing")
        if plan is None:
            return cross_entropy(
                self.scores(x),
                target,
                self.parameterization,
                weight=weight,
                ignore_index=ignore_index,
                reduction=reduction,
                label_smoothing=label_smoothing,
            )
        check_target_ids(target, x.shape[:-1])
        target = target.long()
        dtype = self._answer_dtype(x)
        if weight is None and reduction != "none":
            rows = self._rows(x, target, ignore_index, plan, "target")
            return _wide.loss(*rows, ignore_index, plan, reduction, dtype)
        if weight is not None:
            check_class_weights(weight, plan)
        losses = self._losses(x, target, ignore_index, plan, "target")
        counted = keep = target != ignore_index
        if weight is not None:
            counted = torch.where(keep, weight.to(losses.dtype)[torch.where(keep, target, 0)], 0.0)
            losses = losses * counted
        return _eager.reduced(losses, counted, reduction, dtype)

    def log_prob(self, x: Tensor, index: Tensor) -> Tensor:
        """log p of classes whose shape broadcasts with the batch of [..., in_features]: one per row, or several."""
        plan = self._path_plan(x)
        if plan is None:
            return functional.log_prob(self.scores(x), index, self.parameterization)
        check_integers(index, "index")
        batch = x.shape[:-1]
        try:
            shape = torch.broadcast_shapes(index.shape, batch)
        except RuntimeError:
            came = tuple(index.shape)
            raise ValueError(f"index must broadcast with the batch {tuple(batch)} of x; got shape {came}") from None
        rows, index = x.expand(*shape, -1), index.expand(shape).long()
        return -self._losses(rows, index, NO_CLASS, plan, "index").to(self._answer_dtype(x))

    def sample(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """A class per row."""
        plan = self._path_plan(x)
        if plan is None:
            return sampling.sample(self.scores(x), self.parameterization, generator=generator)
        rows = x.reshape(-1, x.shape[-1])
        return _wide.sample(rows, self._head(), plan, generator).reshape(x.shape[:-1])

    def topk(self, x: Tensor, k: int, *, beam: int | None = None) -> TopK:
        """The ``k`` likeliest classes of every row and their log-probabilities: [..., k] each.

        Args:
            x: [..., in_features].
            k: how many.
            beam: None computes all K scores. A number, at least k, follows that many subtrees down the tree instead.
                What it finds has its right log-probability, but a likelier class may have been missed, in a subtree
                that was unlikely as a whole.
        """
        if not 1 <= k <= self.num_classes:
            raise ValueError(f"k must lie in [1, {self.num_classes}]; got {k}")
        if beam is None:
            return TopK(*self.log_probs(x).topk(k))
        if beam < k:
            raise ValueError(f"beam must be at least k = {k}; got {beam}")
        self._check_features(x)
        plan = wide_plan_for(self.parameterization, self._number(x), x)
        found = _wide.topk(x.reshape(-1, x.shape[-1]), self._head(), k, min(beam, self.num_classes), plan)
        dtype = self._answer_dtype(x)
        return TopK(*(t.reshape(*x.shape[:-1], k) for t in (found.log_probs.to(dtype), found.classes)))

    def mode(self, x: Tensor, *, beam: int | None = None) -> Tensor:
        """The likeliest class of every row, about which the largest score says nothing; ``beam`` as in `topk`."""
        if beam is not None:
            return self.topk(x, 1, beam=beam).classes.squeeze(-1)
        return sampling.mode(self.scores(x), self.parameterization)

    @torch.no_grad()
    def refit(self, tree: Tree) -> tuple[Tensor, Tensor]:
        """Go on with another tree over the same classes, say one clustered by what was learned meanwhile.

        Nodes that part the same classes in both trees keep their weights; all others start anew, at weights and a bias
        of 0. A tree that was clustered anew has few of the old nodes: where under a tenth is kept, a
        `catnat.CatnatWarning` says so. An optimizer's own numbers, such as Adam's moments, have to be moved alike.

        Returns:
            As `catnat.Tree.kept_nodes`: each node's number in the old tree, from 1, and the sign, both 0 for a new one.
        """
        pi = self.parameterization
        if not isinstance(pi.center, str):
            raise ValueError(f"refit needs center='uniform': other centres belong to the old nodes; got {pi.center!r}")
        new = Parameterization(pi.num_classes, pi.activation, tree=tree)
        assert pi.tree is not None
        device = self.linear.weight.device
        nodes, signs = (torch.from_numpy(t).to(device) for t in tree.kept_nodes(pi.tree))
        if 10 * (kept := int((nodes > 0).sum())) < len(nodes):
            warnings.warn(
                f"refit kept {kept:,} of {len(nodes):,} nodes; all others start anew, so the head forgets most of what "
                "it has learned",
                CatnatWarning,
                stacklevel=2,
            )
        for values in (self.linear.weight, self.linear.bias):
            if values is not None:
                sign = signs.to(values.dtype).view(-1, *[1] * (values.dim() - 1))
                values.copy_(values[(nodes - 1).clamp(min=0)] * sign)
        self.parameterization = new
        return nodes, signs

    def distribution(self, x: Tensor, *, mask: Tensor | None = None) -> CatnatCategorical:
        """A `CatnatCategorical` per row."""
        return CatnatCategorical(self.scores(x), self.parameterization, mask=mask)

    def extra_repr(self) -> str:
        """Settings for print()."""
        bias = None if self.linear.bias is not None else False
        shown = {"in_features": self.linear.in_features}
        return listed(self.parameterization, shown, bias=bias, sparse=self.sparse or None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"  # of its one part the width says all

    # -- one path ------------------------------------------------------------------------------------------------

    def _path_plan(self, x: Tensor) -> Plan | None:
        """The plan for one path; None where all scores are as fast, or are wanted."""
        self._check_features(x)
        if not self.sparse and (self.warn or self.num_classes < PATH_FROM.get(x.device.type, 2048)):
            return None
        if not self._is_own():
            self._must_not_be_sparse("a torch.nn.Linear without hooks inside")
            return None
        plan = wide_plan_for(self.parameterization, self._number(x), x)
        if _wide.has_short_paths(plan):
            return plan
        self._must_not_be_sparse(
            f"2 classes or more, a tree of depth {_wide.MAX_DEPTH} or less and no saturation='revive'"
        )
        return None

    def _is_own(self) -> bool:
        """Whether the layer is ours alone: what replaces its call, as adapters do, or watches it must see all of it."""
        own = isinstance(self.linear, torch.nn.Linear) and type(self.linear).forward is torch.nn.Linear.forward
        return own and "forward" not in vars(self.linear) and not has_hooks(self.linear)

    def _is_misaligned(self, x: Tensor) -> bool:
        """Whether a GPU's 16-bit matrix products, which want a multiple of eight outputs, have no fast path for K-1."""
        if self.num_classes < ALIGNED_FROM or self.num_classes % 8 == 1 or not is_plain(x) or not self._is_own():
            return False
        if not x.is_cuda or is_parametrized(self.linear) or not is_plain(self.linear.weight):
            return False
        short = self.linear.weight.element_size() == 2 or (autocasts(x.device) and x.dtype != torch.float64)
        return short and x.numel() >= ALIGNED_ROWS * x.shape[-1]

    def _aligned_scores(self, x: Tensor) -> Tensor:
        """All scores by a few outputs more, which are cut off again."""
        more, weight, bias = (1 - self.num_classes) % 8, self.linear.weight, self.linear.bias
        dtype = torch.get_autocast_dtype(x.device.type) if autocasts(x.device) else weight.dtype
        padded = pad(weight.to(dtype), (0, 0, 0, more)), None if bias is None else pad(bias.to(dtype), (0, more))
        return linear(x, *padded)[..., : self.num_classes - 1].contiguous()

    def _losses(self, x: Tensor, target: Tensor, ignored: int, plan: Plan, argument: str) -> Tensor:
        rows = self._rows(x, target, ignored, plan, argument)
        return _wide.losses(*rows, ignored, plan).reshape(target.shape)

    def _rows(
        self, x: Tensor, target: Tensor, ignored: int, plan: Plan, argument: str
    ) -> tuple[Tensor, _wide.Head, Tensor]:
        """What a loss takes: features [R, D], the head, and class ids [R] that are checked."""
        if target.device != x.device:
            raise ValueError(f"{argument} must be on the device of x, {x.device}; got {target.device}")
        if x.device.type != "cuda" or plan.wide is None:  # the kernels look themselves
            check_index(torch.where(target == ignored, 0, target), plan, argument)
        return x.reshape(target.numel(), x.shape[-1]), self._head(), target.reshape(-1)

    def _head(self) -> _wide.Head:
        return _wide.Head(self.linear.weight, self.linear.bias, self.sparse)

    def _number(self, x: Tensor) -> torch.dtype:
        """The dtype to compute in."""
        return torch.float64 if torch.float64 in (x.dtype, self.linear.weight.dtype) else torch.float32

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

    def _must_not_be_sparse(self, needed: str) -> None:
        if self.sparse and torch.is_grad_enabled() and self.linear.weight.requires_grad:
            raise ValueError(f"sparse=True needs {needed}: all K-1 scores have a dense gradient")
