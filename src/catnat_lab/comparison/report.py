"""The verdict on two or more heads, read from a study, in one sentence, one table and a page.

The results of two heads are compared as independent ones, by Welch's test, corrected by Holm over all heads and tasks.
They share seeds, but heads of other widths draw other numbers from them; and where a seed does make two runs alike,
Welch's test errs on the safe side. Where a repetition diverged or failed, heads are compared by ranks, it being last.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import StringIO
from itertools import combinations, product
from pathlib import Path
from statistics import stdev
from typing import Any

from rich.console import Console
from rich.table import Table as Columns
from rich.text import Text

from catnat_lab.comparison.study import NOTE, STOPPED, TEST, VALIDATION, Comparing, cell_of
from catnat_lab.experiment import Config, Finished, Results, key_of
from catnat_lab.files import write
from catnat_lab.report.page import PageFigure, Report, write_pages
from catnat_lab.report.study import by_panel, is_at_an_end, learning_curves, searches
from catnat_lab.report.table import BASELINE, Cell, Column, Judgement, Table, judge, verdict
from catnat_lab.search import NOT_SETTINGS, OWN
from catnat_lab.stats import Comparison
from catnat_lab.studies import Study

ORIGIN, LOOKS = "compare provenance", "compare looks"
FINISHED = "compare finished"  # the settings of the last look: a study that grows since has no verdict yet
SAME = 1e-6  # of their size: how far apart tests are that count as equal
RULE = (
    "A repetition searches with a seed of its own, on validation, and trains with a fresh seed at what it found best; "
    "its test counts. Heads are compared by Welch's test of these tests. If one diverged or failed, by ranks, with "
    "that run last (a permutation test). A verdict needs p < 0.05 after Holm's correction over all heads and "
    "tasks, and again after as many looks as the study had (Bonferroni). Intervals are 95% intervals of single "
    "differences."
)


@dataclass(frozen=True)
class Compared(Results):
    """All runs so far, and the verdict when the last one is in."""

    is_finished: bool = False
    failed: dict[tuple[str, str], list[Config]] = field(default_factory=dict)  # runs that raised
    looks: int = 1
    page: Path | None = None

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        return tuple(task.partition("=")[0] for task in self.settings["tasks"])

    @cached_property
    def places(self) -> list[tuple[str, str]]:
        return list(product(self.tasks, self.settings["heads"]))

    def tests(self, task: str, head: str) -> tuple[float, ...]:
        """Of every repetition. One that diverged, or came to nothing when all was done, is no number."""
        final = {run.config["seed"]: run for run in self.stage((task, head), "final")}
        found = {seed: run.metrics[TEST] if math.isfinite(run.value) else math.nan for seed, run in final.items()}
        missing = dict.fromkeys(range(1, 1 + self.settings["seeds"]), math.nan) if self.is_finished else {}
        return tuple((missing | found).values())

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
                is_comparison=True,
                unjudged=frozenset((TEST, head, task) for task, head in self.places if not self._can_judge(task, head)),
                looks=self.looks,
            )
        )

    def _can_judge(self, task: str, head: str) -> bool:
        """Not before all is done, nor where no test of either head differs from its others."""
        base = BASELINE if BASELINE in self.settings["heads"] else self.settings["heads"][0]
        return self.is_finished and not (self._is_constant(task, head) and self._is_constant(task, base))

    def _is_constant(self, task: str, head: str) -> bool:
        """Whether all tests are equal, but for what a GPU's order of adding does."""
        tests = self.tests(task, head)
        finite = list(filter(math.isfinite, tests))
        if len(finite) < len(tests):
            return not finite
        return len(tests) < 2 or max(tests) - min(tests) <= SAME * max(map(abs, tests))

    def _column(self, task: str) -> Column:
        """With two digits of the deviation."""
        finite = [list(filter(math.isfinite, self.tests(task, head))) for head in self.settings["heads"]]
        spread = max((stdev(values) for values in finite if len(values) > 1), default=0.0)
        digits = max(0, min(6, 1 - math.floor(math.log10(spread)))) if spread else 3
        return Column(task, task, digits, self.settings["lower_is_better"])

    @property
    def base(self) -> str:
        return self.judged.table.baseline

    @cached_property
    def differences(self) -> dict[tuple[str, str], Comparison]:
        """By task and head, the difference from the baseline; none before all is done, or where no value differs."""
        return {(task, head): found for (_, head, task), found in self.judged.against.items()}

    def verdict(self, task: str, head: str) -> str:
        return self.judged.standing(TEST, head, task)

    def needed(self, task: str, head: str) -> str:
        return self.judged.needed(TEST, head, task)

    # -- in words ------------------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return f"{self.sentence}\n\n{self.printed}"

    @cached_property
    def sentence(self) -> str:
        if not self.is_finished:
            text = f"Not finished: {self.finished()} runs are there. There is no verdict before the last one."
            return f"{text} {self._failures()}".rstrip()
        return f"{verdict(self.judged)} {self._caution()}".rstrip()

    def _failures(self) -> str:
        runs = [
            f"{len(configs)} of {self._named(*place)} (rate {_listed([config['rate'] for config in configs])})"
            for place, configs in self.failed.items()
            if configs
        ]
        return f"Runs that failed: {', '.join(runs)}." if runs else ""

    @cached_property
    def searched(self) -> list[Finished]:
        """The runs of all searches."""
        return [run for place in self.places for run in self.stage(place, *Comparing.searching)]

    @property
    def pruned(self) -> str:
        """How many runs were stopped, of a study that prunes."""
        if not self.settings.get("prune"):
            return ""
        stopped = sum(STOPPED in run.metrics for run in self.searched)
        return f"Pruning was on, and stopped {stopped} of {len(self.searched)} runs of the search."

    def _caution(self) -> str:
        """What no test knows."""
        told = [f"{self.provenance['changed']}."] if "changed" in self.provenance else []
        lost = {place: sum(not math.isfinite(value) for value in self.tests(*place)) for place in self.places}
        if runs := [f"{count} of {self._named(*place)}" for place, count in lost.items() if count]:
            told.append(f"Repetitions that diverged or failed, last in rank: {', '.join(runs)}.")
        told += [self._failures()] * bool(self._failures())
        if constant := [
            self._named(*place)
            for place in self.places
            if len(self.tests(*place)) > 1 and any(map(math.isfinite, self.tests(*place))) and self._is_constant(*place)
        ]:
            told.append(f"All tests are equal: {', '.join(constant)}. Does train use its seed?")
        for task in self.tasks:
            for one, other in combinations(self.settings["heads"], 2):
                if self._values(task, one) == self._values(task, other) != {}:
                    told.append(f"All runs are equal: {self._named(task, one)} and {other}. Does train use its head?")
        told += [self.pruned] * bool(self.pruned)
        searched = [run.metrics for run in self.searched if STOPPED not in run.metrics]
        if searched and all(metrics.get(VALIDATION) == metrics[TEST] for metrics in searched):
            told.append("Validation and test are equal: the rate was chosen by the test.")
        for (task, head), (count, of) in self.edges.items():
            who = f"{count} of {of} repetitions of {self._named(task, head)}"
            told.append(f"{who} chose a rate at an end of what they tried; a better one may lie beyond.")
        return " ".join(told)

    def _values(self, task: str, head: str) -> dict[str, str]:
        """Of every run."""
        return {
            key_of(run.config): f"{run.metrics.get(VALIDATION)} {run.metrics[TEST]}" for run in self.trials[task, head]
        }

    def _named(self, task: str, head: str) -> str:
        return f"{head} ({task})" if len(self.tasks) > 1 else head

    @cached_property
    def edges(self) -> dict[tuple[str, str], tuple[int, int]]:
        """How many repetitions chose the first or the last rate of those that they tried, of how many."""
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for place in [] if self.settings["others"] else self.places:
            tried: dict[int, set[float]] = {}
            for run in self.stage(place, *Comparing.searching):
                tried.setdefault(run.config["seed"] - OWN, set()).add(run.config["rate"])
            final = [(run.config["rate"], tried.get(run.config["seed"], set())) for run in self.stage(place, "final")]
            count = sum(is_at_an_end(rate, rates) for rate, rates in final)
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

    def numbers(self) -> Iterator[dict[str, Any]]:
        """Every difference from the baseline; none is given where runs diverged, and ranks are compared."""
        for (task, head), found in self.differences.items():
            numbers = {"difference": found.difference, "low": found.low, "high": found.high, "effect": found.effect}
            yield {
                "task": task,
                "head": head,
                "verdict": self.verdict(task, head),
                **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
                "p corrected": found.p,
                "repetitions": self.settings["seeds"],
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
        cells, heads = {task: (task,) for task in self.tasks}, self.settings["heads"]
        finals = by_panel(self, cells, heads, "final")
        told = "Validation of the final runs on their way: the mean, and one deviation around it."
        yield from learning_curves(finals, VALIDATION, told, title="Curves", focus=self.settings["lower_is_better"])
        whole = {place: [run for run in runs if STOPPED not in run.metrics] for place, runs in self.trials.items()}
        told = (
            "Validation against the rate: a point for every run of the searches, a line through their means, and "
            "at the bottom the rates that were chosen. Beyond the grid only those repetitions tried a rate that "
            "grew theirs."
        )
        tried = by_panel(replace(self, trials=whole), cells, heads, *Comparing.searching)
        yield from searches(tried, finals, VALIDATION, told)

    def runs(self) -> Iterator[dict[str, object]]:
        """Every run, as in values.csv."""
        for (task, head), runs in self.trials.items():
            for run in sorted(runs, key=lambda run: (run.config["stage"], run.config["seed"], key_of(run.config))):
                config = {name: run.config[name] for name in ("stage", "seed")}
                config |= {name: value for name, value in run.config.items() if name not in NOT_SETTINGS}
                first = {name: run.metrics[name] for name in (VALIDATION, TEST) if name in run.metrics}
                yield {"task": task, "head": head} | config | first | run.metrics


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
        is_finished=study.note(FINISHED) == settings,
        failed={place: [json.loads(key) for key in study.failed(cell_of(*place))] for place in places},
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
    known = {
        "verdict": results.sentence,
        "baseline": results.base,
        "looks": results.looks,
        "comparisons": list(results.numbers()),
        "table": list(results.rows()),
        "settings": settings,
        **results.provenance,
    }
    write(folder / "provenance.json", json.dumps(results.provenance, indent=2) + "\n")
    write(folder / "verdict.json", json.dumps(known, indent=2, ensure_ascii=False) + "\n")
    return write_pages(report, folder, {"values.csv": results.runs()})[0]


def write_report(results: Compared, folder: Path) -> tuple[Path, tuple[Table, ...]]:
    """As `catnat report` has it: the page, and what is printed."""
    page = write_page(results, folder)
    print(results)
    return page, ()
