"""Laws of `Tree`, for every way to build one."""

from __future__ import annotations

import copy
import heapq
import math
import pickle
from collections.abc import Callable
from functools import lru_cache
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from catnat import Parameterization, Tree
from catnat.core import clusters
from catnat_lab import reference
from tests.core.trees import make_tree, nested, trees
from tests.thinned import thinned

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
def test_a_rank_counts_the_classes_on_the_left(tree: Tree) -> None:
    turns = [[bit for _, bit in tree.path(k)] for k in range(tree.num_classes)]
    from_the_left = sorted(range(tree.num_classes), key=turns.__getitem__)  # no path is the beginning of another
    assert tree.ranks[from_the_left].tolist() == list(range(tree.num_classes))


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
def test_every_place_has_a_node_or_a_class(tree: Tree) -> None:
    size = tree.num_classes
    assert tree.node_at[0] == 0 and tree.class_at[0] == size
    for place in range(1, 2 * size):
        nodes = [node for node in range(1, size) if tree.node_places[node] == place]
        classes = [k for k in range(size) if tree.class_places[k] == place]
        assert [tree.node_at[place]] == (nodes or [0]) and [tree.class_at[place]] == (classes or [size])
        assert len(nodes) + len(classes) == 1


@given(trees(70))
def test_jumps_double_and_reach_to_the_root(tree: Tree) -> None:
    for r, jump in enumerate(tree.jumps):
        above = np.arange(2 * tree.num_classes)
        for _ in range(2**r):
            above = tree.parents[above]
        assert jump.tolist() == above.tolist()
    # so many rounds add up what is written on a path
    written = np.random.default_rng(0).integers(1000, size=2 * tree.num_classes)
    written[:2] = 0
    total = written
    for jump in tree.jumps:
        total = total + total[jump]
    for k in range(tree.num_classes):
        assert total[tree.class_places[k]] == sum(written[2 * node + bit] for node, bit in tree.path(k))


@given(trees())
def test_rungs_put_what_is_below_a_level_in_its_places(tree: Tree) -> None:
    lengths = [len(tree.path(k)) for k in range(tree.num_classes)]
    assert len(tree.rungs) == tree.depth
    for level, ((low, high), (classes, order)) in enumerate(zip(tree.levels, tree.rungs, strict=True)):
        assert sorted(classes.tolist()) == [k for k, length in enumerate(lengths) if length == level + 1]
        nodes = range(*tree.levels[level + 1]) if level + 1 < tree.depth else []
        there = [*(tree.node_places[n] for n in nodes), *tree.class_places[classes].tolist()]
        assert [there[i] for i in order.tolist()] == list(range(2 * low, 2 * high))


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


@given(trees())
def test_heap_order_says_which_of_the_heaps_classes_a_class_is(tree: Tree) -> None:
    heap = Tree.balanced(tree.num_classes)
    if tree.heap_order is None:
        assert tree.leaf_counts.tolist() != heap.leaf_counts.tolist()
    else:
        assert [tree.path(k) for k in range(tree.num_classes)] == [heap.path(j) for j in tree.heap_order.tolist()]
        assert tree.is_heap == (tree.heap_order.tolist() == list(range(tree.num_classes)))


@given(st.integers(2, 60), st.integers(0, 9))
def test_the_heaps_probabilities_in_heap_order_are_the_trees(size: int, seed: int) -> None:
    tree = make_tree("cluster", size, seed)
    scores = np.random.default_rng(seed).normal(size=(2, size - 1))
    heap = reference.log_catnat(scores, Parameterization(size))
    found = reference.log_catnat(scores, Parameterization(size, tree=tree))
    assert (found == heap[:, tree.heap_order]).all()


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
    assert tree.nested == written


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


# in the example a deep subtree and a shallow one weigh 2 after rounding, and the deep one is older
@given(st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5 - 2**-53, 1.0, 2.0]), min_size=1, max_size=200))
@example([0.25, 0.25, 0.5 - 2**-53, 1.0, 1.0, 1.0])
def test_huffman_joins_shallow_subtrees_first_then_old_ones(weights: list[float]) -> None:
    size = len(weights)
    heap: list[tuple[float, int, int, object]] = [(w, 0, k, k) for k, w in enumerate(weights)]
    heapq.heapify(heap)
    for age in range(size, 2 * size - 1):
        one, other = heapq.heappop(heap), heapq.heappop(heap)
        heapq.heappush(heap, (one[0] + other[0], 1 + max(one[1], other[1]), age, [one[3], other[3]]))
    assert Tree.huffman(weights) == Tree.from_nested(heap[0][3])  # type: ignore[arg-type]


