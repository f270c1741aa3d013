"""The study of tails: jobs, the ledger, the rule, and every task trained for a moment."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

import catnat
from catnat_lab.cli import main
from catnat_lab.errors import UserError
from catnat_lab.heads import activation_of, head, tail_head
from catnat_lab.tails import page, presets, study
from catnat_lab.tails.classifiers import Classifier
from catnat_lab.tails.jobs import (
    FAMILY,
    FIRST_SEARCH_SEED,
    SOFTMAX,
    Job,
    Ledger,
    Progress,
    Result,
    Task,
    final_jobs,
    search_jobs,
)
from catnat_lab.tails.verdict import (
    best_rate,
    candidates,
    chosen_rates,
    findings,
    lost_runs,
    rate_factor,
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

    def train(self, jobs: Sequence[Job], device: torch.device, progress: Progress) -> list[Result]:
        """Better by the head's depth; the seed adds a little."""
        found = []
        for job in jobs:
            value = math.log10(job.rate / 0.01) ** 2 - self.depths[self.heads.index(job.head)] + 0.01 * (job.seed % 7)
            found.append(Result(value, value if self.lower_is_better else -value, {}))
        return found if self.lower_is_better else [Result(-each.validation, each.test, {}) for each in found]


def trained(task: Task, folder: Path, minutes: float = 1.0) -> tuple[bool, Ledger]:
    ledger = Ledger(folder, [task])
    done = study.run([task], ledger, CPU, minutes, lambda *_: None, lambda _: None)
    ledger.lock.release()
    return done, ledger


# -- names, jobs and the ledger --------------------------------------------------------------------------------------


def test_names_of_members_mean_what_they_say() -> None:
    assert activation_of("catnat-tail0.02") == catnat.Natural(tail=0.02)
    assert activation_of("catnat-tail0.05-gain2") == catnat.Natural(math.pi, tail=0.05)
    assert activation_of(PAPER) == activation_of("catnat-natural")
    scores = torch.linspace(-4, 4, 18).view(6, 3)
    sigmoid = head("catnat-sigmoid", 4).log_probs(scores)
    torch.testing.assert_close(head(SIGMOID, 4).log_probs(scores), sigmoid)
    assert all(isinstance(activation_of(name), catnat.Natural) for name in FAMILY) and len(set(FAMILY)) == 14
    for name in ("catnat-tail0.7", "catnat-tail0.05-gain0", "catnat-tail1e", "catnat-tails"):
        with pytest.raises(UserError, match="head"):
            head(name, 4)


def test_search_and_final_seeds_never_meet() -> None:
    task = Valley(name="valley")
    search, final = search_jobs(task), final_jobs(task, dict.fromkeys(task.heads, 0.01))
    assert len(search) == 3 * 3 * 2 and len(final) == 3 * 3
    assert all(job.is_search and job.seed >= FIRST_SEARCH_SEED for job in search)
    assert not any(job.is_search for job in final)


def test_what_is_finished_is_not_trained_again_and_half_a_line_is_nothing(tmp_path: Path) -> None:
    task = Valley(name="valley")
    assert trained(task, tmp_path, minutes=0.0)[0] is False
    done, ledger = trained(task, tmp_path)
    assert done and len(ledger.results) == 18 + 9
    path = tmp_path / "runs.jsonl"
    whole = path.read_text()
    lines = whole.splitlines(keepends=True)
    path.write_text("".join(lines[:-1]) + lines[-1][:20])  # killed while it wrote
    done, again = trained(task, tmp_path)
    assert done and again.results == ledger.results and path.read_text() == whole


def test_another_process_or_other_settings_are_refused(tmp_path: Path) -> None:
    task, other = Valley(name="valley"), Valley(name="other")
    ledger = Ledger(tmp_path, [task])
    with pytest.raises(UserError, match="another process is at work"):
        Ledger(tmp_path, [task])
    ledger.lock.release()
    Ledger(tmp_path, [other]).lock.release()  # another task may join
    with pytest.raises(UserError, match="valley was begun with other settings: seeds was 3, now 4"):
        Ledger(tmp_path, [replace(task, seeds=4)])
    digits = classifier("Adam")
    assert digits.settings["digits"] == digits.digits.checksum and "labels" not in digits.settings


