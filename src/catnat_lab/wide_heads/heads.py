"""Heads over very many classes by name. Each has ``loss(x, target)``: the mean nats of rows x [R, width].

Class ids are ranks of frequency. All heads have biases, but for adaptive's clusters, and start from PyTorch's own
random weights.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

import catnat
import catnat.torch as ct
from catnat_lab.wide_heads.corpus import SIZE, Corpus

SOFTMAX = "softmax"
REFITTED = "refitted"
RIVALS = (SOFTMAX, "adaptive", "sampled")
TREES = ("ids", "huffman", "clustered")
SIGMOIDS, DEFAULTS = tuple(f"sigmoid-{tree}" for tree in TREES), tuple(f"default-{tree}" for tree in TREES)
# what may close the gap, all of it on the tree of clustered kinds, and what softmax makes of the same
CLOSER = ("sigmoid-topped", "sigmoid-shortlist", "sigmoid-doubled", "softmax-doubled")
HEADS = (*RIVALS, *SIGMOIDS, *DEFAULTS, *CLOSER, f"sigmoid-{REFITTED}", "sigmoid-gain2")
NEGATIVES = 8192
MOST_CLUSTERS = 256


def head_of(name: str, width: int, corpus: Corpus) -> nn.Module:
    classes, frequent = corpus.classes, corpus.classes // 20
    if name == "adaptive":
        return Adaptive(width, classes, [frequent, classes // 5], head_bias=True)
    if name in RIVALS:
        return (Sampled if name == "sampled" else Softmax)(width, classes)
    kind, form = name.split("-")
    if form == "doubled":
        return Doubled(width, head_of(SOFTMAX if kind == SOFTMAX else "sigmoid-clustered", 2 * width, corpus))
    activation: catnat.Activation = catnat.Sigmoid() if kind == "sigmoid" else catnat.Natural()
    if form == "gain2":
        activation = catnat.Natural(amplitude=math.pi, tail=0.5)  # the sigmoid, twice as steep
    tree = corpus.tree(form if form in TREES else "clustered")
    if form in ("topped", "shortlist"):
        return Topped(width, tree, activation, frequent if form == "shortlist" else 0)
    return ct.CatnatLinear(width, catnat.Parameterization(classes, activation, tree))


def log_uniform(classes: int, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Classes drawn with P(k) = log((k + 2) / (k + 1)) / log(K + 1), and the log of each one's expected number."""
    whole = math.log(classes + 1)
    drawn = torch.rand(count, dtype=torch.float64, device=device).mul(whole).exp().long() - 1
    drawn = drawn.clamp(0, classes - 1)
    return drawn, (count / whole * torch.log1p(1 / (drawn + 1.0))).log()