@given(st.integers(1, 300), st.integers(1, 5), st.integers(0, 99))
def test_cluster_has_the_shape_of_the_heap(size: int, dimension: int, seed: int) -> None:
    tree = Tree.cluster(np.random.default_rng(seed).normal(size=(size, dimension)))
    assert tree.leaf_counts.tolist() == Tree.balanced(size).leaf_counts.tolist()
    assert tree.heap_order is not None
    assert sorted(tree.heap_order.tolist()) == list(range(size))


@given(st.integers(1, 300), st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=5))
def test_cluster_of_equal_vectors_is_the_heap(size: int, vector: list[float]) -> None:
    with np.errstate(divide="raise", invalid="raise"):
        for one in (vector, [0.0]):
            assert Tree.cluster([one] * size) == Tree.balanced(size)


@given(st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=200))
def test_cluster_of_numbers_puts_them_in_order(numbers: list[int]) -> None:
    tree = Tree.cluster([[n] for n in numbers])
    bits = [[bit for _, bit in tree.path(k)] for k in range(len(numbers))]
    from_left = sorted(range(len(numbers)), key=bits.__getitem__)
    assert [numbers[k] for k in from_left] == sorted(numbers)


@pytest.mark.parametrize("height", [1, 3, 6])
def test_cluster_finds_groups_within_groups(height: int) -> None:
    # every class has a name of bits; the earlier the bit, the farther it moves the class, in a direction of its own
    rng = np.random.default_rng(height)
    names = rng.permutation(2**height)
    bits = (names[:, None] >> np.arange(height)[::-1]) & 1
    directions, _ = np.linalg.qr(rng.normal(size=(height + 2, height)))
    tree = Tree.cluster((bits * 3.0 ** -np.arange(height)) @ directions.T + 7.0)
    for one in range(2**height):
        for other in range(2**height):
            alike = np.cumprod(bits[one] == bits[other]).sum()  # so many first bits in common
            steps = zip(tree.path(one), tree.path(other), strict=True)
            assert sum(a == b for a, b in steps) == alike


@pytest.mark.parametrize("size", [2, 3, 5, 17, 64, 100])
@pytest.mark.parametrize("dimension", [2, 40])
def test_cluster_cuts_across_the_first_principal_direction(size: int, dimension: int) -> None:
    vectors = np.random.default_rng(size).normal(size=(size, dimension)) * 0.3 ** np.arange(dimension) + 5.0
    tree = Tree.cluster(vectors)
    for node in range(1, size):
        turns = {k: bit for k in range(size) for i, bit in tree.path(k) if i == node}
        inside = vectors[list(turns)] - vectors[list(turns)].mean(0)
        _, spread, directions = np.linalg.svd(inside)
        if len(turns) > 2 and spread[1] > 0.8 * spread[0]:  # there is more than one that will do
            continue
        along = inside @ directions[0]
        left, right = ([a for a, bit in zip(along, turns.values(), strict=True) if bit == b] for b in (0, 1))
        assert max(left) <= min(right) or max(right) <= min(left)


def test_cluster_leaves_the_scale_and_the_origin_out() -> None:
    vectors = np.random.default_rng(0).normal(size=(77, 6))
    tree = Tree.cluster(vectors)
    assert tree != Tree.balanced(77)
    for other in (vectors + 100.0, 2.0**1017 * (vectors + 100.0), 2.0**-1000 * vectors, vectors.tolist()):
        assert Tree.cluster(other) == tree
    assert Tree.cluster([[-1.7e308], [1.6e308], [-1.6e308], [1.7e308]]) == Tree.from_nested([[0, 2], [1, 3]])
    # in a part of the tree too
    tiny = [[4.0], [4e-200], [1.0], [1e-200], [3.0], [3e-200], [2.0], [2e-200]]
    assert Tree.cluster(tiny) == Tree.from_nested([[[3, 7], [5, 1]], [[2, 6], [4, 0]]])


def test_cluster_takes_every_kind_of_number() -> None:
    vectors = np.random.default_rng(0).integers(0, 2, (33, 6))
    for kind in (np.int8, np.uint64, np.float16, np.float32, np.longdouble, bool):
        assert Tree.cluster(vectors.astype(kind)) == Tree.cluster(vectors)


