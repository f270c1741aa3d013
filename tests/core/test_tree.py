"""Laws of `Tree`, for every way to build one."""

from __future__ import annotations

import copy
import heapq
import math
import pickle
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catnat import Tree
from tests.core.trees import nested, trees

sizes = st.integers(1, 200)


# -- every tree --------------------------------------------------------------------------------------------------


@given(trees())
def test_walking_down_from_the_root_reaches_every_class_exactly_once(tree: Tree) -> None:
    class_at = {place: k for k, place in enumerate(tree.class_places.tolist())}
    node_at = {place: node for node, place in enumerate(tree.node_places.tolist()) if node > 0}
    reached, waiting = [], [1]
    while waiting:
        place = waiting.pop()
        if place in class_at:
            reached.append(class_at[place])
        else:
            waiting += [2 * node_at[place], 2 * node_at[place] + 1]
    assert sorted(reached) == list(range(tree.num_classes))


@given(trees())
def test_path_leads_from_the_root_to_its_class(tree: Tree) -> None:
    for k in range(tree.num_classes):
        place = 1
        for node, bit in tree.path(k):
            assert tree.node_places[node] == place
            place = 2 * node + bit
        assert place == tree.class_places[k]


@given(trees())
def test_paths_are_every_path_from_below_padded_with_zeros(tree: Tree) -> None:
    assert tree.paths.shape == (tree.num_classes, tree.depth)
    for k, row in enumerate(tree.paths.tolist()):
        steps = [node if bit else -node for node, bit in reversed(tree.path(k))]
        assert row == steps + [0] * (tree.depth - len(steps))


@given(trees())
def test_parents_lead_up_the_path(tree: Tree) -> None:
    assert tree.parents.shape == (2 * tree.num_classes,)
    assert tree.parents[0] == tree.parents[1] == 0
    for k in range(tree.num_classes):
        climbed, place = [], int(tree.parents[tree.class_places[k]])
        while place > 0:
            climbed.append(place)
            place = int(tree.parents[place])
        assert climbed == [tree.node_places[node] for node, _ in reversed(tree.path(k))]


@given(trees())
def test_leaf_counts_count_the_classes_whose_path_passes(tree: Tree) -> None:
    passes = np.zeros(2 * tree.num_classes, dtype=int)
    for k in range(tree.num_classes):
        passes[1] += 1
        for node, bit in tree.path(k):
            passes[2 * node + bit] += 1
    assert tree.leaf_counts[1:].tolist() == passes[1:].tolist()


@given(trees())
def test_levels_hold_every_node_at_its_distance_from_the_root(tree: Tree) -> None:
    level_of = {node: step for k in range(tree.num_classes) for step, (node, _) in enumerate(tree.path(k))}
    found = {node: level for level, (low, high) in enumerate(tree.levels) for node in range(low, high)}
    assert found == level_of
    assert [node for low, high in tree.levels for node in range(low, high)] == list(range(1, tree.num_classes))


@given(trees())
def test_depth_is_the_longest_path(tree: Tree) -> None:
    assert tree.depth == max(len(tree.path(k)) for k in range(tree.num_classes))
    assert tree.num_nodes == tree.num_classes - 1


# -- each builder ------------------------------------------------------------------------------------------------


@given(sizes)
def test_balanced_depth_is_the_least_possible(size: int) -> None:
    tree = Tree.balanced(size)
    assert tree.depth == math.ceil(math.log2(size))
    assert {len(tree.path(k)) for k in range(size)} <= {tree.depth, tree.depth - 1}
    assert tree.is_heap


@given(st.integers(0, 10))
def test_balanced_power_of_two_is_the_papers_bit_formula(height: int) -> None:
    # p_b multiplies, for h = 0..H-1, the node at level h under the leading bits b_1..b_h, and turns by bit b_{h+1}
    tree = Tree.balanced(2**height)
    for k in range(2**height):
        bits = [int(b) for b in f"{k:b}".zfill(height)] if height else []
        prefix, expected = 0, []
        for level, bit in enumerate(bits):
            expected.append((2**level + prefix, bit))
            prefix = 2 * prefix + bit
        assert tree.path(k) == expected


