"""Which class hangs where: the binary tree that a catnat walks.

**Numbering.** Walk the tree level by level, left to right, and number every place on the way: the root is 1. Number
the inner nodes alone in the same order, 1 to K-1. Then the children of inner node i are the places 2i (left) and
2i+1 (right), in *every* binary tree, because each earlier inner node has put exactly two places in front of them. So a
tree is nothing but the K places at which its classes sit. In the balanced heap inner node i sits at place i and class
k at place K+k, for every K.

Node i has the score ``scores[..., i-1]``; it sends a(score) to the right and 1-a(score) to the left.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import cached_property
from reprlib import repr as brief  # of a million numbers the first few
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from catnat.core.caches import Kept
from catnat.core.clusters import check_vectors, sort_by_likeness
from catnat.core.errors import check_index_range, check_num_classes

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Nested = int | Sequence["Nested"]
Array = TypeVar("Array", bound=npt.NDArray[np.integer])
SHOWN = 16  # classes of the largest tree that is printed in full


class Tree:
    """A binary tree over classes 0..K-1. Immutable, hashable and picklable.

    Build one with :meth:`balanced`, :meth:`chain`, :meth:`huffman`, :meth:`cluster` or :meth:`from_nested`.

    Example:
        >>> import catnat
        >>> tree = catnat.Tree.from_nested([[0, 1], [2, [3, 4]]])
        >>> tree.num_classes, tree.num_nodes, tree.depth
        (5, 4, 3)
    """

    num_classes: int  # K, the number of leaves
    _kind: str | None = None  # "balanced" and "chain" are built when first walked: a name alone costs no memory

    def __init__(self, class_places: Sequence[int] | npt.NDArray[np.integer]) -> None:
        self.class_places = _frozen(_whole_numbers(class_places))
        self.num_classes = size = len(self.class_places)
        places, listed = self.class_places, brief(self.class_places[:9].tolist())
        if places.min() < 1 or places.max() >= 2 * size or self.node_places.size != size:
            raise ValueError(f"class_places must be {size} different places in [1, {2 * size - 1}]; got {listed}")
        if np.any(self.node_places[1:] >= 2 * np.arange(1, size)):  # a node's children come after it
            raise ValueError(f"class_places do not describe a binary tree: {listed}")

    @staticmethod
    def _named(kind: str, num_classes: int) -> Tree:  # through `_known` alone: one of a kind and size
        tree = object.__new__(Tree)
        tree._kind, tree.num_classes = kind, num_classes
        return tree

    @cached_property
    def class_places(self) -> Ints:
        """[K] the place of every class."""
        size = self.num_classes
        if self._kind == "balanced":
            return _frozen(np.arange(size, 2 * size))
        # chain: node i (place 2i-2, or 1 for the root) has class i-1 at 2i+1; the last class takes the last left place
        return _frozen(np.append(2 * np.arange(1, size) + 1, max(1, 2 * (size - 1))))

    # -- ways to build one -------------------------------------------------------------------------------------

    @staticmethod
    def balanced(num_classes: int) -> Tree:
        """The heap: depth ceil(log2 K), any K; for K a power of two the tree of the paper."""
        return _known["balanced", check_num_classes(num_classes)]

    @staticmethod
    def chain(num_classes: int) -> Tree:
        """Stick breaking: node i takes class i-1 off to the right and leaves the rest on the left."""
        return _known["chain", check_num_classes(num_classes)]

    @staticmethod
    def huffman(weights: Sequence[float]) -> Tree:
        """The tree with the least expected path length when class k has the given weight (say, its frequency).

        Frequent classes get short paths, so `log_prob` and `sample` touch fewer nodes on average.
        """
        try:
            values = np.asarray(weights, dtype=np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"weights must be a sequence of one number a class; got {brief(weights)}") from None
        if values.ndim != 1 or values.size == 0:
            raise ValueError(f"weights must be a sequence of one number a class; got shape {values.shape}")
        bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
        if bad.size:
            raise ValueError(f"weights must be finite and at least 0; weights[{bad[0]}] is {values[bad[0]]}")
        # join the two lightest subtrees again and again; subtrees are numbered by age, the classes first
        size = len(values)
        # (weight, height, age): height before age keeps equal weights shallow
        subtrees = [(weight, 0, k) for k, weight in enumerate(values.tolist())]
        heapq.heapify(subtrees)
        children = np.empty((size - 1, 2), dtype=np.int64)
        for age in range(size, 2 * size - 1):
            first, second = heapq.heappop(subtrees), heapq.heappop(subtrees)
            children[age - size] = first[2], second[2]
            heapq.heappush(subtrees, (first[0] + second[0], 1 + max(first[1], second[1]), age))
        # number the places level by level
        class_places = np.empty(size, dtype=np.int64)
        level, next_place = np.array([2 * size - 2]), 1
        while level.size:
            is_class = level < size
            class_places[level[is_class]] = next_place + np.flatnonzero(is_class)
            next_place += level.size
            level = children[level[~is_class] - size].ravel()
        return Tree(class_places)

    @staticmethod
    def cluster(vectors: npt.ArrayLike) -> Tree:
        r"""The heap's shape with another order of classes: classes whose vectors are alike share a subtree.

        Every node must tell one union of classes from another, which is easier where the classes of a union are alike.
        So the set S of classes below a node is cut across its first principal direction,

        .. math:: u = \operatorname{argmax}_{|u|=1} \sum_{k \in S} (u \cdot (v_k - \bar v_S))^2,

        with the classes of the least :math:`u \cdot v_k` on the left, as many as the heap has there; then each part in
        turn. The depth stays ceil(log2 K), and where all vectors are equal the tree is the heap. u comes from a fixed
        number of power iterations in float64 from a fixed start: the same vectors give the same tree, but for a class
        that lies on a cut to all 15 digits, where another BLAS may round otherwise.

        Args:
            vectors: [K, d] one vector a class: the rows of an embedding or of a trained head's weights, or averages of
                what the classes look like. Only their differences count; entries on a larger scale count more.

        Example:
            >>> import catnat
            >>> tree = catnat.Tree.cluster([[0.0], [5.0], [0.1], [5.1]])  # 0 is like 2, and 1 like 3
            >>> tree == catnat.Tree.from_nested([[0, 2], [1, 3]])
            True
        """
        rows = check_vectors(vectors)
        size = len(rows)
        heap = Tree.balanced(size)
        last = 1 << heap.depth  # the first place of the last level
        places = np.concatenate([np.arange(last, 2 * size), np.arange(size, last)])  # of classes, from left to right
        order = places - size  # the class at each of them: at first the heap's own
        sizes = (heap.leaf_counts[heap.node_places[low:high]] for low, high in heap.levels)
        class_places = np.empty(size, dtype=np.int64)
        class_places[sort_by_likeness(order, rows, sizes)] = places
        return Tree(class_places)

    @staticmethod
    def from_nested(nested: Nested) -> Tree:
        """A tree written as nested pairs of class ids: ``[[0, 1], 2]`` has class 2 right of the root."""
        place_of: dict[int, int] = {}
        level, next_place = [nested], 1
        while level:
            below: list[Nested] = []
            for item in level:
                if isinstance(item, (int, np.integer)) and not isinstance(item, bool):
                    if int(item) in place_of:
                        raise ValueError(f"nested must hold every class id once; {item} stands twice")
                    place_of[int(item)] = next_place
                elif isinstance(item, Sequence) and not isinstance(item, (str, bytes)) and len(item) == 2:
                    below.extend(item)
                else:
                    raise ValueError(f"nested must be a class id or a pair of subtrees everywhere; got {brief(item)}")
                next_place += 1
            level = below
        size = len(place_of)
        if sorted(place_of) != list(range(size)):
            missing = next(k for k in range(size) if k not in place_of)
            raise ValueError(f"nested must hold the class ids 0..{size - 1}, each once; {missing} is missing")
        return Tree([place_of[k] for k in range(size)])

    # -- what it is --------------------------------------------------------------------------------------------

    @property
    def num_nodes(self) -> int:
        """K-1, the number of inner nodes and so of scores."""
        return self.num_classes - 1

    @cached_property
    def is_heap(self) -> bool:
        """Whether this is the balanced heap, whose levels are contiguous slices."""
        return self == Tree.balanced(self.num_classes)

    @cached_property
    def heap_order(self) -> Ints | None:
        """[K] which class of the heap sits where class k sits, in a tree of the heap's shape; None in any other.

        So the heap's walk serves this tree: its log p of class ``heap_order[k]`` is log p of class k here.
        """
        if self.class_places.min() < self.num_classes:  # the heap's classes are at the last K places
            return None
        return _frozen(self.class_places - self.num_classes)

    @cached_property
    def node_places(self) -> Ints:
        """[K] the place of every inner node; entry 0 stands for no node."""
        is_class = np.zeros(2 * self.num_classes, dtype=bool)
        is_class[self.class_places] = True
        return _frozen(np.flatnonzero(~is_class))

    @cached_property
    def levels(self) -> tuple[tuple[int, int], ...]:
        """(first, past the last) inner node of every level, root first."""
        found, low, high = [], 1, 2
        while low < min(high, self.num_classes):
            found.append((low, high))
            # the children of nodes low..high-1 fill the places 2 low .. 2 high - 1
            low, high = high, int(np.searchsorted(self.node_places, 2 * high))
        return tuple(found)

    @property
    def depth(self) -> int:
        """Length of the longest path from the root to a class."""
        return len(self.levels)

    @cached_property
    def leaf_counts(self) -> Ints:
        """[2K] number of classes at or below every place; entry 0 is unused."""
        counts = np.zeros(2 * self.num_classes, dtype=np.int64)
        counts[self.class_places] = 1
        for low, high in reversed(self.levels):
            counts[self.node_places[low:high]] = counts[2 * low : 2 * high : 2] + counts[2 * low + 1 : 2 * high : 2]
        return _frozen(counts)

    @cached_property
    def path_lengths(self) -> Ints:
        """[K] how many nodes the path to every class has."""
        lengths = np.zeros(2 * self.num_classes, dtype=np.int64)
        for low, high in self.levels:
            nodes = np.arange(low, high)
            lengths[2 * nodes] = lengths[2 * nodes + 1] = lengths[self.node_places[nodes]] + 1
        return _frozen(lengths[self.class_places])

    @cached_property
    def ranks(self) -> Ints:
        """[K] how many classes are left of every class."""
        before = np.zeros(2 * self.num_classes, dtype=np.int64)
        for low, high in self.levels:
            nodes = np.arange(low, high)
            before[2 * nodes] = before[self.node_places[nodes]]
            before[2 * nodes + 1] = before[2 * nodes] + self.leaf_counts[2 * nodes]
        return _frozen(before[self.class_places])

    @cached_property
    def parents(self) -> Ints:
        """[2K] the place above every place; 0 above the root and above 0."""
        above = self.node_places[np.arange(2 * self.num_classes) >> 1]
        above[:2] = 0
        return _frozen(above)

    def path(self, k: int) -> list[tuple[int, int]]:
        """(node, bit) pairs from the root to class ``k``; bit 1 is right. Nodes count from 1."""
        check_index_range(self.num_classes, k, k, "k")
        steps, place = [], int(self.class_places[k])
        while place > 1:
            steps.append((place >> 1, place & 1))
            place = int(self.node_places[place >> 1])
        return steps[::-1]

    @cached_property
    def paths(self) -> npt.NDArray[np.int32]:
        """[K, depth] paths from below, with +node for a right turn, -node for a left one and 0 when done."""
        steps = np.zeros((self.num_classes, self.depth), dtype=np.int32)
        place = self.class_places.copy()
        for column in range(self.depth):
            node = place >> 1
            steps[:, column] = np.where(place & 1, node, -node) * (place > 1)
            place = np.where(place > 1, self.node_places[node], 1)
        return _frozen(steps)

    @property
    def nested(self) -> Nested:
        """The tree as :meth:`from_nested` takes it: ``[[[3, 4], 0], [1, 2]]`` is ``Tree.balanced(5)``."""
        below: dict[int, Nested] = {int(place): k for k, place in enumerate(self.class_places)}  # by place
        for node in range(self.num_nodes, 0, -1):  # a node's children come after it
            below[int(self.node_places[node])] = [below.pop(2 * node), below.pop(2 * node + 1)]
        return below[1]

    # -- tables that walks look up -----------------------------------------------------------------------------

    @cached_property
    def node_at(self) -> Ints:
        """[2K] which node is at every place; 0 where a class is."""
        found = np.zeros(2 * self.num_classes, dtype=np.int64)
        found[self.node_places] = np.arange(self.num_classes)
        return _frozen(found)

    @cached_property
    def class_at(self) -> Ints:
        """[2K] which class is at every place; K where none is."""
        found = np.full(2 * self.num_classes, self.num_classes)
        found[self.class_places] = np.arange(self.num_classes)
        return _frozen(found)

    @cached_property
    def jumps(self) -> tuple[Ints, ...]:
        """Pointer doubling: round r adds to every place what stands 2^r places above it."""
        rounds, above = [], self.parents
        for _ in range(max(self.depth - 1, 0).bit_length()):
            rounds.append(_frozen(above))
            above = above[above]
        return tuple(rounds)

    @cached_property
    def rungs(self) -> tuple[tuple[Ints, Ints], ...]:
        """For every level, the classes right below it, and the order of its places in (nodes below, those classes)."""
        found = []
        for low, high in self.levels:
            nodes = self.node_at[2 * low : 2 * high]
            order = np.argsort(nodes == 0, kind="stable")  # the places of nodes first
            found.append((_frozen(self.class_at[2 * low : 2 * high][nodes == 0]), _frozen(np.argsort(order))))
        return tuple(found)

    # -- a value -----------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Tree) or self.num_classes != other.num_classes:
            return False
        if self._kind and other._kind:  # by name, so that nothing is built
            return self._kind == other._kind or self.num_classes == 1
        return bool(np.array_equal(self.class_places, other.class_places))

    def __hash__(self) -> int:
        return hash((Tree, self.num_classes))  # cheap: few trees of one size meet in one dictionary

    def __reduce__(self) -> tuple[object, ...]:
        return (Tree, (self.class_places.tolist(),))

    def __copy__(self) -> Tree:
        return self

    def __deepcopy__(self, memo: object) -> Tree:
        return self

    def __repr__(self) -> str:
        for build in (Tree.balanced, Tree.chain):
            if self == build(self.num_classes):
                return f"Tree.{build.__name__}({self.num_classes})"
        if self.num_classes <= SHOWN:
            return f"Tree.from_nested({self.nested})"
        return f"<Tree of {self.num_classes} classes, depth {self.depth}>"


def _frozen(array: Array) -> Array:
    """Trees are shared through caches: a stray write must not change them all."""
    array.flags.writeable = False
    return array


def _whole_numbers(given: object) -> Ints:
    """``class_places`` as int64, or raise: a float would be cut off and a bool counted as 0 or 1."""
    if isinstance(given, range):  # NumPy would read it number by number
        given = np.arange(given.start, given.stop, given.step, dtype=np.int64)
    try:
        places = np.array(given)
    except ValueError:  # rows of different lengths
        raise ValueError(f"class_places must be a sequence of whole numbers; got {brief(given)}") from None
    if places.ndim != 1 or places.size == 0:
        raise ValueError(f"class_places must be a non-empty sequence; got shape {places.shape}")
    mixed = () if isinstance(given, np.ndarray) else given  # NumPy makes one kind of all
    wrong = next((p for p in mixed if not hasattr(p, "__index__") or isinstance(p, (bool, np.bool_))), None)  # type: ignore[attr-defined]
    if places.dtype.kind not in "iu" or wrong is not None:
        came = f"dtype {places.dtype}" if wrong is None else f"{wrong!r} in it"
        raise TypeError(f"class_places must be a sequence of whole numbers; got {came}")
    return places.astype(np.int64, copy=False)


_known = Kept(lambda tree: 128 * tree.num_classes, lambda key: Tree._named(*key))  # with all its tables
