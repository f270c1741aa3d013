"""Where jobs are trained, and the loop that conducts a study: ask what is left, have it trained, keep what came."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from catnat_lab.errors import UserError
from catnat_lab.experiment import Experiment, Job, Outcome, Place, TimeIsUp, missing, settled
from catnat_lab.studies import Study

TRIES = 3  # of a batch, before its jobs count as failed

Trained = tuple[Job, Outcome | str]  # or why it failed


class Executor(Protocol):
    """Trains batches of jobs."""

    def run(self, experiment: Experiment, batches: Sequence[list[Job]]) -> Iterator[Trained]:
        """All of them; outcomes as they come. A batch is tried anew, and at last its jobs are told with the reason."""


@dataclass
class Here:
    """In this process, one batch after the other."""

    place: Place

    def run(self, experiment: Experiment, batches: Sequence[list[Job]]) -> Iterator[Trained]:
        """All batches."""
        for batch in batches:
            yield from _tried(experiment, batch, self.place)


def _tried(experiment: Experiment, batch: Sequence[Job], place: Place) -> Iterator[Trained]:
    left = dict.fromkeys(batch)
    for attempt in range(1, TRIES + 1):
        try:
            for job, outcome in experiment.train(list(left), place):
                left.pop(job)
                yield job, outcome
            if left:
                raise RuntimeError(f"train ended without an outcome for {next(iter(left))}")
            return
        except (UserError, TimeIsUp, OSError):  # to try again would not help
            raise
        except Exception as problem:
            place.tell(f"attempt {attempt} of {TRIES} failed: {type(problem).__name__}: {problem}")
            reason = traceback.format_exc()
    for job in left:
        yield job, reason


def conduct(
    experiment: Experiment,
    study: Study,
    executor: Executor,
    batch: int,
    on_finished: Callable[[Job], None] = lambda job: None,
) -> int:
    """Train until nothing is left but what failed in this run; how many jobs were finished."""
    finished = 0
    while jobs := missing(study, experiment.left(study)):
        for job, outcome in executor.run(experiment, experiment.batches(jobs, batch)):
            if isinstance(outcome, str):
                study.fail(job, outcome)
            else:
                study.add(job, outcome)
                finished += 1
                on_finished(job)
    return finished


def begin(experiment: Experiment, study: Study) -> dict[str, Any]:
    """Settle whose study it is, and its settings, which may have grown; refuse another experiment's."""
    kind = study.settle_note("kind", experiment.kind)
    if kind != experiment.kind:
        raise UserError(f"{study.name} holds a study of {kind}, not of {experiment.kind}; give another --output")
    now = experiment.settings
    both = settled(experiment.unsaid | study.settle_note(experiment.note, now), now, experiment.growing)
    study.set_note(experiment.note, both)
    return both
