"""Trees of every kind for the laws: by name for a grid, and as hypothesis strategies."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from hypothesis import strategies as st

from catnat import Tree

KINDS = ("balanced", "chain", "huffman", "nested", "cluster")


@lru_cache
def make_tree(kind: str, num_classes: int, seed: int = 0) -> Tree:
    """A tree of that kind; Huffman with Zipf weights, nested and clustered at random."""
    if kind == "balanced":
        return Tree.balanced(num_classes)
    if kind == "chain":
        return Tree.chain(num_classes)
    if kind == "huffman":
        return Tree.huffman([1 / (k + 1) for k in range(num_classes)])
    if kind == "cluster":
        return Tree.cluster(np.random.default_rng(seed).normal(size=(num_classes, 3)))
    assert kind == "nested"
    return Tree.from_nested(random_nested(num_classes, np.random.default_rng(seed)))


def random_nested(num_classes: int, rng: np.random.Generator) -> object:
    """Nested pairs over shuffled class ids: two random subtrees are joined until one is left."""
    parts: list[object] = rng.permutation(num_classes).tolist()
    while len(parts) > 1:
        left = parts.pop(int(rng.integers(len(parts))))
        right = parts.pop(int(rng.integers(len(parts))))
        parts.append([left, right])
    return parts[0]


def nested(max_classes: int = 200) -> st.SearchStrategy[object]:
    """Random nested pairs over 0..K-1."""
    return st.builds(
        lambda size, seed: random_nested(size, np.random.default_rng(seed)),
        st.integers(1, max_classes),
        st.integers(0, 2**32 - 1),
    )


def trees(max_classes: int = 200) -> st.SearchStrategy[Tree]:
    """Trees of every builder."""
    sizes = st.integers(1, max_classes)
    weights = st.lists(st.floats(0, 1e6), min_size=1, max_size=max_classes)
    return st.one_of(
        sizes.map(Tree.balanced),
        sizes.map(Tree.chain),
        st.builds(make_tree, st.just("cluster"), sizes, st.integers(0, 9)),
        weights.map(Tree.huffman),
        nested(max_classes).map(Tree.from_nested),
    )
