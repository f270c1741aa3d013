"""Which tasks there are, at which length: `smoke` in some minutes on a CPU, `full` for a GPU."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from catnat_lab.errors import UserError, check, check_known
from catnat_lab.heads import tail_head
from catnat_lab.tails.classifiers import Classifier
from catnat_lab.tails.language import Corpus, Language
from catnat_lab.tails.paper import Autoencoder, Graphs, Policy, convolutional, dense
from catnat_lab.tails.tasks import PAPER, SIGMOID, SOFTMAX, Task
from catnat_lab.vae.digits import Digits, load_digits, load_labels

KINDS = ("graphs", "vae", "classifier", "policy", "language")
PRESETS = ("smoke", "full")
FEW_IMAGES = (600, 200)  # to train on and to test on
SMALL = (SOFTMAX, SIGMOID, tail_head(0.05), PAPER)


def tasks_of(kinds: Sequence[str], preset: str, digits: Path | None, corpus: Path) -> list[Task]:
    check("tasks", [kinds], lambda given: len(set(given)) == len(given) > 0, "hold at least one value, each once")
    check("tasks", kinds, KINDS.__contains__, f"be of {', '.join(KINDS)}")
    check_known("preset", [preset], PRESETS)
    few = FEW_IMAGES if preset == "smoke" else (None, None)
    make: dict[str, Callable[[], Sequence[Task]]] = {
        "graphs": lambda: [Graphs.of(theta) for theta in (0.1, 0.5, 0.9)],
        "vae": lambda: [network(_first(load_digits(digits), *few)) for network in (convolutional, dense)],
        "classifier": lambda: _classifiers(digits, *few),
        "policy": lambda: [Policy.of(game) for game in ("Breakout", "Asterix")],
        "language": lambda: [Language.of(Corpus.load(corpus, 512 if preset == "smoke" else 8192))],
    }
    tasks: list[Task] = [task for kind in kinds for task in make[kind]()]
    return [_short(task) for task in tasks] if preset == "smoke" else tasks


def _first(digits: Digits, train: int | None, test: int | None) -> Digits:
    return replace(digits, train=digits.train[:train], test=digits.test[:test])


def _classifiers(folder: Path | None, train: int | None, test: int | None) -> list[Task]:
    if folder is None:
        raise UserError("a classifier needs labels: give --digits FOLDER with MNIST's four IDX files")
    images, labels = _first(load_digits(folder), train, test), load_labels(folder)
    kept = labels[0][:train], labels[1][:test]
    return [Classifier.of(images, kept, k, o) for k in ("MLP", "convnet") for o in ("Adam", "SGD")]


def _short(task: Task) -> Task:
    few: dict[str, Any] = {"heads": SMALL, "rates": task.rates[::3], "search_seeds": 2, "seeds": 2}
    if isinstance(task, Graphs):
        few |= {"epochs": 2, "pairs": 200, "communities": 1, "graphs": 8, "choice_graphs": 8, "batch": 32}
    elif isinstance(task, Autoencoder):
        few |= {"plan": replace(task.plan, steps=5, batch=20, samples=1)}
    elif isinstance(task, Classifier):
        few |= {"epochs": 1, "batch": 100}
    elif isinstance(task, Policy):
        few |= {"steps": 1024, "envs": 8}
    elif isinstance(task, Language):
        few |= {"steps": 3, "batch": 4, "length": 16, "width": 16, "layers": 1, "judged": 1000}
    return replace(task, **few)