# -- the rule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lower", [True, False])
def test_the_best_rate_the_result_and_the_comparison(tmp_path: Path, lower: bool) -> None:
    task = Valley(name="graphs", lower_is_better=lower)
    results = trained(task, tmp_path)[1].results
    assert chosen_rates(task, results) == dict.fromkeys(task.heads, 0.01)
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
    assert best_rate(replace(task, lower_is_better=False), {0.1: 1.0, 0.2: 3.0, 0.3: 2.0}) == 0.2


def test_a_run_that_diverged_is_the_worst_rate_and_no_result(tmp_path: Path) -> None:
    task = Valley(name="valley")
    results = dict(trained(task, tmp_path)[1].results)
    lost = Job("valley", TAILED, 0.01, FIRST_SEARCH_SEED)
    results[lost] = Result(math.nan, math.nan, {})
    assert chosen_rates(task, results)[TAILED] != 0.01
    assert [each.head for each in findings(task, results)] == [SOFTMAX, SIGMOID]  # its final seeds were at another rate


def test_equal_members_are_ranked_by_robustness_then_by_tail() -> None:
    task = Valley(name="VAE", seeds=3)

    def results(widths: dict[str, float]) -> dict[Job, Result]:
        found = {}
        for name in task.heads:
            for job in search_jobs(replace(task, heads=(name,))):
                found[job] = Result(abs(math.log10(job.rate / 0.01)) / widths[name], 0.0, {})
            for seed in (1, 2, 3):
                found[Job("VAE", name, 0.01, seed)] = Result(0.0, float(seed), {})
        return found

    def first(widths: dict[str, float]) -> str:
        return candidates({"VAE": (task, findings(task, results(widths)))}, results(widths))[0].head

    assert first({SOFTMAX: 1, SIGMOID: 0.5, TAILED: 1.0}) == TAILED
    assert first({SOFTMAX: 1, SIGMOID: 1.0, TAILED: 1.0}) == SIGMOID


@pytest.mark.parametrize("lower", [True, False])
def test_a_rate_factor_is_how_far_a_curve_is_shifted(lower: bool) -> None:
    task = Valley(name="VAE", rates=tuple(10 ** (k / 4 - 4) for k in range(13)), lower_is_better=lower)
    best = {SOFTMAX: 0.01, SIGMOID: 0.02, TAILED: 0.005}
    sign = 1 if lower else -1
    found = {j: Result(sign * math.log(j.rate / best[j.head]) ** 2, 0.0, {}) for j in search_jobs(task)}
    assert rate_factor(task, SOFTMAX, found) == pytest.approx(1)
    assert rate_factor(task, SIGMOID, found) == pytest.approx(2, rel=0.05)  # between tried rates a curve is a line
    assert rate_factor(task, TAILED, found) == pytest.approx(0.5, rel=0.05)
    never = found | {job: Result(sign * 1e3, 0.0, {}) for job in found if job.head == TAILED}
    assert rate_factor(task, TAILED, never) == math.inf


def test_a_member_that_loses_runs_that_softmax_keeps_is_no_default() -> None:
    tasks = [Valley(name=name, seeds=3) for name in ("graphs", "classifier")]
    found = {}
    for task in tasks:
        found |= {job: Result(2.0, 2.0, {}) for job in search_jobs(task)}
        for job in final_jobs(task, dict.fromkeys(task.heads, task.rates[0])):
            found[job] = Result(2.0, job.seed - 10.0 * (job.head == TAILED), {})  # TAILED ends lower

    def default() -> str:
        return safest(candidates({task.name: (task, findings(task, found)) for task in tasks}, found))[0].head

    assert default() == TAILED
    last = Job("classifier", TAILED, tasks[1].rates[-1], 1000)
    for wrong in (90.0, math.nan):
        found[last] = Result(wrong, wrong, {})
        assert lost_runs(tasks[1], TAILED, found) == 1
        assert default() == SIGMOID
    found[last._replace(head=SOFTMAX)] = Result(90.0, 90.0, {})  # softmax loses it too
    assert lost_runs(tasks[1], TAILED, found) == 0
    assert default() == TAILED
    last = Job("classifier", TAILED, tasks[1].rates[0], 1)
    kept = found[last]
    found[last] = Result(90.0, 90.0, {})  # a final run
    assert default() == SIGMOID
    found[last] = kept
    found[last._replace(task="graphs")] = Result(math.nan, math.nan, {})  # a result that is missing is no good one
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
    jobs = [Job(task.name, name, rate, seed) for name in (TAILED, SOFTMAX, SIGMOID) for seed in (2, 1)]
    together = task.train(jobs, CPU, lambda *_: None)
    assert all(result.test < 30 for result in together)  # a guess is wrong in 90
    alone = [task.train([job], CPU, lambda *_: None)[0] for job in jobs[:3]]
    for one, other in zip(alone, together, strict=False):
        assert one.test == pytest.approx(other.test, abs=2.0)  # sums are taken in another order