class Softmax(nn.Linear):
    def loss(self, x: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(self(x), target)


class Adaptive(nn.AdaptiveLogSoftmaxWithLoss):
    """A twentieth of the classes and two clusters at once; each cluster has a narrower layer of its own."""

    def loss(self, x: Tensor, target: Tensor) -> Tensor:
        found: Tensor = self(x, target).loss
        return found


class Sampled(Softmax):
    """A softmax that is trained on the target and some other classes, drawn anew; it is judged by all of them."""

    def loss(self, x: Tensor, target: Tensor) -> Tensor:
        if not self.training:
            return super().loss(x, target)
        return self.nats(x, target, *log_uniform(self.out_features, NEGATIVES, x.device)).mean()

    def nats(self, x: Tensor, target: Tensor, drawn: Tensor, log_expected: Tensor) -> Tensor:
        """The sum over all classes is estimated without bias: each drawn one stands for 1 / its expected number."""
        rows, biases = functional.embedding(torch.cat((target, drawn)), self.weight), self.bias
        own = (rows[: len(target)] * x).sum(-1) + biases[target]
        others = functional.linear(x, rows[len(target) :], biases[drawn] - log_expected.to(x.dtype))
        others = others.masked_fill(target[:, None] == drawn, -torch.inf)  # the target counts itself
        return torch.logaddexp(own, others.logsumexp(-1)) - own


class Doubled(nn.Module):
    """Two scores per class or node, of separate projections: w1 x + w2 gelu(P x)."""

    def __init__(self, width: int, inner: nn.Module) -> None:
        super().__init__()
        self.more, self.inner = nn.Linear(width, width), inner

    def loss(self, x: Tensor, target: Tensor) -> Tensor:
        both = torch.cat((x, functional.gelu(self.more(x))), -1)
        found: Tensor = self.inner.loss(both, target)  # type: ignore[operator]
        return found


class Topped(nn.Module):
    """A softmax over the commonest classes and the clusters of all others; then a tree in each cluster.

    The trees are one, over all that is rare. Its top nodes stay at a score of 0, so that they say how large the
    clusters are and nothing else: log p inside a cluster is log p on the tree minus the log of the cluster's share.
    """

    groups: Tensor
    log_shares: Tensor

    def __init__(self, width: int, tree: catnat.Tree, activation: catnat.Activation, frequent: int) -> None:
        super().__init__()
        rare = tree.num_classes - frequent
        self.frequent = frequent
        self.clusters = clusters = min(MOST_CLUSTERS, 2 ** (rare.bit_length() - 4))
        heap = catnat.Tree.balanced(rare)
        places = np.empty(rare, np.int64)  # those of the heap, from left to right as on the given tree
        places[np.argsort(tree.ranks[frequent:])] = heap.class_places[np.argsort(heap.ranks)]
        self.top = nn.Linear(width, frequent + clusters)
        self.inner = ct.CatnatLinear(width, catnat.Parameterization(rare, activation, catnat.Tree(places)))
        for values in self.inner.linear.parameters():
            with torch.no_grad():
                values[: clusters - 1] = 0
            values.register_post_accumulate_grad_hook(self._hold)
        depths = np.floor(np.log2(places)).astype(np.int64)
        groups = (places >> (depths - clusters.bit_length() + 1)) - clusters
        shares = np.log(np.bincount(groups) / rare)
        self.register_buffer("groups", torch.tensor(groups))
        self.register_buffer("log_shares", torch.tensor(shares, dtype=torch.float32))

    def _hold(self, values: Tensor) -> None:
        """The tree's top nodes do not learn: the softmax is in their place."""
        assert values.grad is not None
        values.grad[: self.clusters - 1] = 0

    def loss(self, x: Tensor, target: Tensor) -> Tensor:
        is_rare = target >= self.frequent
        below = torch.where(is_rare, target - self.frequent, 0)
        group = self.groups[below]
        above = functional.cross_entropy(self.top(x), torch.where(is_rare, self.frequent + group, target))
        inside = self.inner.loss(x, torch.where(is_rare, below, -100), reduction="sum")
        return above + (inside + torch.where(is_rare, self.log_shares[group], 0).sum()) / len(target)


@torch.no_grad()
def refit(head: ct.CatnatLinear, embedding: Tensor, optimiser: torch.optim.Optimizer) -> None:
    """Cluster the classes by what the model has learned of them, and carry over weights and Adam's moments."""
    left, sizes, _ = torch.pca_lowrank(embedding, min(SIZE, *embedding.shape))
    tree, pi = catnat.Tree.cluster((left * sizes).cpu().numpy()), head.parameterization
    assert pi.tree is not None
    nodes, signs = (torch.from_numpy(found).to(embedding.device) for found in kept_nodes(pi.tree, tree))
    for values in head.linear.parameters():
        sign = signs.to(values.dtype).view(-1, *[1] * (values.dim() - 1))
        moments = optimiser.state[values]
        for each, factor in ((values, sign), (moments["exp_avg"], sign), (moments["exp_avg_sq"], sign.abs())):
            each.copy_(factor * each[nodes])
    head.parameterization = catnat.Parameterization(pi.num_classes, pi.activation, tree)
    head.definition.copy_(ct.Catnat(head.parameterization).definition)


def kept_nodes(old: catnat.Tree, new: catnat.Tree) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For every node of a new tree the old one's row that parts the same classes in the same two sets, and a sign.

    Where left and right have changed sides, the sign is negative, and so is the score that means the same. A node that
    is new has the row 0 and the sign 0: it starts anew.
    """
    places = {cut: (node, 1) for node, cut in enumerate(_cuts(old))}
    found = [places.get(cut) or (places.get(cut[::-1], (0, 0))[0], -int(cut[::-1] in places)) for cut in _cuts(new)]
    rows, signs = np.array(found, np.int64).T
    return rows, signs


def _cuts(tree: catnat.Tree) -> list[tuple[int, int]]:
    """By node, a number for the set of classes on its left, and one for that on its right."""
    sums = np.zeros(2 * tree.num_classes, np.uint64)  # of random numbers, a class each; they may wrap around
    sums[tree.class_places] = np.random.default_rng(0).integers(2**64, size=tree.num_classes, dtype=np.uint64)
    for low, high in reversed(tree.levels):
        sums[tree.node_places[low:high]] = sums[2 * low : 2 * high : 2] + sums[2 * low + 1 : 2 * high : 2]
    return list(zip(sums[2::2].tolist(), sums[3::2].tolist(), strict=True))
