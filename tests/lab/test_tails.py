"""The study of tails: jobs, the study, the rule, and every task trained for a moment."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

import catnat
from catnat_lab.cli import main
from catnat_lab.errors import UserError
from catnat_lab.executors import Here, begin, conduct
from catnat_lab.experiment import Finished, Outcome, Place, Results, TimeIsUp
from catnat_lab.heads import activation_of, head, tail_head
from catnat_lab.studies import Study
from catnat_lab.tails import presets, report, study
from catnat_lab.tails.classifiers import Classifier
from catnat_lab.tails.tasks import FAMILY, SOFTMAX, Progress, Run, Task
from catnat_lab.tails.verdict import (
    best_rate,
    candidates,
    findings,
    lost_runs,
    rate_factor,
    rate_means,
    robustness,
    safest,
)
from catnat_lab.vae.digits import Digits

CPU = torch.device("cpu")
SIGMOID, TAILED, PAPER = tail_head(0.5), tail_head(0.05), tail_head(0.0)


@dataclass(frozen=True, kw_only=True)
class Valley(Task):
    """A task whose result is known: a parabola in the logarithm of the rate, its depth by head."""

    measure: str = "depth"
    tolerance: float = 0.25
    rates: tuple[float, ...] = (0.001, 0.01, 0.1)
    heads: tuple[str, ...] = (SOFTMAX, SIGMOID, TAILED)
    search_seeds: int = 2
    seeds: int = 3
    at_once: int = 4
    depths: tuple[float, ...] = (0.0, 0.5, 1.0)

    def train(self, runs: Sequence[Run], device: torch.device, progress: Progress) -> list[Outcome]:
        """Better by the head's depth; the seed adds a little."""
        found = []
        for run in runs:
            value = math.log10(run.rate / 0.01) ** 2 - self.depths[self.heads.index(run.head)] + 0.01 * (run.seed % 7)
            found.append(Outcome(value, {"test": self.sign * value}, {}))
        return found


def conducted(tasks: Sequence[Task], folder: Path, minutes: float = 60.0) -> tuple[bool, Results]:
    experiment, ends = study.Tails(tasks), study.time.monotonic() + 60 * minutes
    with Study(folder / "study.db", conduct=True) as held:
        begin(experiment, held)
        try:
            conduct(experiment, held, Here(Place(folder, ends=ends)), 512)
        except TimeIsUp:
            return False, report.load(held)
        return True, report.load(held)


def trained(task: Task, folder: Path, minutes: float = 60.0) -> tuple[bool, Results]:
    return conducted([task], folder, minutes)


def results_of(*tasks: Task, search: Callable[[Run], float], final: Callable[[str, int], float]) -> Results:
    """Of runs whose results are known: the final ones are at the second rate, and valued as well as can be."""
    trials: dict[tuple[str, ...], list[Finished]] = {}
    for task in tasks:
        for name in task.heads:
            runs = [Run(name, rate, 1000 + i) for rate in task.rates for i in range(task.search_seeds)]
            found = [(run, "search", task.sign * search(run), 0.0) for run in runs]
            found += [(Run(name, task.rates[1], s), "final", 0.0, final(name, s)) for s in range(1, task.seeds + 1)]
            trials[task.name, name] = [
                Finished(value, {"test": test}, {}, {"stage": stage, "rate": run.rate, "seed": run.seed})
                for run, stage, value, test in found
            ]
    return Results({}, trials, {})


def put(results: Results, task: str, run: Run, value: float, test: float | None = None) -> None:
    """Another outcome of a run."""
    trials = results.trials[task, run.head]
    (i,) = [i for i, t in enumerate(trials) if (t.config["rate"], t.config["seed"]) == (run.rate, run.seed)]
    trials[i] = replace(trials[i], value=value, metrics={"test": value if test is None else test})


# -- names, jobs and the study ---------------------------------------------------------------------------------------


def test_names_of_members_mean_what_they_say() -> None:
    assert activation_of("catnat-tail0.02") == catnat.Natural(tail=0.02)
    assert activation_of("catnat-tail0.05-gain2") == catnat.Natural(amplitude=math.pi, tail=0.05)
    assert activation_of(PAPER) == activation_of("catnat-paper")
    scores = torch.linspace(-4, 4, 18).view(6, 3)
    sigmoid = head("catnat-sigmoid", 4).log_probs(scores)
    torch.testing.assert_close(head(SIGMOID, 4).log_probs(scores), sigmoid)
    assert all(isinstance(activation_of(name), catnat.Natural) for name in FAMILY) and len(set(FAMILY)) == 14
    for name in ("catnat-tail0.7", "catnat-tail0.05-gain0", "catnat-tail1e", "catnat-tails"):
        with pytest.raises(UserError, match="head"):
            head(name, 4)


