"""The demo at toy size: searched, judged on fresh seeds, resumed, and told without hope."""

import sys
from pathlib import Path

import pytest

from catnat_lab.demo import page
from catnat_lab.demo.study import Demo, Found, run
from catnat_lab.demo.tasks import Digits, Game
from catnat_lab.errors import UserError
from catnat_lab.experiment import Finished, RunContext
from catnat_lab.studies import DATABASE, Study

TOY: dict[str, Digits | Game] = {"digits": Digits(steps=4, every=2, seeds=2), "game": Game(steps=4, every=2, seeds=2)}


@pytest.mark.slow
def test_a_toy_demo_runs_once_and_is_shown(tmp_path: Path) -> None:
    demo = Demo(tasks=TOY)
    found = run(demo, tmp_path, "here")
    assert sys.float_info.min / 4 > 0  # what makes the trainings fast is not left behind
    assert list(map(len, found.runs.values())) == [3] * 4
    for *searched, final in found.runs.values():
        assert [one.config["seed"] for one in searched] == [0, 0] and final.config["seed"] == 1
        assert final.config["rate"] == min(searched, key=lambda one: one.value).config["rate"]
    text = page.write_page(found, tmp_path, {"command": "catnat demo"}).read_text()
    assert all(sentence.split(".")[0] in text for sentence in found.sentences()) and text.count("<svg") == 5
    with Study(tmp_path / DATABASE) as study:
        assert not demo.left(study)
    with pytest.raises(UserError, match="begun with other settings"):
        run(Demo(tasks={"game": Game(steps=6, every=2, seeds=2)}), tmp_path, "here")


def test_more_is_better_in_the_game_and_less_in_the_bound() -> None:
    demo = Demo(tasks={name: type(kind)(steps=2, every=1, seeds=2) for name, kind in TOY.items()})
    for job in demo.stages(None).__next__()[::2]:
        ((_, outcome),) = demo.train([job], RunContext(Path()))
        mean = sum(outcome.record["curve"][-1][1]) / len(outcome.record["curve"][-1][1])
        assert outcome.value == (-mean if job.cell.startswith("game") else mean)


@pytest.mark.parametrize(
    ("catnat", "softmax", "said"),
    [
        ([90.0, 92.0, 94.0], [60.0, 62.0, 64.0], "catnat is ahead (+30.0, 95% interval"),
        ([60.0, 62.0, 64.0], [90.0, 92.0, 94.0], "softmax is ahead (-30.0, 95% interval"),
        ([60.0, 90.0, 94.0], [55.0, 80.0, 99.0], "No difference seen (+3.3, 95% interval"),
    ],
)
def test_the_verdict_says_what_is_so(catnat: list[float], softmax: list[float], said: str) -> None:
    runs = {
        ("game", head): [Finished(0.0, {}, {"curve": [[1, values]]}, {"stage": "final"})]
        for head, values in (("catnat", catnat), ("softmax", softmax))
    }
    assert said in Found(Demo(tasks={"game": Game(seeds=3)}), runs).sentences()[0]
