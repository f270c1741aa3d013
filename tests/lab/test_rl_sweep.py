"""The sweep: the paper's ranges, the best of a search over seeds, and a study that goes on within a run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from optuna.distributions import IntDistribution

from catnat_lab.checkpoint import read
from catnat_lab.cli import main
from catnat_lab.errors import UserError
from catnat_lab.executors import Here, begin, conduct
from catnat_lab.experiment import Finished, Job, Outcome, Results, RunContext, TimeIsUp
from catnat_lab.rl import ppo, report, search
from catnat_lab.rl.ppo import Episode, Learner, Result, preset
from catnat_lab.rl.search import SPACE, PolicySweep, SweepPlan, curve_of, settings_of
from catnat_lab.studies import Study

PLAN = SweepPlan(games=("CartPole-v1",), heads=("softmax", "catnat-paper"), steps=600, trials=3, best=2, seeds=2)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rollouts of seconds, not of minutes."""
    cheap = {"rollout": 32, "epochs": 1, "envs": 8}
    monkeypatch.setattr(search, "preset", lambda name, game: replace(preset(name, game), **cheap))
    for name, high in (("rollout", 64), ("epochs", 3)):
        monkeypatch.setitem(SPACE, name, IntDistribution(SPACE[name].low, high, step=SPACE[name].step))  # type: ignore[attr-defined]


def sweep(folder: Path, plan: SweepPlan = PLAN) -> dict[str, list[float]]:
    """Run it; the final scores by head, in the order of their seeds."""
    with Study(folder / "study.db", conduct=True) as study:
        plan = plan.grown(begin(PolicySweep(plan), study))
        conduct(PolicySweep(plan), study, Here(RunContext(folder)), 1)
        found: dict[str, list[float]] = {}
        for head in plan.heads:
            tried = study.finished(f"rl CartPole-v1 {head}", stage="tpe")
            assert len(tried) == plan.trials
            best = sorted(tried, key=lambda trial: trial.value)[: plan.best]
            final = study.finished(f"rl CartPole-v1 {head}", stage="final")
            for trial in sorted(final, key=lambda trial: (trial.config["rank"], trial.config["seed"])):
                chosen = best[trial.config["rank"]].config if plan.trials else {}
                assert all(trial.config[name] == chosen[name] for name in SPACE if plan.trials)
                found.setdefault(head, []).append(trial.metrics["score"])
        return found


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_the_best_of_the_search_are_trained_over_seeds_and_a_stopped_study_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sweep(tmp_path / "whole")
    assert {head: len(scores) for head, scores in whole.items()} == {"softmax": 4, "catnat-paper": 4}
    assert sweep(tmp_path / "whole") == whole  # nothing is trained again
    kept = sorted(path.name for path in (tmp_path / "whole" / "runs").iterdir())
    assert len(kept) == 2  # one a head, to be watched
    real, calls = Learner.learn, 0
    monkeypatch.setattr(ppo, "SAVED_EVERY", -1.0)

    def learn(learner: Learner) -> None:
        nonlocal calls
        calls += 1
        if calls in (2, 5, 11):
            raise KeyboardInterrupt
        real(learner)

    monkeypatch.setattr(Learner, "learn", learn)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            sweep(tmp_path / "stopped")
    assert sweep(tmp_path / "stopped") == whole


@pytest.mark.usefixtures("small")
def test_time_stops_it_within_a_run_and_it_may_grow_but_not_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = SweepPlan(games=("CartPole-v1",), heads=("softmax",), steps=600, trials=0, seeds=1)  # three updates
    late = iter((False, True))  # it is asked before a run and after each of its updates
    with monkeypatch.context() as patch, pytest.raises(TimeIsUp):
        patch.setattr(RunContext, "is_late", property(lambda context: next(late)))
        sweep(tmp_path, plan)
    (run,) = (tmp_path / "runs").iterdir()
    assert read(run / ppo.CHECKPOINT).progress["updates"] == 1
    first = sweep(tmp_path, plan)
    found = sweep(tmp_path, replace(plan, heads=("softmax", "sparsemax"), seeds=2))
    assert found["softmax"][:1] == first["softmax"] and len(found["softmax"]) == len(found["sparsemax"]) == 2
    with pytest.raises(UserError, match="steps was 600, now 700"):
        sweep(tmp_path, replace(plan, steps=700))


