"""The demo at toy size: searched, judged on fresh seeds, resumed, and told without hope."""

from pathlib import Path

import pytest

from catnat_lab.demo import page, study
from catnat_lab.demo.tasks import Digits, Game

TOY: dict[str, Digits | Game] = {"digits": Digits(steps=4, every=2, seeds=2), "game": Game(steps=4, every=2, seeds=2)}


def test_a_toy_demo_runs_and_goes_on(tmp_path: Path) -> None:
    demo = study.Demo(tmp_path, tasks=TOY)
    demo.run(workers=1)
    assert len(demo.results) == 2 * sum(len(kind.rates) + 1 for kind in TOY.values()) and not demo.wanted()
    searched = {run.seed for run in demo.results if not run.is_final}
    assert searched.isdisjoint(run.seed for run in demo.results if run.is_final)
    text = page.write_page(demo, {"command": "catnat demo"}).read_text()
    assert all(sentence.split(".")[0] in text for sentence in demo.sentences()) and text.count("<svg") == 5
    lost = demo.runs("game", "catnat")[-1]
    (tmp_path / "runs" / f"{lost.name}.json").unlink()
    again = study.Demo(tmp_path, tasks=TOY)
    again.load()
    assert again.wanted() == [lost] and again.results == {r: v for r, v in demo.results.items() if r != lost}
    other = study.Demo(tmp_path, tasks={"game": Game(steps=6, every=2, seeds=2)})
    other.load()
    assert other.wanted() == other.search("game", "softmax") + other.search("game", "catnat")


@pytest.mark.parametrize(
    ("catnat", "softmax", "said"),
    [
        ([90.0, 92.0, 94.0], [60.0, 62.0, 64.0], "catnat is ahead (+30.0, 95% interval"),
        ([60.0, 62.0, 64.0], [90.0, 92.0, 94.0], "softmax is ahead (-30.0, 95% interval"),
        ([60.0, 90.0, 94.0], [55.0, 80.0, 99.0], "No difference seen (+3.3, 95% interval"),
    ],
)
def test_the_verdict_says_what_is_so(catnat: list[float], softmax: list[float], said: str, tmp_path: Path) -> None:
    demo = study.Demo(tmp_path, tasks={"game": Game(seeds=3)})

    for head, values in (("catnat", catnat), ("softmax", softmax)):
        for run in demo.search("game", head):
            demo.results[run] = {"curve": [(1, [0.0, run.rate])]}  # more is better: the larger rate is chosen
        final = demo.final("game", head)
        assert final and final.rate == max(demo.tasks["game"].rates)
        demo.results[final] = {"curve": [(1, values)]}
    assert said in demo.sentences()[0]
