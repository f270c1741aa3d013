"""The study: every task's rates on its search seeds, then its final seeds; in slices of time, resumed where it was."""

import time
from collections.abc import Callable, Sequence

import torch

from catnat_lab.tails.jobs import Job, Ledger, Progress, Task, final_jobs, search_jobs
from catnat_lab.tails.verdict import chosen_rates


def left_to_do(task: Task, ledger: Ledger) -> list[Job]:
    """The search, and when that is done the final seeds."""
    search = ledger.missing(search_jobs(task))
    return search or ledger.missing(final_jobs(task, chosen_rates(task, ledger.results)))


def run(
    tasks: Sequence[Task],
    ledger: Ledger,
    device: torch.device,
    minutes: float,
    progress: Progress,
    tell: Callable[[str], None],
) -> bool:
    """Train what is missing in the time that is given; whether everything is done."""
    end = time.monotonic() + 60 * minutes
    for task in tasks:
        spent = 0.0  # by the task's last stack: the next one takes about as long
        while jobs := left_to_do(task, ledger):
            for first in range(0, len(jobs), task.at_once):
                some = jobs[first : first + task.at_once]
                started = time.monotonic()
                if started + spent >= end:
                    return False
                ledger.add(some, task.train(some, device, progress))
                spent = time.monotonic() - started
                tell(f"{task.name}: {len(some)} runs in {spent:.0f} s")
    return True
