"""A small language model of Python's own source code, with thousands of classes on a tree of clustered tokens."""

import hashlib
import io
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import catnat
import catnat.torch as ct
from catnat_lab.devices import tensor_cores
from catnat_lab.errors import UserError
from catnat_lab.experiment import Outcome
from catnat_lab.heads import activation_of, tail_head
from catnat_lab.tails.tasks import SOFTMAX, TAILS, Progress, Run, Task

HELD_OUT = 20  # one part in so many is for validation, and one for the test
LEAST = 100_000  # characters of a corpus
END = "<end of line>"
SIZE = 32  # numbers in a token's vector, by which tokens are clustered


@dataclass(frozen=True)
class Corpus:
    """Token ids, and a vector for every token: tokens with the same neighbours have the same direction."""

    tokens: np.ndarray
    vectors: np.ndarray

    @classmethod
    def load(cls, path: Path, classes: int, sources: Path | None = None) -> Self:
        """From a file; where it is not there yet, made of all Python files in a folder, by default Python's own."""
        if not path.exists():
            tokens = _tokens(sources or Path(sysconfig.get_path("stdlib")), classes)
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(path, tokens=tokens, vectors=_vectors(tokens, classes))
        with np.load(path) as file:
            found = cls(file["tokens"], file["vectors"])
        if len(found.vectors) != classes:
            raise UserError(f"{path} must hold tokens of {classes} kinds; got {len(found.vectors)}")
        return found

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.tokens.tobytes()).hexdigest()[:16]


def _tokens(folder: Path, classes: int) -> np.ndarray:
    try:
        import sentencepiece
    except ImportError:
        raise UserError("a language model needs sentencepiece: pip install '.[lab]' in catnat's folder") from None
    skipped = {"site-packages", "test", "tests", "idlelib", "lib2to3"}  # of others, or much of a kind
    files = sorted(path for path in folder.rglob("*.py") if not skipped & set(path.relative_to(folder).parts))
    texts = [path.read_text(errors="replace") for path in files]
    if (size := sum(map(len, texts))) < LEAST:
        raise UserError(f"{folder} must hold at least {LEAST:,} characters of Python; got {size:,}")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line for text in texts for line in text.splitlines() if line),
        model_writer=model,
        model_type="bpe",
        vocab_size=classes,
        user_defined_symbols=[END],
        normalization_rule_name="identity",  # code: every space counts
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        byte_fallback=True,
        num_threads=1,  # the same pieces always
        minloglevel=2,
    )
    coder = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    order = np.random.default_rng(0).permutation(len(texts))  # what is held out is of other files, not of one package
    end = coder.piece_to_id(END)
    return np.array([i for k in order for line in coder.encode(texts[k].splitlines()) for i in (*line, end)], np.int32)


def _vectors(tokens: np.ndarray, classes: int) -> np.ndarray:
    """Of what stands before and after every token in the training part, the main directions."""
    from scipy.sparse import coo_matrix, hstack
    from scipy.sparse.linalg import svds

    train = tokens[: len(tokens) - 2 * (len(tokens) // HELD_OUT)]
    ones = np.ones(len(train) - 1)
    after = coo_matrix((ones, (train[:-1], train[1:])), (classes, classes)).tocsr()
    both = hstack([after, after.T]).tocsr().sqrt()
    left, sizes, _ = svds(both, k=SIZE, random_state=0)
    return np.asarray(left * sizes, np.float32)


class Model(nn.Module):
    def __init__(self, classes: int, scores: int, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(classes, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, scores)

    def forward(self, ids: Tensor) -> Tensor:
        """[B, L] to scores [B, L, ...]."""
        places = torch.arange(ids.shape[1], device=ids.device)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        x = self.layers(self.embedding(ids) + self.places(places), mask=mask, is_causal=True)
        return self.head(x)


@dataclass(frozen=True, kw_only=True)
class Language(Task):
    """One corpus and model; runs are trained one after the other."""

    corpus: Corpus
    steps: int = 2000
    batch: int = 64
    length: int = 128
    width: int = 256
    layers: int = 4
    judged: int = 1 << 18  # tokens to judge by, at most
    measure: str = "nats per token"
    tolerance: float = 0.05
    rates: tuple[float, ...] = (0.0001, 0.00032, 0.001, 0.0032, 0.01)
    heads: tuple[str, ...] = (SOFTMAX, *map(tail_head, TAILS))
    search_seeds: int = 1
    seeds: int = 3
    at_once: int = 4

    @classmethod
    def of(cls, corpus: Corpus) -> Self:
        return cls(name=f"language model, {len(corpus.vectors):,} classes", corpus=corpus)

    @property
    def classes(self) -> int:
        return len(self.corpus.vectors)

    @cached_property
    def tree(self) -> catnat.Tree:
        """Tokens that are alike share a subtree."""
        return catnat.Tree.cluster(self.corpus.vectors)

    def train(self, runs: Sequence[Run], device: torch.device, progress: Progress) -> list[Outcome]:
        with tensor_cores():
            return [self._train(run, device, progress) for run in runs]

    def _train(self, run: Run, device: torch.device, progress: Progress) -> Outcome:
        tokens = torch.from_numpy(self.corpus.tokens).to(device)
        held = len(tokens) // HELD_OUT
        train, validation, test = tokens[: -2 * held], tokens[-2 * held : -held], tokens[-held:]
        activation = activation_of(run.head)
        pi = None if activation is None else catnat.Parameterization(self.classes, activation, self.tree)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(run.seed)
            scores = self.classes - (pi is not None)
            model = Model(self.classes, scores, self.width, self.layers, self.length).to(device)
        optimiser = torch.optim.Adam(model.parameters(), run.rate)
        stream = torch.Generator().manual_seed(run.seed)
        within = torch.arange(self.length + 1, device=device)
        for step in range(self.steps):
            starts = torch.randint(len(train) - self.length, (self.batch, 1), generator=stream).to(device)
            ids = train[starts + within].long()
            for group in optimiser.param_groups:  # warm up, then fall to nothing
                group["lr"] = run.rate * min(1, (step + 1) / 100) * (1 - step / self.steps)
            optimiser.zero_grad()
            loss = _loss(model(ids[:, :-1]), ids[:, 1:], pi)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            progress(f"{self.name}, {run.head}", step + 1, self.steps)
        return Outcome(self._judge(model, validation, pi), {"test": self._judge(model, test, pi)}, {})

    @torch.no_grad()
    def _judge(self, model: Model, tokens: Tensor, pi: catnat.Parameterization | None) -> float:
        count = min(len(tokens), self.judged) // (self.length + 1)
        rows = tokens[: count * (self.length + 1)].view(count, self.length + 1).long()
        losses = [_loss(model(some[:, :-1]), some[:, 1:], pi) * len(some) for some in rows.split(self.batch)]
        return float(torch.stack(losses).sum() / len(rows))


def _loss(scores: Tensor, target: Tensor, pi: catnat.Parameterization | None) -> Tensor:
    rows, ids = scores.flatten(0, 1), target.flatten()
    return functional.cross_entropy(rows, ids) if pi is None else ct.cross_entropy(rows, ids, pi)