def test_cluster_is_the_same_in_one_batch_or_many(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(0).normal(size=(300, 4))
    tree = Tree.cluster(vectors)
    monkeypatch.setattr(clusters, "AT_ONCE", 100)
    assert Tree.cluster(vectors) == tree


@pytest.mark.parametrize(
    ("at_once", "size", "dimension"),  # the powers of small and large matrices of both kinds
    thinned(product([2**7, 2**18], [2, 34, 71, 500], [1, 3, 33, 70]), every=5),
)
def test_cluster_takes_so_many_power_iterations_by_the_vectors(
    monkeypatch: pytest.MonkeyPatch, size: int, dimension: int, at_once: int
) -> None:
    monkeypatch.setattr(clusters, "AT_ONCE", at_once)
    vectors = np.random.default_rng(dimension).normal(size=(size, dimension)) + 3.0
    for left, right in splits(Tree.cluster(vectors)):
        classes = [*left, *right]
        inside = vectors[classes] - vectors[classes].mean(0)
        u = np.cos(np.arange(1.0, dimension + 1))
        for _ in range(40):
            u = inside.T @ (inside @ u)
            u /= np.linalg.norm(u)
        along = inside @ u
        assert along[: len(left)].max() <= along[len(left) :].min() + 1e-9 * np.abs(along).max()


def test_cluster_of_twins_keeps_their_order() -> None:
    # many vectors come several times; equal ones stay in the heap's order wherever they stand in a block
    rng = np.random.default_rng(0)
    few = rng.normal(size=(40, 7))
    which = rng.integers(0, 40, 1000)
    tree = Tree.cluster(few[which])
    left_to_right = sorted(range(1000), key=lambda k: [bit for _, bit in tree.path(k)])
    heap = Tree.balanced(1000)
    from_left = {k: [bit for _, bit in heap.path(k)] for k in range(1000)}
    for one in range(40):
        twins = [k for k in left_to_right if which[k] == one]
        assert twins == sorted(twins, key=from_left.__getitem__)


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


def splits(tree: Tree) -> list[tuple[frozenset[int], frozenset[int]]]:
    """The classes left and right of every node."""
    parts: list[tuple[set[int], set[int]]] = [(set(), set()) for _ in range(tree.num_nodes)]
    for k in range(tree.num_classes):
        for node, bit in tree.path(k):
            parts[node - 1][bit].add(k)
    return [(frozenset(left), frozenset(right)) for left, right in parts]


# -- a value -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("build", "places"), [(Tree.balanced, [4, 5, 6, 7]), (Tree.chain, [3, 5, 7, 6])])
def test_a_tree_that_is_known_by_name_is_the_tree_of_its_places(
    build: Callable[[int], Tree], places: list[int]
) -> None:
    named, spelled = build(4), Tree(places)
    assert named == spelled and spelled == named and hash(named) == hash(spelled)
    assert named.class_places.tolist() == places and named.paths.tolist() == spelled.paths.tolist()
    assert build(5) != named != Tree([7, 5, 6, 4]) and pickle.loads(pickle.dumps(named)) == named


def test_names_are_equal_where_the_trees_are() -> None:
    assert Tree.chain(1) == Tree.balanced(1)
    for size in range(2, 6):
        assert Tree.chain(size) != Tree.balanced(size)
        assert (Tree.chain(size).leaf_counts.tolist() == Tree.balanced(size).leaf_counts.tolist()) == (size < 4)


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


@pytest.mark.parametrize("given_as", [list, tuple, np.array, lambda places: np.array(places, dtype=np.uint8)])
def test_places_come_as_any_sequence_of_whole_numbers(given_as: object) -> None:
    assert Tree(given_as(range(5, 10))) == Tree(range(5, 10)) == Tree.balanced(5)  # type: ignore[operator]
    assert Tree([np.int32(2), 3]) == Tree(range(2, 4)) and Tree(range(3, 1, -1)) == Tree([3, 2])


def test_a_tree_keeps_its_own_copy_of_the_places() -> None:
    places = np.arange(5, 10)
    tree = Tree(places)
    places[:] = 0
    assert tree == Tree.balanced(5) and places.flags.writeable


@pytest.mark.parametrize("tree", [Tree(range(5, 10)), Tree.chain(5), Tree.balanced(5)], ids=repr)
def test_no_table_can_be_written_to(tree: Tree) -> None:
    # trees are shared through caches: one stray write would change every distribution on that tree
    tables = "class_places", "node_places", "leaf_counts", "parents", "paths", "path_lengths", "ranks"
    tables += "node_at", "class_at"
    arrays = [getattr(tree, name) for name in tables]
    arrays += [*tree.jumps, *sum(tree.rungs, ()), *([] if tree.heap_order is None else [tree.heap_order])]
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[...] = array