def test_one_step_of_a_classifier_is_pytorchs() -> None:
    for optimiser, rule in (("Adam", torch.optim.Adam), ("SGD", torch.optim.SGD)):
        task = replace(classifier(optimiser, "convnet"), epochs=1, batch=440)
        from catnat_lab.tails.classifiers import _Stack, network_of

        stack = _Stack(task, [Job(task.name, SOFTMAX, 0.05, 3)], CPU)
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
        def train(self, jobs: Sequence[Job], device: torch.device, progress: Progress) -> list[Result]:
            clock[0] += 40  # seconds
            return super().train(jobs, device, progress)

    done, ledger = trained(Slow(name="slow"), tmp_path, minutes=1.5)  # after two stacks 10 seconds are left
    assert not done and len(ledger.results) == 2 * Slow(name="slow").at_once


def test_the_command_trains_resumes_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["tails", "--preset", "smoke", "--tasks", "graphs", "--output", str(tmp_path), "--device", "cpu"]
    assert main([*arguments, "--minutes", "0"]) == 0
    assert "Not finished yet" in capsys.readouterr().out
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "First by the rule" in printed and printed.strip() == (tmp_path / "tails.md").read_text().strip()
    lines = (tmp_path / "runs.jsonl").read_text()
    assert {json.loads(line)["task"] for line in lines.splitlines()} == {
        f"graphs, theta* = {t}" for t in (0.1, 0.5, 0.9)
    }
    assert main(arguments) == 0 and (tmp_path / "runs.jsonl").read_text() == lines
    (part,) = json.loads((tmp_path / "provenance.json").read_text())  # two of the three have trained nothing
    assert part["runs"] == len(lines.splitlines()) and "commit" in part
    assert (tmp_path / "tails.svg").read_text().startswith("<?xml") and (tmp_path / "tails.csv").exists()
    capsys.readouterr()
    # another task's slice still reports this one's
    assert main(["tails", "--tasks", "policy", "--minutes", "0", "--output", str(tmp_path), "--device", "cpu"]) == 0
    assert "theta* = 0.9" in (told := capsys.readouterr().out) and "theta-MAE" in told and "Not finished yet" in told
    assert main(["tails", "--tasks", "graph", "--output", str(tmp_path / "no")]) == 2
    assert "tasks must be of graphs, vae" in capsys.readouterr().err
    assert main(["tails", "--tasks", "classifier", "--output", str(tmp_path / "no")]) == 2
    assert "give --digits FOLDER" in capsys.readouterr().err


@pytest.mark.slow
def test_every_task_trains_for_a_moment(tmp_path: Path) -> None:
    """All but MNIST's, whose images are not here."""
    for task in presets.tasks_of(("graphs", "policy", "language"), "smoke", None, tmp_path / "corpus.npz"):
        few = replace(task, heads=(SOFTMAX, TAILED), rates=task.rates[:1], search_seeds=1)
        done, ledger = trained(few, tmp_path / task.name.replace(" ", "-"))
        assert done
        found = findings(few, ledger.results)
        assert [each.head for each in found] == [SOFTMAX, TAILED], task.name
        page.figure({task.name: (few, found)})