def test_search_and_final_seeds_never_meet(tmp_path: Path) -> None:
    task = Valley(name="valley")
    _, results = trained(task, tmp_path)
    search, final = ([t for p in results.trials for t in results.stage(p, stage)] for stage in ("search", "final"))
    assert len(search) == 3 * 3 * 2 and len(final) == 3 * 3
    assert all(trial.config["seed"] >= study.FIRST_SEARCH_SEED for trial in search)
    assert {trial.config["seed"] for trial in final} == {1, 2, 3}


def test_what_is_finished_is_not_trained_again(tmp_path: Path) -> None:
    task = Valley(name="valley")
    assert trained(task, tmp_path, minutes=0.0)[0] is False
    done, results = trained(task, tmp_path)
    assert done and results.finished() == 18 + 9
    done, again = trained(task, tmp_path, minutes=0.0)  # there is nothing that would take time
    assert done and again == results


def test_other_settings_are_refused_and_another_task_may_join(tmp_path: Path) -> None:
    task, other = Valley(name="valley"), Valley(name="other")
    trained(task, tmp_path)
    assert trained(other, tmp_path)[1].finished() == 2 * (18 + 9)
    with pytest.raises(UserError, match=r"valley was begun with other settings; .*: seeds was 3, now 4"):
        trained(replace(task, seeds=4), tmp_path)
    digits = classifier("Adam")
    assert digits.settings["digits"] == digits.digits.checksum and "labels" not in digits.settings


# -- the rule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lower", [True, False])
def test_the_best_rate_the_result_and_the_comparison(tmp_path: Path, lower: bool) -> None:
    task = Valley(name="graphs", lower_is_better=lower)
    _, results = trained(task, tmp_path)
    assert all(best_rate(rate_means(task, head, results)) == 0.01 for head in task.heads)
    softmax, sigmoid, tailed = findings(task, results)
    sign = -1 if lower else 1
    assert sigmoid.against.difference == pytest.approx(sign * 0.5) and tailed.against.difference == pytest.approx(
        sign * 1.0
    )
    gap = tailed.against
    assert gap.low < gap.difference < gap.high and gap.p < 0.001 and softmax.against.p == 1.0
    assert not tailed.at_edge and tailed.values == tuple(
        pytest.approx(sign * (1.0 - 0.01 * seed)) for seed in (1, 2, 3)
    )
    assert [each.head for each in candidates({"graphs": (task, findings(task, results))}, results)] == [TAILED, SIGMOID]


def test_robustness_is_the_share_of_a_tenfold_range() -> None:
    task = Valley(name="valley", tolerance=1.0)
    assert robustness(task, {0.001: 0.1, 0.01: 0.0, 0.1: 0.1}) == 1.0  # the range lies inside of what was tried
    assert robustness(task, {0.001: 9.0, 0.01: 0.0, 0.1: math.inf}) == pytest.approx(1 / 9, abs=0.01)
    assert robustness(task, {0.001: 4.0, 0.01: 0.0, 0.1: 2.0}) == pytest.approx(0.25 + 0.5, abs=0.01)
    assert robustness(task, {0.001: 9.0, 0.01: 9.0, 0.1: 0.0}) == pytest.approx(1 / 9, abs=0.01)  # nothing beyond


def test_a_run_that_diverged_is_the_worst_rate_and_no_result(tmp_path: Path) -> None:
    task = Valley(name="valley")
    _, results = trained(task, tmp_path)
    put(results, "valley", Run(TAILED, 0.01, study.FIRST_SEARCH_SEED), math.inf)
    assert best_rate(rate_means(task, TAILED, results)) != 0.01
    assert [each.head for each in findings(task, results)] == [SOFTMAX, SIGMOID]  # its final seeds were at another rate


