"""A small language model of Python's own source code, with thousands of classes on a tree of clustered tokens."""

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
from catnat_lab import language
from catnat_lab.devices import tensor_cores
from catnat_lab.errors import UserError
from catnat_lab.experiment import Outcome
from catnat_lab.heads import activation_of, tail_head
from catnat_lab.tails.tasks import SOFTMAX, TAILS, Progress, Run, Task

LEAST = 100_000  # characters of a corpus


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
            np.savez_compressed(path, tokens=tokens, vectors=language.vectors(tokens, classes))
        with np.load(path) as file:
            found = cls(file["tokens"], file["vectors"])
        if len(found.vectors) != classes:
            raise UserError(f"{path} must hold tokens of {classes} kinds; got {len(found.vectors)}")
        return found

    @property
    def checksum(self) -> str:
        return language.checksum(self.tokens)


def _tokens(folder: Path, classes: int) -> np.ndarray:
    texts = [path.read_text(errors="replace") for path in language.python_files(folder)]
    if (size := sum(map(len, texts))) < LEAST:
        raise UserError(f"{folder} must hold at least {LEAST:,} characters of Python; got {size:,}")
    coder = language.pieces((line for text in texts for line in text.splitlines() if line), classes)
    return np.array([i for k in language.shuffled(len(texts)) for i in coder(texts[k])], np.int32)


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
        train, validation, test = (torch.from_numpy(part).to(device) for part in language.parts(self.corpus.tokens))
        activation = activation_of(run.head)
        pi = None if activation is None else catnat.Parameterization(self.classes, activation, self.tree)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(run.seed)
            trunk = language.Trunk(self.classes, self.width, self.layers, self.length)
            model = nn.Sequential(trunk, nn.Linear(self.width, self.classes - (pi is not None))).to(device)

        def loss(ids: Tensor, target: Tensor) -> Tensor:
            rows, wanted = model(ids).flatten(0, 1), target.flatten()
            return functional.cross_entropy(rows, wanted) if pi is None else ct.cross_entropy(rows, wanted, pi)

        how = language.Training(self.steps, self.batch, self.length, run.rate, run.seed)
        for step, _ in language.fit(list(model.parameters()), loss, train, how):
            progress(f"{self.name}, {run.head}", step, self.steps)
        found = [language.judge(loss, part, self.judged, self.batch, self.length) for part in (validation, test)]
        return Outcome(found[0], {"test": found[1]}, {})
