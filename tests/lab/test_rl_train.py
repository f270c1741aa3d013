"""Runs: stopped anywhere they end as if they had not been, and what cannot go on says so in one line."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

from catnat_lab.checkpoint import HEADER, noted_stops, read
from catnat_lab.cli import main
from catnat_lab.errors import UserError
from catnat_lab.experiment import RunContext
from catnat_lab.rl import ppo
from catnat_lab.rl.ppo import CHECKPOINT, EPISODES, Learner, Settings, only_one, preset, read_episodes, train
from tests.thinned import thinned

CART = replace(preset("paper", "CartPole-v1"), envs=4, rollout=32, minibatches=2, epochs=2, anneal=True, steps=1024)
TAXI = replace(CART, game="Taxi-v4", head="softmax")
BREAKOUT = replace(preset("smoke", "Breakout"), envs=2, rollout=80, minibatches=2, epochs=1, steps=640)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of CART that was never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    assert train(CART, RunContext(folder)).finished
    return folder


def same(one: Path, other: Path) -> None:
    """Two runs that left the same behind, to the bit."""
    assert (one / EPISODES).read_bytes() == (other / EPISODES).read_bytes()
    ours, theirs = read(one / CHECKPOINT), read(other / CHECKPOINT)
    assert ours.run == theirs.run and ours.progress == theirs.progress
    for name, value in ours.tensors.items():
        assert torch.equal(value, theirs.tensors[name]), name


@pytest.mark.parametrize(("settings", "kills"), thinned([(CART, (3, 6)), (TAXI, (2,)), (BREAKOUT, (2,))]))
def test_a_killed_run_ends_as_if_it_had_not_been(
    settings: Settings, kills: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the middle of some updates, where every one before them is saved."""
    uninterrupted = train(settings, RunContext(tmp_path / "whole"))
    real, folder = Learner.learn, tmp_path / "killed"
    for kill in kills:
        with monkeypatch.context() as patch:

            def learn(learner: Learner, kill: int = kill) -> None:
                if learner.updates == kill:
                    raise KeyboardInterrupt
                real(learner)

            patch.setattr(ppo, "SAVED_EVERY", -1.0)
            patch.setattr(Learner, "learn", learn)
            with pytest.raises(KeyboardInterrupt):
                train(settings, RunContext(folder))
    torch.rand(3)  # whatever has happened to the streams since
    killed = train(settings, RunContext(folder))
    assert uninterrupted.finished and killed == uninterrupted and killed.episodes
    same(folder, tmp_path / "whole")
    assert train(settings, RunContext(folder)) == killed  # there is nothing left to do