def test_equal_members_are_ranked_by_robustness_then_by_tail() -> None:
    task = Valley(name="VAE", seeds=3)

    def first(widths: dict[str, float]) -> str:
        results = results_of(
            task,
            search=lambda run: abs(math.log10(run.rate / 0.01)) / widths[run.head],
            final=lambda head, seed: float(seed),
        )
        return candidates({"VAE": (task, findings(task, results))}, results)[0].head

    assert first({SOFTMAX: 1, SIGMOID: 0.5, TAILED: 1.0}) == TAILED
    assert first({SOFTMAX: 1, SIGMOID: 1.0, TAILED: 1.0}) == SIGMOID


@pytest.mark.parametrize("lower", [True, False])
def test_a_rate_factor_is_how_far_a_curve_is_shifted(lower: bool) -> None:
    task = Valley(name="VAE", rates=tuple(10 ** (k / 4 - 4) for k in range(13)), lower_is_better=lower)
    best = {SOFTMAX: 0.01, SIGMOID: 0.02, TAILED: 0.005}

    def results(best: dict[str, float], lost: float = 0.0) -> Results:
        def search(run: Run) -> float:
            return task.sign * (math.log(run.rate / best[run.head]) ** 2 + lost * (run.head == TAILED))

        return results_of(task, search=search, final=lambda head, seed: 0.0)

    found = results(best)
    assert rate_factor(task, SOFTMAX, found) == pytest.approx(1)
    assert rate_factor(task, SIGMOID, found) == pytest.approx(2, rel=0.05)  # between tried rates a curve is a line
    assert rate_factor(task, TAILED, found) == pytest.approx(0.5, rel=0.05)
    assert rate_factor(task, TAILED, results(best, lost=1e3)) == math.inf


def test_a_member_that_loses_runs_that_softmax_keeps_is_no_default() -> None:
    tasks = [Valley(name=name, seeds=3) for name in ("graphs", "classifier")]
    found = results_of(
        *tasks,
        search=lambda run: 2.0 - 0.1 * (run.rate == 0.01),
        final=lambda head, seed: seed - 10.0 * (head == TAILED),  # TAILED ends lower
    )

    def default() -> str:
        return safest(candidates({task.name: (task, findings(task, found)) for task in tasks}, found))[0].head

    def lost() -> int:
        softmax, own = (lost_runs(tasks[1], name, found, "search") for name in (SOFTMAX, TAILED))
        return len(own - softmax)

    assert default() == TAILED
    last = Run(TAILED, tasks[1].rates[-1], 1000)
    for wrong in (90.0, math.inf):
        put(found, "classifier", last, wrong)
        assert lost() == 1
        assert default() == SIGMOID
    put(found, "classifier", last._replace(head=SOFTMAX), 90.0)  # softmax loses it too
    assert lost() == 0
    assert default() == TAILED
    last = Run(TAILED, 0.01, 1)
    put(found, "classifier", last, 90.0)  # a final run
    assert default() == SIGMOID
    put(found, "classifier", last, 0.0, -9.0)
    assert default() == TAILED
    put(found, "graphs", last, math.inf, math.nan)  # a result that is missing is no good one
    assert default() == SIGMOID


# -- the tasks -------------------------------------------------------------------------------------------------------