def test_the_search_is_over_the_papers_ranges() -> None:
    ends = {name: (space.low, space.high) for name, space in SPACE.items()}  # type: ignore[attr-defined]
    assert ends["rate"] == (5e-5, 1e-2) and ends["clip"] == (0.01, 0.9) and ends["max_grad_norm"] == (0.1, 10.0)
    assert ends["rollout"] == (32, 512) and ends["envs"] == (8, 16) and ends["entropy"] == (0.0, 1.0)
    lowest = {name: low for name, (low, _) in ends.items()} | {"seed": 3}
    assert settings_of(lowest, "Breakout", "softmax", 512).rollout == 32
    assert settings_of({"seed": 2}, "Breakout", "softmax", 512).rate == preset("paper", "Breakout").rate


def test_trials_of_an_older_version_are_not_run_again(tmp_path: Path) -> None:
    """Its searches have `gradient`; their best are trained with it, and the report says it by today's name."""
    plan = SweepPlan(games=("CartPole-v1",), heads=("softmax",), steps=600, trials=1, best=1, seeds=1)
    space = {name: space.low for name, space in SPACE.items()}  # type: ignore[attr-defined]
    older = {name.replace("max_grad_norm", "gradient"): value for name, value in space.items()}
    with Study(tmp_path / "study.db", conduct=True) as study:
        begin(PolicySweep(plan), study)
        outcome = Outcome(-9.0, {"score": 9.0, "episodes": 1.0}, {"curve": {"step": [600.0], "score": [9.0]}})
        study.add(Job("rl CartPole-v1 softmax", {"stage": "tpe", "seed": 0, **older}), outcome)
        (job,) = PolicySweep(plan).left(study)
        assert job.config == {"stage": "final", "rank": 0, "seed": 1, **space}
        study.add(Job(job.cell, {"stage": "final", "rank": 0, "seed": 1, **older}), outcome)
        assert PolicySweep(plan).left(study) == []
        rows = list(report.values_of(report.load(study)))
    assert [row["max_grad_norm"] for row in rows] == [0.1, 0.1]


def test_a_curve_is_of_means_over_parts_of_training() -> None:
    episodes = [Episode(10, 1.0, 5), Episode(20, 3.0, 5), Episode(990, 7.0, 5), Episode(1000, 9.0, 5)]
    curve = curve_of(Result(episodes, 1000, True))
    assert curve == {"step": [10.0, 20.0, 990.0, 1000.0], "score": [1.0, 3.0, 7.0, 9.0]}
    assert curve_of(Result(episodes, 100_000, True)) == {"step": [1000.0], "score": [5.0]}


@pytest.mark.usefixtures("small")
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--output", str(tmp_path / "study"), "--device", "cpu"]
    assert main(["rl-sweep", "--preset", "smoke", "--heads", "softmax", "--steps", "200", *out]) == 0
    assert "mean score of the last 100 episodes" in capsys.readouterr().out
    page = (tmp_path / "study" / "report.html").read_text()
    assert "Learning curves" in page and "the best of 2 trials" in page
    values, curves = ((tmp_path / "study" / name).read_text().splitlines() for name in ("values.csv", "curves.csv"))
    assert len(values) == 1 + 2 + 2 and curves[0] == "game,head,rank,seed,step,score"
    assert {line.split(",")[3] for line in curves[1:]} == {"1", "2"}
    for given, message in (
        (["--games", "Breakot"], "near it"),
        (["--heads", "sofmax"], "head must be one of"),
        (["--seeds", "0"], "seeds must be at least 1; got 0"),
        (["--minutes", "-1"], "minutes must be at least 0"),
    ):
        assert main(["rl-sweep", *given, "--output", str(tmp_path / "other"), "--device", "cpu"]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_the_report_says_how_probably_a_run_beats_softmax_in_each_game_and_over_games() -> None:
    scores = {("Breakout", "softmax"): (1, 3), ("Breakout", "catnat"): (2, 4), ("Asterix", "softmax"): (1, 2)}
    scores |= {("Asterix", "catnat"): (3, 4), ("Breakout", "catnat-sigmoid"): (1, 3), ("Asterix", "catnat-sigmoid"): ()}
    trials = {
        place: [Finished(-s, {"score": float(s)}, {}, {"stage": "final", "seed": s}) for s in some]
        for place, some in scores.items()
    }
    heads = ["softmax", "catnat", "catnat-sigmoid"]
    results = Results({"heads": heads, "games": ["Breakout", "Asterix"], "seeds": 2}, trials, {})
    told = list(report._by_ranks(results))
    likely = "a run scores higher than one of softmax with probability "
    assert [text.partition(likely)[2] for text in told] == ["0.75.", "1.00.", "0.50.", "0.88."]  # too few for intervals
    assert told[-1].startswith(f"catnat over Breakout, Asterix, each game counting alike: {likely}")
    ten = [float(i) for i in range(10)]
    assert re.fullmatch(likely + r"0.50 \[0.2\d, 0.7\d\]", report._improvement([(ten, ten)]))
