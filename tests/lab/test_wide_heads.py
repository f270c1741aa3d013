"""The study of wide heads: its tokens, its heads, and the whole of it for a moment."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

import catnat
import catnat.torch as ct
from catnat_lab.cli import main
from catnat_lab.errors import UserError
from catnat_lab.studies import Study
from catnat_lab.wide_heads import report
from catnat_lab.wide_heads import train as study
from catnat_lab.wide_heads.corpus import WORD, Corpus, counts
from catnat_lab.wide_heads.heads import HEADS, TREES, Sampled, Topped, head_of, kept_nodes, log_uniform, refit

CPU = torch.device("cpu")
CLASSES, WIDTH = 100, 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("words")


def corpus_of(task: str, folder: Path) -> Corpus:
    plan = study.PRESETS["smoke"][task]
    return Corpus.load(folder / f"{task}.npz", task, plan.classes, plan.tokens)


def small_corpus() -> Corpus:
    """Without any text: frequencies that fall, and a clustered tree of any vectors."""
    rng = np.random.default_rng(0)
    tokens = np.minimum(rng.geometric(0.05, 5000) - 1, CLASSES - 1).astype(np.int32)
    return Corpus(tokens, catnat.Tree.cluster(rng.normal(size=(CLASSES, 4))).class_places)


# -- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [pytest.param("pieces", marks=pytest.mark.slow), "words"])
def test_ids_are_ranks_of_frequency_in_the_training_part(task: str, folder: Path) -> None:
    corpus, plan = corpus_of(task, folder), study.PRESETS["smoke"][task]
    numbers = counts(corpus.tokens, corpus.classes)
    assert (np.diff(numbers) <= 0).all() and numbers.sum() == 0.9 * plan.tokens == 0.9 * len(corpus.tokens)
    assert sorted(corpus.places) == list(range(plan.classes, 2 * plan.classes))  # all kinds are on the tree
    assert corpus.checksum == corpus_of(task, folder).checksum
    with pytest.raises(UserError, match="must hold tokens of 7 kinds; got 512"):
        Corpus.load(folder / f"{task}.npz", task, 7, plan.tokens)


@pytest.mark.parametrize(
    "broken", [lambda whole: whole[:-30], lambda whole: b"", lambda whole: whole[:99] + whole[100:]]
)
def test_a_broken_corpus_is_one_clear_line(broken: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "words.npz"
    np.savez_compressed(path, tokens=np.arange(500), places=np.arange(500))
    path.write_bytes(broken(path.read_bytes()))
    with pytest.raises(UserError, match=r"words\.npz is not a whole corpus \(.*\); delete it to have it made again"):
        Corpus.load(path, "words", 500, 500)


def test_words_are_whole() -> None:
    assert WORD.findall("def f_1(x):\n    return x != 2.5\n") == [
        "def", "f_1", "(", "x", ")", ":", "\n", "return", "x", "!", "=", "2", ".", "5", "\n"
    ]  # fmt: skip


# -- heads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HEADS)
def test_every_heads_probabilities_sum_to_one(name: str) -> None:
    torch.manual_seed(0)
    head = head_of(name, WIDTH, small_corpus()).eval()
    x = 3 * torch.randn(1, WIDTH)
    nats = torch.stack([head.loss(x, torch.tensor([k])) for k in range(CLASSES)]).detach()
    assert float(nats.double().neg().exp().sum()) == pytest.approx(1, abs=1e-5)
    rows, target = torch.randn(6, WIDTH), torch.tensor([0, 3, 4, 5, 50, 99])
    alone = [head.loss(rows[i : i + 1], target[i : i + 1]) for i in range(6)]
    torch.testing.assert_close(head.loss(rows, target), torch.stack(alone).mean())


@pytest.mark.parametrize("name", TREES)
def test_a_head_has_the_tree_of_its_name(name: str) -> None:
    corpus = small_corpus()
    numbers = np.maximum(counts(corpus.tokens, CLASSES), 1)
    wanted = {"ids": catnat.Tree.balanced(CLASSES), "huffman": catnat.Tree.huffman(numbers)}
    expected = wanted.get(name, catnat.Tree(corpus.places))
    assert head_of(f"sigmoid-{name}", WIDTH, corpus).parameterization.tree == expected


def test_a_sampled_softmax_of_all_classes_is_the_softmax() -> None:
    torch.manual_seed(0)
    head, x = Sampled(WIDTH, CLASSES, dtype=torch.float64), torch.randn(5, WIDTH, dtype=torch.float64)
    target = torch.tensor([0, 7, 7, 98, 99])
    twice = torch.arange(CLASSES).repeat(2)  # so each of them stands for half
    ours = head.nats(x, target, twice, torch.full((2 * CLASSES,), 2.0, dtype=torch.float64).log()).mean()
    theirs = functional.cross_entropy(head(x), target)
    torch.testing.assert_close(ours, theirs)
    for mine, wanted in zip(
        *(torch.autograd.grad(loss, list(head.parameters())) for loss in (ours, theirs)), strict=True
    ):
        torch.testing.assert_close(mine, wanted)


def test_the_sampled_sum_over_all_classes_has_no_bias() -> None:
    torch.manual_seed(0)
    drawn, log_expected = log_uniform(CLASSES, 1_000_000, CPU)
    # each class counts 1 in all, as in the whole sum; the rarest comes about 2,000 times
    weights = torch.zeros(CLASSES, dtype=torch.float64).index_add(0, drawn, log_expected.neg().exp().double())
    torch.testing.assert_close(weights, torch.ones_like(weights), rtol=0, atol=0.1)
    assert float(weights.mean()) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("frequent", [0, 5])
def test_a_topped_heads_clusters_have_the_probability_that_its_softmax_says(frequent: int) -> None:
    torch.manual_seed(0)
    head = Topped(WIDTH, small_corpus().tree("clustered"), catnat.Sigmoid(), frequent)
    optimiser = torch.optim.Adam(head.parameters(), 0.1)
    for _ in range(3):  # training moves no node above the clusters
        optimiser.zero_grad()
        head.loss(torch.randn(64, WIDTH), torch.randint(CLASSES, (64,))).backward()
        optimiser.step()
    assert all((values[: head.clusters - 1] == 0).all() for values in head.inner.linear.parameters())
    assert all((values[head.clusters - 1 :] != 0).any() for values in head.inner.linear.parameters())
    x = torch.randn(1, WIDTH)
    probs = torch.stack([-head.loss(x, torch.tensor([k])) for k in range(CLASSES)]).exp()
    found = torch.cat((probs[:frequent], torch.zeros(head.clusters).index_add(0, head.groups, probs[frequent:])))
    torch.testing.assert_close(found, head.top(x).softmax(-1)[0])


def test_without_frequent_classes_a_topped_head_has_the_tree_it_is_given() -> None:
    tree = small_corpus().tree("clustered")
    assert Topped(WIDTH, tree, catnat.Sigmoid(), 0).inner.parameterization.tree == tree


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_a_refit_that_keeps_all_nodes_changes_nothing_of_training(side: float) -> None:
    """A line of classes has one tree, and its mirror image; Adam must go on as if nothing had been."""
    line = torch.linspace(-1, 1, 64)[torch.randperm(64, generator=torch.Generator().manual_seed(0)), None]
    batches = [(torch.randn(32, WIDTH), torch.randint(64, (32,))) for _ in range(6)]
    losses = []
    for is_refitted in (False, True):
        torch.manual_seed(0)
        head = ct.CatnatLinear(WIDTH, catnat.Parameterization(64, tree=catnat.Tree.cluster(side * line.numpy())))
        optimiser = torch.optim.Adam(head.parameters(), 0.1)
        losses.append([])
        for step, (x, target) in enumerate(batches):
            optimiser.zero_grad()
            loss = head.loss(x, target)
            loss.backward()
            optimiser.step()
            losses[-1].append(loss.item())
            if is_refitted and step == 2:
                old = head.parameterization.tree
                refit(head, line, optimiser)
                assert (kept_nodes(old, head.parameterization.tree)[1] != 0).all()
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_node_is_kept_where_one_parts_the_same_classes_on_whichever_side() -> None:
    old, new = catnat.Tree.from_nested([[0, 1], [2, 3]]), catnat.Tree.from_nested([[3, 2], [0, 1]])
    rows, signs = kept_nodes(old, new)
    assert (rows.tolist(), signs.tolist()) == ([0, 2, 1], [-1, -1, 1])
    crossed = kept_nodes(old, catnat.Tree.from_nested([[0, 2], [1, 3]]))
    assert not crossed[0].any() and not crossed[1].any()


def test_nodes_that_are_new_after_a_refit_start_anew() -> None:
    torch.manual_seed(0)
    head = ct.CatnatLinear(WIDTH, 64)
    optimiser = torch.optim.Adam(head.parameters(), 0.1)
    head.loss(torch.randn(500, WIDTH), torch.randint(64, (500,))).backward()
    optimiser.step()
    old = head.parameterization.tree
    refit(head, torch.randn(64, 40), optimiser)
    new = torch.from_numpy(kept_nodes(old, head.parameterization.tree)[1] == 0)
    assert new.any()
    weight = head.linear.weight
    for values in (weight, *(optimiser.state[weight][name] for name in ("exp_avg", "exp_avg_sq"))):
        assert (values[new] == 0).all()


# -- all of it -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_trains_resumes_and_reports(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heads = ["softmax", "sigmoid-refitted"]
    arguments = ["wide-heads", "--task", "words", "--output", str(folder), "--device", "cpu", "--heads", *heads]
    assert main([*arguments, "--minutes", "0"]) == 0
    told = capsys.readouterr()
    assert "Too few runs have ended well" in told.out and "nan" not in told.out and "the preset is smoke" in told.err
    assert main(arguments) == 0
    written = folder / "words" / "wide_heads.md"
    printed, text = capsys.readouterr().out, written.read_text()
    assert printed.startswith(text) and "The best catnat, sigmoid-refitted, is" in text.splitlines()[2]
    assert all(f"| {head} |" in text for head in heads) and "2 of 2 final seeds" in text and "So far" not in text
    with (folder / "words" / "curves.csv").open() as file:
        points = list(csv.DictReader(file))
    assert len(points) == len(heads) * 2 * study.POINTS
    seconds = [float(point["seconds"]) / int(point["step"]) for point in points[: study.POINTS]]
    assert seconds == pytest.approx([seconds[0]] * study.POINTS, rel=1e-4)
    assert (folder / "words" / "wide_heads.svg").read_text().startswith("<?xml")
    assert main(["report", str(folder / "words")]) == 0 and written.read_text() == text
    assert main([*arguments, "adaptive", "--minutes", "0"]) == 0
    assert "So far 2 of 3 heads can be compared. The best catnat" in written.read_text()
    capsys.readouterr()
    assert main([*arguments, "--steps", "13"]) == 2
    assert "steps was 12, now 13" in capsys.readouterr().err
    assert main([*arguments, "no"]) == 2 and "heads must be one of softmax" in capsys.readouterr().err


RESULTS = Path(__file__).parents[2] / "results" / "wide-heads"


def test_a_study_of_when_the_command_was_catnat_words_is_still_read(tmp_path: Path) -> None:
    for task in study.TASKS:
        shutil.copy(RESULTS / task / "study.db", tmp_path / "study.db")
        with Study(tmp_path / "study.db") as held:
            assert (
                held.note("kind") == study.WideHeads.kind
                and "catnat wide-heads" in held.note("words provenance")["command"]
            )
            lines = report.lines_of(report.load(held))
        published = (RESULTS / task / "wide_heads.md").read_text()
        assert report.verdict(lines) in published and len(lines) == published.count("| 0.003 |")
