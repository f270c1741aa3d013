"""Source code as tokens of very many kinds: pieces of words, or whole words. Ids are ranks: kind 0 is the commonest."""

import re
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Self

import numpy as np

import catnat
from catnat_lab import language
from catnat_lab.errors import UserError

PACKAGES = (
    "torch", "sympy", "scipy", "numpy", "sqlalchemy", "matplotlib", "networkx", "optuna", "mpmath", "pandas", "sklearn",
    "jax",
)  # fmt: skip
CHARACTERS = 6  # of a token, at most on average: so much text is read
EVERY = 16  # one line in so many teaches the pieces, where there are many; those held out are among them
WORD = re.compile(r"\w+|\n|[^\w\s]")  # an identifier or a number, the end of a line, one sign; other space is dropped


@dataclass(frozen=True)
class Corpus:
    """Token ids, and where every kind stands on the tree of clustered kinds: it takes long to find again."""

    tokens: np.ndarray
    places: np.ndarray
    trees: dict[str, catnat.Tree] = field(default_factory=dict, repr=False)  # made when they are needed

    @classmethod
    def load(cls, path: Path, task: str, classes: int, tokens: int) -> Self:
        """From a file; where it is not there yet, made of Python's own source code and that of some packages."""
        if not path.exists():
            found = _make(task, classes, tokens)
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(path, tokens=found.tokens, places=found.places)
        with np.load(path) as file:
            corpus = cls(file["tokens"].astype(np.int32), file["places"])
        if corpus.classes != classes:
            raise UserError(f"{path} must hold tokens of {classes} kinds; got {corpus.classes}")
        return corpus

    @property
    def classes(self) -> int:
        return len(self.places)

    @property
    def checksum(self) -> str:
        return language.checksum(self.tokens)

    def tree(self, name: str) -> catnat.Tree:
        """By name: the balanced one in the order of ids, Huffman's of the training part, or that of clustered kinds."""
        if name not in self.trees:
            if name == "ids":
                self.trees[name] = catnat.Tree.balanced(self.classes)
            elif name == "huffman":
                self.trees[name] = catnat.Tree.huffman(np.maximum(counts(self.tokens, self.classes), 1))
            else:
                self.trees[name] = catnat.Tree(self.places)
        return self.trees[name]


def counts(tokens: np.ndarray, classes: int) -> np.ndarray:
    """How often every kind comes in the training part."""
    return np.bincount(language.parts(tokens)[0], minlength=classes)


def ranked(tokens: np.ndarray, classes: int) -> np.ndarray:
    """The same with ids by their number in the training part, the commonest first; of equals the smaller id."""
    ranks = np.empty(classes, np.int32)
    ranks[np.argsort(-counts(tokens, classes), kind="stable")] = np.arange(classes)
    return ranks[tokens]


def _make(task: str, classes: int, most: int) -> Corpus:
    texts, known = list(_texts(CHARACTERS * most)), dict[str, int]()

    def words(text: str) -> list[int]:
        return [known.setdefault(word, len(known)) for word in WORD.findall(text)]

    coder = _pieces(texts, classes) if task == "pieces" else words
    found = np.fromiter(islice(chain.from_iterable(map(coder, texts)), most), np.int32)
    if task == "words":  # the commonest kinds of the training part, and one more for all others
        found = np.minimum(ranked(found, len(known)), classes - 1)
    tokens = ranked(found, classes).astype(np.uint16 if classes <= 1 << 16 else np.int32)
    tree = catnat.Tree.cluster(language.vectors(tokens, classes))
    return Corpus(tokens, tree.class_places.astype(np.int32))


def _texts(characters: int) -> Iterator[str]:
    """In a fixed order, whole files until it is so much: of the standard library, and of those packages that are there.

    No tests, no other's folder inside one of them.
    """
    site = Path(sysconfig.get_path("purelib"))
    folders = [Path(sysconfig.get_path("stdlib")), *(site / name for name in PACKAGES)]
    files = [file for folder in folders for file in language.python_files(folder)]
    for k in language.shuffled(len(files)):
        text = files[k].read_text(errors="replace")
        yield text
        characters -= len(text)
        if characters < 0:
            return


def _pieces(texts: list[str], classes: int) -> Callable[[str], list[int]]:
    lines = [line for text in texts for line in text.splitlines() if line]
    return language.pieces(lines[:: EVERY if len(lines) > 100 * classes else 1], classes, spaces=True)
