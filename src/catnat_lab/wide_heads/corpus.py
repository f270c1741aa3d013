"""Source code as tokens of very many kinds: pieces of words, or whole words. Ids are ranks: kind 0 is the commonest."""

import hashlib
import io
import re
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Self

import numpy as np

import catnat
from catnat_lab.errors import UserError
from catnat_lab.files import whole_file

PACKAGES = (
    "torch", "sympy", "scipy", "numpy", "sqlalchemy", "matplotlib", "networkx", "optuna", "mpmath", "pandas", "sklearn",
    "jax",
)  # fmt: skip
SKIPPED = {"site-packages", "test", "tests", "idlelib", "lib2to3"}  # of others, or much of a kind
CHARACTERS = 6  # of a token, at most on average: so much text is read
EVERY = 16  # one line in so many teaches the pieces, where there are many; those held out are among them
HELD_OUT = 20  # one part in so many is for validation, and one for the test
SIZE = 32  # numbers in a token's vector, by which tokens are clustered
WORD = re.compile(r"\w+|\n|[^\w\s]")  # an identifier or a number, the end of a line, one sign; other space is dropped
END = "<end of line>"


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
            found, places = _make(task, classes, tokens)
            with whole_file(path) as partial, partial.open("wb") as file:
                np.savez_compressed(file, tokens=found, places=places)
        try:
            with np.load(path) as held:
                corpus = cls(held["tokens"].astype(np.int32), held["places"])
        except Exception as problem:  # of zipfile, zlib or NumPy: each way to break such a file has its own
            raise UserError(f"{path} is not a whole corpus ({problem}); delete it to have it made again") from None
        if corpus.classes != classes:
            raise UserError(f"{path} must hold tokens of {classes} kinds; got {corpus.classes}")
        return corpus

    @property
    def classes(self) -> int:
        return len(self.places)

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.tokens.tobytes()).hexdigest()[:16]

    @property
    def parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The tokens to train on, to choose by and to test on."""
        return _parts(self.tokens)

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


def _parts(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    held = len(tokens) // HELD_OUT
    return tokens[: -2 * held], tokens[-2 * held : -held], tokens[-held:]


def counts(tokens: np.ndarray, classes: int) -> np.ndarray:
    """How often every kind comes in the training part."""
    return np.bincount(_parts(tokens)[0], minlength=classes)


def _make(task: str, classes: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The tokens, and every kind's place on the tree."""
    texts, known = list(_texts(CHARACTERS * most)), dict[str, int]()

    def words(text: str) -> list[int]:
        return [known.setdefault(word, len(known)) for word in WORD.findall(text)]

    coder = _pieces(texts, classes) if task == "pieces" else words
    found = np.fromiter(islice(chain.from_iterable(map(coder, texts)), most), np.int32)
    if task == "words":  # the commonest kinds of the training part, and one more for all others
        found = np.minimum(_ranked(found, len(known)), classes - 1)
    tokens = _ranked(found, classes).astype(np.uint16 if classes <= 1 << 16 else np.int32)
    return tokens, catnat.Tree.cluster(_vectors(tokens, classes)).class_places.astype(np.int32)


def _texts(characters: int) -> Iterator[str]:
    """In a fixed order, whole files until it is so much: of the standard library, and of those packages that are there.

    No tests, no other's folder inside one of them. Files are shuffled, so what is held out is not of one package.
    """
    site = Path(sysconfig.get_path("purelib"))
    folders = [Path(sysconfig.get_path("stdlib")), *(site / name for name in PACKAGES)]
    every = [(folder, path) for folder in folders for path in sorted(folder.rglob("*.py"))]
    files = [path for folder, path in every if not SKIPPED & set(path.relative_to(folder).parts)]
    for k in np.random.default_rng(0).permutation(len(files)):
        text = files[k].read_text(errors="replace")
        yield text
        characters -= len(text)
        if characters < 0:
            return


def _pieces(texts: list[str], classes: int) -> Callable[[str], list[int]]:
    """A coder from a text to the ids of byte pairs, with one for the end of a line; it learns them from some lines."""
    try:
        import sentencepiece
    except ImportError:
        raise UserError("a language model needs sentencepiece: pip install '.[lab]' in catnat's folder") from None
    lines, model = [line for text in texts for line in text.splitlines() if line], io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines[:: EVERY if len(lines) > 100 * classes else 1]),
        model_writer=model,
        model_type="bpe",
        vocab_size=classes,
        user_defined_symbols=[END],
        normalization_rule_name="identity",  # code: every space counts
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        allow_whitespace_only_pieces=True,  # a run of spaces may be one piece, such as an indentation
        byte_fallback=True,
        num_threads=1,  # the same pieces always
        minloglevel=2,
    )
    coder = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    end = coder.piece_to_id(END)
    return lambda text: [i for line in coder.encode(text.splitlines()) for i in (*line, end)]


def _ranked(tokens: np.ndarray, classes: int) -> np.ndarray:
    """The same with ids by their number in the training part, the commonest first; of equals the smaller id."""
    ranks = np.empty(classes, np.int32)
    ranks[np.argsort(-counts(tokens, classes), kind="stable")] = np.arange(classes)
    return ranks[tokens]


def _vectors(tokens: np.ndarray, classes: int) -> np.ndarray:
    """Of what stands before and after every token in the training part, the main directions."""
    from scipy.sparse import coo_matrix, hstack
    from scipy.sparse.linalg import svds

    train = _parts(tokens)[0]
    after = coo_matrix((np.ones(len(train) - 1), (train[:-1], train[1:])), (classes, classes)).tocsr()
    left, sizes, _ = svds(hstack([after, after.T]).tocsr().sqrt(), k=SIZE, random_state=0)
    return np.asarray(left * sizes, np.float32)
