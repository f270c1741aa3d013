"""The verdict on two or more heads, read from a study, in one sentence, one table and a page.

The results of two heads are compared as independent ones, by Welch's test, corrected by Holm over all heads and tasks.
They share seeds, but heads of other widths draw other numbers from them; and where a seed does make two runs alike,
Welch's test errs on the safe side. Where a final run diverged, two heads are compared by ranks, that run last.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import StringIO
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.console import Console
from rich.table import Table as Columns
from rich.text import Text

from catnat_lab.comparison.study import NOT_SETTINGS, NOTE, SEARCH, TEST, VALIDATION, cell_of
from catnat_lab.executors import NOW
from catnat_lab.experiment import Results, key_of
from catnat_lab.files import write
from catnat_lab.report import figures
from catnat_lab.report.figures import Searched
from catnat_lab.report.page import PageFigure, Report, write_pages
from catnat_lab.report.table import Cell, Column, Judgement, Table, judge
from catnat_lab.stats import ALPHA, Comparison, needed
from catnat_lab.studies import Study

ORIGIN, LOOKS = "compare provenance", "compare looks"
AHEAD, BEHIND, UNSEEN = "ahead of", "behind", "no difference seen"
MOST = 1000  # repetitions that are named as what it takes
RULE = (
    "A repetition searches with a seed of its own, on validation, and trains with a fresh seed at what it found best; "
    "its test counts. Heads are compared by Welch's test of these tests. If one diverged, by ranks, with that run last "
    "(exact permutation test). A verdict needs p < 0.05 after Holm's correction over all heads and tasks, and again "
    "after as many looks as the study had (Bonferroni). Intervals are those of single differences."
)


@dataclass(frozen=True)
class Compared(Results):
    """All runs so far, and the verdict when the last one is in."""

    is_finished: bool = False
    failed: dict[tuple[str, str], int] = field(default_factory=dict)  # runs that raised
    looks: int = 1
    page: Path | None = None

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        return tuple(task.partition("=")[0] for task in self.settings["tasks"])

    @cached_property
    def places(self) -> list[tuple[str, str]]:
        return list(product(self.tasks, self.settings["heads"]))

    def tests(self, task: str, head: str) -> tuple[float, ...]:
        return self.final((task, head), TEST)

    @cached_property
    def judged(self) -> Judgement:
        better = "lower" if self.settings["lower_is_better"] else "higher"
        return judge(
            Table(
                title=f"The test of the final runs; {better} is better",
                measure=TEST,
                group_name="measure",
                groups=(TEST,),
                lines=tuple(self.settings["heads"]),
                columns=tuple(map(self._column, self.tasks)),
                cells={(TEST, head, task): Cell(self.tests(task, head)) for task, head in self.places},
                ranks_diverged=True,
                looks=self.looks,
            )
        )

    def _column(self, task: str) -> Column:
        """With two digits of the deviation."""
        finite = [list(filter(math.isfinite, self.tests(task, head))) for head in self.settings["heads"]]
        spread = max((stdev(values) for values in finite if len(values) > 1), default=0.0)
        digits = max(0, min(6, 1 - math.floor(math.log10(spread)))) if spread else 3
        return Column(task, task, digits, self.settings["lower_is_better"])

    @cached_property
    def base(self) -> str:
        return self.judged.table.baseline

    @cached_property
    def differences(self) -> dict[tuple[str, str], Comparison]:
        """By task and head, the difference from the baseline; none before all is done, or where no value differs."""
        every = {(task, head): found for (_, head, task), found in self.judged.against.items()}
        spread = {place: len({*self.tests(*place), *self.tests(place[0], self.base)}) > 2 for place in every}
        return {place: found for place, found in every.items() if self.is_finished and spread[place]}

    def verdict(self, task: str, head: str) -> str:
        found = self.differences[task, head]
        if found.p >= ALPHA:
            return UNSEEN
        return AHEAD if (found.difference < 0) == self.settings["lower_is_better"] else BEHIND

    # -- in words ------------------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return f"{self.sentence}\n\n{self.printed}"

    @cached_property
    def sentence(self) -> str:
        if not self.is_finished:
            return f"Not finished: {self.finished()} runs are there. There is no verdict before the last one."
        if not self.differences:
            return "No verdict: it takes two final runs of every head whose tests differ. Does train use its seed?"
        verdicts = {place: self.verdict(*place) for place in self.differences}
        told = []
        for what in (AHEAD, BEHIND, UNSEEN):
            names = [self._named(*place) for place, verdict in verdicts.items() if verdict == what]
            if what == UNSEEN and len(names) == len(verdicts) > 1:
                told.append(f"No difference from {self.base} is seen")
            elif what == UNSEEN and names:
                told.append(f"No difference seen between {_together(names, 'or')} and {self.base}")
            elif names:
                told.append(f"{_together(names, 'and')} {'are' if names[1:] else 'is'} {what} {self.base}")
        text = ". ".join(told)
        if len(verdicts) == 1:
            text += f": {self._numbers(*next(iter(verdicts)))}"
        return f"{text}. {self._caution()}".rstrip()

    def _numbers(self, task: str, head: str) -> str:
        found, column = self.differences[task, head], self.judged.table.columns[0]
        counts = dict.fromkeys(f"{len(self.tests(task, each))}" for each in (head, self.base))
        seeds = f"{' and '.join(counts)} repetitions each"
        if found.high == math.inf:
            return f"by ranks, p = {found.p:.2g}, {seeds}"
        ours, theirs = (column.printed(mean(self.tests(task, each))) for each in (head, self.base))
        gap, low, high = (f"{x:+.{column.digits}f}" for x in (found.difference, found.low, found.high))
        text = f"{TEST} {ours} against {theirs}, {gap} [95% {low} to {high}], p = {found.p:.2g}, {seeds}"
        more = f"; to see one of this size would take {self.needed(task, head)}"
        return text + (more if found.p >= ALPHA and found.difference else "")

    def _caution(self) -> str:
        """What no test knows."""
        told = []
        diverged = {place: self._diverged(*place) for place in self.places}
        for what, counts in (("Final runs that diverged", diverged), ("Runs that failed", self.failed)):
            if runs := [f"{count} of {self._named(*place)}" for place, count in counts.items() if count]:
                told.append(f"{what}: {', '.join(runs)}.")
        for (task, head), (count, of) in self.edges.items():
            who = f"{count} of {of} repetitions of {self._named(task, head)}"
            told.append(f"{who} chose a rate at an end of what they tried; a better one may lie beyond.")
        return " ".join(told)

    def _named(self, task: str, head: str) -> str:
        return f"{head} ({task})" if len(self.tasks) > 1 else head

    def needed(self, task: str, head: str) -> str:
        """How many repetitions of each head show a difference of the size seen in four of five studies."""
        effect = self.differences[task, head].effect
        count = needed(effect, most=MOST) if math.isfinite(effect) else MOST
        return f"{count}" if count < MOST else f"over {MOST}" if math.isfinite(effect) else ""

    def _diverged(self, task: str, head: str) -> int:
        return sum(not math.isfinite(value) for value in self.tests(task, head))

    @cached_property
    def edges(self) -> dict[tuple[str, str], tuple[int, int]]:
        """How many repetitions chose the first or the last rate of those that they tried, of how many."""
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for place in [] if self.settings["others"] else self.places:
            tried: dict[int, set[float]] = {}
            for run in self.stage(place, "search", "wider"):
                tried.setdefault(run.config["seed"] - SEARCH, set()).add(run.config["rate"])
            final = [(run.config["rate"], tried.get(run.config["seed"], set())) for run in self.stage(place, "final")]
            count = sum(len(rates) > 1 and rate in (min(rates), max(rates)) for rate, rates in final)
            found |= {place: (count, len(final))} if count else {}
        return found

    def chosen(self, task: str, head: str) -> dict[str, str]:
        """By setting, what the repetitions found best."""
        final = [run.config for run in self.stage((task, head), "final")]
        names = ("rate", *self.settings["others"])
        return {name: _listed([config[name] for config in final]) for name in names} if final else {}

    def rows(self) -> Iterator[dict[str, str]]:
        """The table: a line per task and head."""
        for task, head in self.places:
            column = self.judged.table.columns[self.tasks.index(task)]
            against, is_judged = self.judged.compared(TEST, head, column)[0], (task, head) in self.differences
            yield {
                "task": task,
                "head": head,
                **self.chosen(task, head),
                TEST: self.judged.shown(TEST, head, column).ours,
                f"minus {self.base}": against if is_judged else "",
                "verdict": self.verdict(task, head) if is_judged else "",
                "repetitions to see it": self.needed(task, head) if is_judged else "",
            }

    @property
    def printed(self) -> str:
        """The table as text."""
        rows, table, text = list(self.rows()), Columns(box=None, pad_edge=False), StringIO()
        names = list(dict.fromkeys(name for row in rows for name in row))
        for name in names:
            table.add_column(Text(name), no_wrap=True)
        for row in rows:
            table.add_row(*(Text(row.get(name, "")) for name in names))
        Console(file=text, width=400).print(table)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    # -- as a page -----------------------------------------------------------------------------------------------------

    def drawn(self) -> Iterator[PageFigure]:
        curves = []
        for task in self.tasks:
            runs = {head: self.stage((task, head), "final") for head in self.settings["heads"]}
            means = {head: curve for head, final in runs.items() if (curve := figures.curve_of(final, VALIDATION))}
            curves += [figures.CurvePanel(task, means)] if means else []
        if curves:
            told = "Validation of the final runs on their way: the mean, and one deviation around it."
            yield PageFigure(
                "Curves", told, figures.draw_curves(curves, VALIDATION, focus=self.settings["lower_is_better"])
            )
        searched: dict[str, dict[str, Searched]] = {}
        for task in self.tasks:
            found = {head: self._search(task, head) for head in self.settings["heads"]}
            searched |= {task: kept} if (kept := {head: each for head, each in found.items() if each.runs}) else {}
        if searched:
            told = (
                "Validation against the rate: a point for every run of the searches, a line through their means, and "
                "at the bottom the rates that were chosen."
            )
            yield PageFigure("The searches", told, figures.draw_searches(searched, VALIDATION))

    def _search(self, task: str, head: str) -> Searched:
        runs = self.stage((task, head), "search", "wider")
        chosen = [run.config["rate"] for run in self.stage((task, head), "final")]
        return Searched([(run.config["rate"], run.metrics[VALIDATION]) for run in runs], chosen)

    def runs(self) -> Iterator[dict[str, object]]:
        """Every run, as in values.csv."""
        for (task, head), runs in self.trials.items():
            for run in sorted(runs, key=lambda run: (run.config["stage"], run.config["seed"], key_of(run.config))):
                config = {name: run.config[name] for name in ("stage", "seed")}
                config |= {name: value for name, value in run.config.items() if name not in NOT_SETTINGS}
                yield {"task": task, "head": head} | config | run.metrics


def _together(names: Sequence[str], word: str) -> str:
    return f" {word} ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def _listed(values: Sequence[Any]) -> str:
    """A few values and how often each came; of many numbers the ends."""
    counts = Counter(values)
    if len(counts) > 3 and not any(isinstance(value, str) for value in values):
        return f"{min(values):.3g} to {max(values):.3g}"
    names = {value: f"{value:.3g}" if isinstance(value, float) else f"{value}" for value in counts}
    return ", ".join(
        f"{names[v]} ({n})" if counts.keys() - {v} else names[v] for v, n in sorted(counts.items(), key=str)
    )


def load(study: Study) -> Compared:
    settings = study.note(NOTE)
    tasks = [task.partition("=")[0] for task in settings["tasks"]]
    places = list(product(tasks, settings["heads"]))
    return Compared(
        settings,
        {place: study.finished(cell_of(*place)) for place in places},
        study.note(ORIGIN) or {},
        is_finished=(study.note(NOW) or {}).get("left") == 0,
        failed={place: len(study.failed(cell_of(*place))) for place in places},
        looks=len(study.note(LOOKS) or [0]),
    )


def write_page(results: Compared, folder: Path) -> Path:
    """The page, with every run as CSV and the verdict as JSON beside it."""
    settings = results.settings
    searched = ", ".join(["rate", *settings["others"]])
    remarks = [
        f"{task}, {head}: the repetitions chose the {name} {found}."
        for task, head in results.places
        for name, found in results.chosen(task, head).items()
    ]
    report = Report(
        title=f"{' and '.join(h for h in settings['heads'] if h != results.base)} beside {results.base}",
        summary=f"{RULE} Searched: {searched}. Repetitions: {settings['seeds']}. Runs finished: {results.finished()}.",
        provenance=results.provenance,
        tables=(results.judged.table,),
        remarks=tuple(remarks),
        figures=tuple(results.drawn()),
        said=results.sentence,
        rows=tuple(results.runs()),
    )
    known = {"verdict": results.sentence, "table": list(results.rows()), "settings": settings, **results.provenance}
    write(folder / "provenance.json", json.dumps(results.provenance, indent=2) + "\n")
    write(folder / "verdict.json", json.dumps(known, indent=2, ensure_ascii=False) + "\n")
    return write_pages(report, folder, {"values.csv": results.runs()})[0]


def write_report(results: Compared, folder: Path) -> tuple[Path, tuple[Table, ...]]:
    """As `catnat report` has it: the page, and what is printed."""
    page = write_page(results, folder)
    print(results)
    return page, ()