@given(sizes)
def test_chain_takes_one_class_off_at_every_node(size: int) -> None:
    tree = Tree.chain(size)
    assert tree.depth == size - 1
    for k in range(size):
        turn = [(k + 1, 1)] if k < size - 1 else []
        assert tree.path(k) == [(node, 0) for node in range(1, k + 1)] + turn


@given(nested())
def test_from_nested_is_the_tree_that_was_written(written: object) -> None:
    tree = Tree.from_nested(written)  # type: ignore[arg-type]
    for k in range(tree.num_classes):
        item = written
        for _, bit in tree.path(k):
            item = item[bit]  # type: ignore[index]
        assert item == k


def test_from_nested_takes_tuples_lists_and_numpy_integers() -> None:
    assert Tree.from_nested(((0, 1), (np.int64(2), 3))) == Tree.from_nested([[0, 1], [2, 3]]) == Tree.balanced(4)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_huffman_reaches_the_least_expected_path_length(weights: list[float]) -> None:
    # the least cost is the sum of all merged weights when the two lightest are merged again and again
    heap = list(weights)
    heapq.heapify(heap)
    least = 0.0
    while len(heap) > 1:
        merged = heapq.heappop(heap) + heapq.heappop(heap)
        least += merged
        heapq.heappush(heap, merged)
    assert expected_length(Tree.huffman(weights), weights) == pytest.approx(least, rel=1e-12)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6))
def test_huffman_beats_every_tree_there_is(weights: list[int]) -> None:
    lengths = all_path_lengths(len(weights))
    least = min(sum(w * d for w, d in zip(sorted(weights, reverse=True), sorted(row), strict=True)) for row in lengths)
    assert expected_length(Tree.huffman(weights), weights) == least


@given(sizes)
def test_huffman_of_equal_weights_is_as_shallow_as_the_heap(size: int) -> None:
    assert Tree.huffman([1.0] * size).depth == Tree.balanced(size).depth


def expected_length(tree: Tree, weights: list[float] | list[int]) -> float:
    return sum(w * len(tree.path(k)) for k, w in enumerate(weights))


@lru_cache
def all_path_lengths(size: int) -> set[tuple[int, ...]]:
    """The path lengths, in order, of every binary tree shape with that many leaves."""
    if size == 1:
        return {(0,)}
    return {
        tuple(1 + d for d in (*left, *right))
        for split in range(1, size)
        for left in all_path_lengths(split)
        for right in all_path_lengths(size - split)
    }


# -- a value -----------------------------------------------------------------------------------------------------


@given(trees(40), trees(40))
def test_trees_are_equal_when_their_paths_are(one: Tree, other: Tree) -> None:
    same = [one.path(k) for k in range(one.num_classes)] == [other.path(k) for k in range(other.num_classes)]
    assert (one == other) == same
    assert one != "a tree"


@given(trees())
def test_copies_are_equal_and_hash_alike(tree: Tree) -> None:
    rebuilt = Tree(tree.class_places.tolist())
    for twin in (rebuilt, copy.copy(tree), copy.deepcopy(tree), pickle.loads(pickle.dumps(tree))):
        assert twin == tree
        assert hash(twin) == hash(tree)
        assert twin.paths.tolist() == tree.paths.tolist()


@pytest.mark.parametrize("table", ["class_places", "node_places", "leaf_counts", "parents", "paths"])
def test_no_table_can_be_written_to(table: str) -> None:
    # trees are shared through caches: one stray write would change every distribution on that tree
    tree = Tree(range(5, 10))  # one that no cache holds, in case the write goes through
    with pytest.raises(ValueError, match="read-only"):
        getattr(tree, table)[...] = 0