def blobs(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images with one bright band, by whose place they can be told."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(10, (count,), generator=generator)
    images = torch.randint(0, 60, (count, 28, 28), generator=generator)
    for i, k in enumerate(classes):
        images[i, 2 * k + 2 : 2 * k + 6] += 150
    return images.view(count, 784).to(torch.uint8), classes


def classifier(optimiser: str, kind: str = "MLP") -> Classifier:
    (train, y), (test, test_y) = blobs(480, 0), blobs(100, 1)
    task = Classifier.of(Digits(train, test, "blobs"), (y, test_y), kind, optimiser)
    return replace(task, epochs=6, batch=40)


@pytest.mark.parametrize(("optimiser", "rate"), [("Adam", 0.003), pytest.param("SGD", 0.1, marks=pytest.mark.slow)])
def test_a_stack_of_classifiers_learns_and_is_what_each_is_alone(optimiser: str, rate: float) -> None:
    task = classifier(optimiser)
    jobs = [Run(name, rate, seed) for name in (TAILED, SOFTMAX, SIGMOID) for seed in (2, 1)]
    together = task.train(jobs, CPU, lambda *_: None)
    assert all(result.metrics["test"] < 30 for result in together)  # a guess is wrong in 90
    alone = [task.train([job], CPU, lambda *_: None)[0] for job in jobs[:3]]
    for one, other in zip(alone, together, strict=False):
        assert one.metrics["test"] == pytest.approx(other.metrics["test"], abs=2.0)  # sums are taken in another order


def test_one_step_of_a_classifier_is_pytorchs() -> None:
    for optimiser, rule in (("Adam", torch.optim.Adam), ("SGD", torch.optim.SGD)):
        task = replace(classifier(optimiser, "convnet"), epochs=1, batch=440)
        from catnat_lab.tails.classifiers import _Stack, network_of

        stack = _Stack(task, [Run(SOFTMAX, 0.05, 3)], CPU)
        torch.manual_seed(3)
        network = network_of("convnet")
        torch.testing.assert_close(torch.nn.utils.parameters_to_vector(network.parameters()), stack.parameters[0])
        stack.train(lambda *_: None)
        x, y = task.digits.train[:440].float() / 255, task.labels[0][:440]  # one batch holds them all, in any order
        optimizer = rule(network.parameters(), 0.05)
        torch.nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
        theirs = torch.nn.utils.parameters_to_vector(network.parameters())
        torch.testing.assert_close(stack.parameters[0], theirs, rtol=1e-3, atol=2e-4)


def test_a_stack_that_would_not_end_in_time_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(study.time, "monotonic", lambda: clock[0])

    class Slow(Valley):
        def train(self, runs: Sequence[Run], device: torch.device, progress: Progress) -> list[Outcome]:
            clock[0] += 40  # seconds
            return super().train(runs, device, progress)

    done, results = trained(Slow(name="slow"), tmp_path, minutes=1.5)  # after two stacks 10 seconds are left
    assert not done and results.finished() == 2 * Slow(name="slow").at_once


@pytest.mark.slow
def test_the_command_trains_resumes_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["tails", "--preset", "smoke", "--tasks", "graphs", "--output", str(tmp_path), "--device", "cpu"]
    assert main([*arguments, "--minutes", "0"]) == 0
    assert "Not finished yet" in capsys.readouterr().out
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    text = (tmp_path / "tails.md").read_text()
    assert "First by the rule" in printed and printed.startswith(text)
    with Study(tmp_path / "study.db") as held:
        results = report.load(held)
    assert set(results.settings) == {f"graphs, theta* = {t}" for t in (0.1, 0.5, 0.9)}
    assert main(["report", str(tmp_path)]) == 0 and (tmp_path / "tails.md").read_text() == text
    assert main(arguments) == 0 and (tmp_path / "tails.md").read_text() == text
    facts = json.loads((tmp_path / "provenance.json").read_text())
    assert facts["command"].startswith("catnat") and "commit" in facts and "seconds" in facts
    assert (tmp_path / "tails.svg").read_text().startswith("<?xml") and (tmp_path / "tails.csv").exists()
    capsys.readouterr()
    # another task's slice still reports this one's
    assert main(["tails", "--tasks", "policy", "--minutes", "0", "--output", str(tmp_path), "--device", "cpu"]) == 0
    assert "theta* = 0.9" in (told := capsys.readouterr().out) and "theta-MAE" in told and "Not finished yet" in told
    assert main(["tails", "--tasks", "graph", "--output", str(tmp_path / "no")]) == 2
    assert "tasks must be of graphs, vae" in capsys.readouterr().err
    for none_or_twice in ([], ["graphs", "graphs"]):
        assert main(["tails", "--tasks", *none_or_twice, "--output", str(tmp_path / "no")]) == 2
        assert "tasks must hold at least one value, each once; got" in capsys.readouterr().err
    assert main(["tails", "--tasks", "classifier", "--output", str(tmp_path / "no")]) == 2
    assert "give --digits FOLDER" in capsys.readouterr().err


@pytest.mark.slow
def test_every_task_trains_for_a_moment(tmp_path: Path) -> None:
    """All but MNIST's, whose images are not here."""
    for task in presets.tasks_of(("graphs", "policy", "language"), "smoke", None, tmp_path / "corpus.npz"):
        few = replace(task, heads=(SOFTMAX, TAILED), rates=task.rates[:1], search_seeds=1)
        done, results = trained(few, tmp_path / task.name.replace(" ", "-"))
        assert done
        found = findings(few, results)
        assert [each.head for each in found] == [SOFTMAX, TAILED], task.name
        report.figure({task.name: (few, found)})