def test_a_kill_while_a_checkpoint_is_written_loses_nothing(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.fsync, 0

    def fsync(file: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 8:  # the episodes come first: the fourth checkpoint is written, but not in its place
            (tmp_path / "checkpoint.99.partial").write_text("half a fi")
            raise KeyboardInterrupt
        real(file)

    with monkeypatch.context() as patch:
        patch.setattr(ppo, "SAVED_EVERY", -1.0)
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(KeyboardInterrupt):
            train(CART, RunContext(tmp_path))
    assert read(tmp_path / CHECKPOINT).progress["updates"] == 3
    assert train(CART, RunContext(tmp_path)).finished
    same(tmp_path, whole)
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.usefixtures("interruptible")
def test_time_and_ctrl_c_stop_a_run_which_goes_on(
    tmp_path: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each ends the run after its update; the run that goes on is the one that was never stopped."""
    told: list[str] = []
    first = train(CART, RunContext(tmp_path, ends=0.0))
    assert not first.finished and first.steps == CART.batch

    def stop(what: str, done: int, total: int) -> None:
        if done == 2 * CART.batch:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(CART, RunContext(tmp_path, progress=stop))
    assert "stopping after this update" in capsys.readouterr().err
    assert train(CART, RunContext(tmp_path, tell=told.append)).finished
    assert told == [f"going on from step {3 * CART.batch:,}"]
    same(tmp_path, whole)


@pytest.mark.usefixtures("interruptible")
def test_a_second_signal_stops_at_once() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), noted_stops() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"game": "Acrobot-v1"}, "is of another run: game was CartPole-v1, now Acrobot-v1; give another --output"),
        ({"seed": 2, "rate": 0.5}, "seed was 1, now 2; rate was 0.001, now 0.5"),
        ({"gae_lambda": 0.9}, "gae_lambda was 0.95, now 0.9"),
    ],
)
def test_another_runs_checkpoint_is_refused(whole: Path, change: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        train(replace(CART, **change), RunContext(whole))  # type: ignore[arg-type]


def test_a_run_of_an_older_version_goes_on(tmp_path: Path, whole: Path) -> None:
    """Two of its settings had other names."""
    train(CART, RunContext(tmp_path, ends=0.0))
    with safe_open(tmp_path / CHECKPOINT, "pt") as file:
        text, tensors = file.metadata()[HEADER], {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    older = text.replace("max_grad_norm", "gradient").replace("gae_lambda", "trace")
    assert older != text
    save_file(tensors, tmp_path / CHECKPOINT, {HEADER: older})
    assert train(CART, RunContext(tmp_path)).finished
    same(tmp_path, whole)


def test_a_run_whose_numbers_end_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Learner.learn

    def learn(learner: Learner) -> None:
        real(learner)
        if learner.updates == 3:
            learner.measured.fill_(torch.nan)

    monkeypatch.setattr(Learner, "learn", learn)
    found = train(CART, RunContext(tmp_path))
    assert found.diverged and found.finished and found.steps == 4 * CART.batch and np.isnan(found.score)


def test_half_a_list_of_episodes_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / EPISODES).write_text("step,score,length\n8,1.5,4\n16,2")
    with pytest.raises(UserError, match=r"episodes\.csv is no list of episodes"):
        read_episodes(tmp_path / EPISODES, 100)


def test_one_process_trains_a_run(tmp_path: Path, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with only_one(tmp_path), pytest.raises(UserError, match="another process trains the run in"):
        train(CART, RunContext(tmp_path))
    with only_one(whole):
        assert main(["status", str(whole)]) == 0
    assert "running: a process trains it" in capsys.readouterr().out


def test_the_command_trains_shows_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The smoke run on the real Breakout, and what it leaves behind."""
    out = str(tmp_path / "run")
    assert main(["rl", "--game", "Breakout", "--preset", "smoke", "--device", "cpu", "--output", out]) == 0
    assert "Breakout by catnat, seed 1: 64 steps" in capsys.readouterr().out
    assert {CHECKPOINT, EPISODES, "provenance.json"} <= {path.name for path in Path(out).iterdir()}
    assert list((Path(out) / "tensorboard").iterdir())
    assert main(["rl-watch", out, "--steps", "20"]) == 0
    assert "after 20 steps" in capsys.readouterr().out
    assert (Path(out) / "play.gif").read_bytes()[:6] == b"GIF89a"
    for arguments, message in (
        (["rl", "--game", "Breakot"], "near it"),
        (["rl", "--game", "Breakout", "--preset", "smoke", "--head", "softmax", "--output", out], "of another run"),
        (["rl", "--envs", "0"], "envs must be at least 1; got 0"),
        (["rl", "--minutes", "-1", "--game", "CartPole-v1", "--output", out], "minutes must be at least 0; got -1"),
        (["rl-watch", str(tmp_path / "none")], "there is no checkpoint in"),
        (["report", str(tmp_path / "none")], "none"),
        (["status", str(tmp_path)], "is no folder of a study"),
    ):
        assert main([*arguments, *(["--device", "cpu"] if "rl" in arguments else [])]) == 2
        told = capsys.readouterr().err.strip()
        assert message in told and told.startswith("error: ") and "\n" not in told


def test_a_run_on_vectors_is_reported_and_shown(
    whole: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CartPole's reward is 1 a step, so a score is the length of its episode; and a picture is what gymnasium draws."""
    episodes = read_episodes(whole / EPISODES, CART.steps)
    score = f"{np.mean([episode.length for episode in episodes[-100:]]):.1f}"
    assert main(["report", str(whole)]) == 0
    told = capsys.readouterr().out
    assert f"Score {score}, of the last 100 of {len(episodes)} episodes in 1,024 steps" in told
    assert "Over training (steps): " in told and "Learning curves" in (whole / "report.html").read_text()
    curve = (whole / "curves.csv").read_text().splitlines()
    assert curve[0] == "game,head,rank,seed,step,score" and curve[1].startswith("CartPole-v1,catnat,0,1,")
    assert main(["status", str(whole)]) == 0
    told = capsys.readouterr().out
    assert f"checkpoint: 1,024 of 1,024 steps, {len(episodes)} episodes, score {score}" in told
    assert "running: nothing; all that was asked for is done" in told
    pytest.importorskip("pygame")
    assert main(["rl-watch", str(whole), "--steps", "5"]) == 0
    assert "picture: " in capsys.readouterr().out
    with Image.open(whole / "play.gif") as picture:
        assert picture.size == (600, 400) and picture.n_frames > 1
    monkeypatch.setitem(sys.modules, "pygame", None)  # as if it were not installed
    assert main(["rl-watch", str(whole), "--steps", "5"]) == 0
    assert "no picture: gymnasium draws by pygame, which the extra watch has" in capsys.readouterr().out


def test_a_run_keeps_where_it_was_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "provenance.json"
    command = ["rl", "--game", "CartPole-v1", "--preset", "smoke", "--device", "cpu", "--output", str(tmp_path)]
    assert main([*command, "--minutes", "1e-9"]) == 0
    first = json.loads(path.read_text())
    assert "continued with" not in first
    assert main(["status", str(tmp_path)]) == 0 and f"to continue: {first['command']}" in capsys.readouterr().out
    path.write_text(json.dumps(first | {"commit": "another"}))
    assert main(command) == 0
    again = json.loads(path.read_text())
    assert again["commit"] == "another" and again["continued with"] == f"commit {first['commit']}"
    assert main(command) == 0 and json.loads(path.read_text()) == again  # nothing was left to do
    assert main(["report", str(tmp_path)]) == 0 and json.loads(path.read_text()) == again
    path.write_text('{"commit": "ano')
    capsys.readouterr()
    assert main(["report", str(tmp_path)]) == 2
    told = capsys.readouterr().err.strip()
    assert "provenance.json is broken" in told and "\n" not in told


@pytest.mark.slow
def test_softmax_learns_as_stable_baselines3_does(tmp_path: Path) -> None:
    """Equal settings on CartPole, stopped while still learning, where a wrong constant would show; 5 seeds each."""
    sb3 = pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.env_util import make_vec_env

    settings = replace(preset("paper", "CartPole-v1"), head="softmax", steps=20 * 2048)
    ours = [train(replace(settings, seed=seed), RunContext(tmp_path / f"{seed}")).score for seed in range(1, 6)]
    theirs = []
    for seed in range(1, 6):
        other = sb3.PPO(
            "MlpPolicy",
            make_vec_env("CartPole-v1", settings.envs, seed=seed),
            learning_rate=settings.rate,
            n_steps=settings.rollout,
            batch_size=settings.batch // settings.minibatches,
            n_epochs=settings.epochs,
            gamma=settings.discount,
            gae_lambda=settings.gae_lambda,
            clip_range=settings.clip,
            ent_coef=settings.entropy,
            vf_coef=settings.value / 2,  # of the squared error, ours of half of it
            max_grad_norm=settings.max_grad_norm,
            seed=seed,
            device="cpu",
        ).learn(settings.steps)
        theirs.append(float(np.mean([episode["r"] for episode in other.ep_info_buffer])))
    spread = np.hypot(np.std(ours, ddof=1), np.std(theirs, ddof=1)) / 5**0.5
    assert abs(np.mean(ours) - np.mean(theirs)) < 3 * spread + 5, (ours, theirs)
