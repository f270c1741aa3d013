"""Classes out of scores: drawn, drawn with all that a policy needs, and the likeliest."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from catnat.core.errors import advised, check_batch
from catnat.core.parameterization import ParameterizationLike
from catnat.torch._inputs import check_index, prepare_walk

__all__ = ["Draw", "draw", "mode", "sample"]


@advised
def sample(
    scores: Tensor,
    parameterization: ParameterizationLike,
    *,
    sample_shape: tuple[int, ...] | torch.Size = (),
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw classes by walking down the tree, a coin a node: O(log K) work a draw on a balanced tree.

    Gives int64 class ids of shape ``sample_shape + batch``. A class that the mask forbids is never drawn. ``generator``
    is the source of random numbers; None is torch's own. Other arguments as in `log_catnat`.

    Example:
        >>> import torch, catnat.torch as ct
        >>> ct.sample(torch.zeros(5, 17), 18, sample_shape=(2,)).shape
        torch.Size([2, 5])
    """
    with torch.no_grad():
        walk, x, mask, _ = prepare_walk(scores, parameterization, mask)
        sample_shape = torch.Size(sample_shape)
        drawn = walk.sample(x, sample_shape.numel(), generator, mask)
        return drawn.reshape((*sample_shape, *drawn.shape[1:]))


class Draw(NamedTuple):
    """What a policy needs of a step: class ids, their log-probabilities and the entropy of every row."""

    sample: Tensor
    log_prob: Tensor
    entropy: Tensor


@advised
def draw(
    scores: Tensor,
    parameterization: ParameterizationLike,
    *,
    index: Tensor | None = None,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Draw:
    """Draw a class a row, with its log p and the entropy of the row; all in one walk.

    This is the head of a policy: draw while acting; while learning, pass the actions that were taken as ``index`` and
    get their log-probabilities and the entropies. Class ids carry no gradient. Other arguments as in `sample`.

    Gives ``sample`` (int64 ids, or ``index`` as it came), ``log_prob`` and ``entropy``, each of the batch's shape.

    Example:
        >>> import torch, catnat.torch as ct
        >>> action, log_prob, entropy = ct.draw(torch.zeros(5, 3), 4)
        >>> log_prob.exp()
        tensor([0.2500, 0.2500, 0.2500, 0.2500, 0.2500])
    """
    walk, x, mask, dtype = prepare_walk(scores, parameterization, mask)
    if index is not None:
        check_index(index, walk.plan)
        batch = x.shape[:-1] if mask is None else torch.broadcast_shapes(x.shape[:-1], mask.shape[:-1])
        check_batch("index", index.shape, batch)
    index, log_p, found = walk.draw(x, index, generator, mask)
    return Draw(index, log_p.to(dtype), found.to(dtype))


@advised
def mode(scores: Tensor, parameterization: ParameterizationLike, *, mask: Tensor | None = None) -> Tensor:
    """The likeliest class of every row; the first one where several are.

    This looks at all classes: the likelier branch at every node need not lead to the likeliest class.

    Example:
        >>> import torch, catnat.torch as ct
        >>> ct.mode(ct.scores_from_probs(torch.tensor([0.2, 0.5, 0.3]), 3), 3)
        tensor(1)
    """
    walk, x, mask, _ = prepare_walk(scores.detach() if isinstance(scores, Tensor) else scores, parameterization, mask)
    return walk.mode(x, mask)
