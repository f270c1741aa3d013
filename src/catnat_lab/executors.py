"""Where jobs are trained, and the loop that conducts a study: ask what is left, have it trained, keep what came.

A batch is tried three times, in whatever way it fails: by an exception, or with its process or its machine. Then its
jobs count as failed, with the reason, and the study goes on without them.
"""

import logging
import math
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from catnat_lab.errors import UserError
from catnat_lab.experiment import Experiment, Job, Outcome, RunContext, TimeIsUp, silent

if TYPE_CHECKING:  # a process that trains knows no database, and need not wait for its packages
    from catnat_lab.studies import Study

TRIES = 3
GRACE = 120.0  # seconds without a word after which a process is ended, once time is up
WORKER = "catnat worker"  # the name of a process that trains
UNGUARDED = 91  # how such a process ends that was about to conduct a study itself
GUARD = "processes run a script again from its top: put what begins a study under if __name__ == '__main__':"
NOW = "now"  # the note that says what is being trained
ENDS = (UserError, TimeIsUp, OSError)  # trying again is no use
Trained = tuple[Job, Outcome | str]  # or why it failed
Executor: TypeAlias = "Here | Processes | OnRay"  # each runs all batches, so many at a time, and tells as they come
Told = tuple[Job, Outcome] | str | Exception  # an outcome, why the rest has failed, or what ends the run


def conduct(
    experiment: Experiment, study: "Study", executor: Executor, batch: int, on_finished: Callable[[Job], None] = silent
) -> int:
    """Train until nothing is left but what failed in this run, at most so many jobs a batch; how many were finished."""
    finished, last = 0, ""
    with closing(executor):
        while jobs := experiment.left(study):
            workers = executor.workers
            size = min(batch, -(-len(jobs) // workers))
            known = sum(len(study.finished(cell)) for cell in study.cells())
            study.set_note(NOW, {"left": len(jobs), "finished": known, "workers": workers, "since": time.time()})
            batches = experiment.batches(jobs, size)
            at_once = f", {min(workers, len(batches))} at once" if workers > 1 else ""
            stages = ", ".join(sorted({str(job.config["stage"]) for job in jobs if "stage" in job.config}))
            which = f" ({stages})" if stages else ""
            executor.context.tell(f"jobs to train{which}: {len(jobs):,}, batches: {len(batches):,}{at_once}")
            for job, outcome in executor.run(experiment, batches):
                if isinstance(outcome, str):
                    if outcome != last:  # a whole batch fails for one reason
                        executor.context.tell(f"given up: {experiment.name_of(job)}\n{outcome.rstrip()}")
                    last = outcome
                    study.fail(job, outcome)
                else:
                    study.add(job, outcome)
                    finished += 1
                    on_finished(job)
        study.set_note(NOW, {"left": 0})
    return finished


def begin(experiment: Experiment, study: "Study") -> dict[str, Any]:
    """Settle whose study it is, and its settings, which may have grown; refuse another experiment's.

    Until a job is finished nothing depends on the settings, so a first try that went wrong binds nobody.
    """
    kind = study.settle_note("kind", experiment.kind)
    if kind != experiment.kind:
        raise UserError(f"{study.name} holds a study of {kind}, not of {experiment.kind}; give another --output")
    before = study.settle_note(experiment.note, experiment.settings)
    is_begun = any(study.finished(cell) for cell in study.cells())
    both = experiment.settled(before if is_begun else experiment.settings)
    study.set_note(experiment.note, both)
    return both


def executor_of(where: str, context: RunContext, gpus: float = 1.0) -> Executor:
    """Of here, processes:N, ray or ray:ADDRESS; on Ray a job takes one core and so many GPUs where it trains on one."""
    kind, _, rest = where.partition(":")
    if where == "here":
        return Here(context)
    if kind == "processes" and rest.isdecimal() and int(rest) > 0:
        return Processes(context, int(rest))
    if kind == "ray":
        if context.ends != math.inf:
            raise UserError("minutes goes with here and processes: the machines of a cluster have clocks of their own")
        if not (0 < gpus <= 1 or (gpus > 1 and gpus == int(gpus))):
            raise UserError(f"job_gpus must lie in (0, 1], or be a whole number; got {gpus:g}")
        return OnRay(context, rest or None, gpus if context.device.startswith("cuda") else 0.0)
    raise UserError(f"on must be here, processes:N, ray or ray:ADDRESS; got {where!r}")


class Unguarded(UserError): ...


def refuse_in_worker() -> None:
    """End a process that a study began, and that runs the script which began it: who conducts says why, once."""
    if multiprocessing.current_process().name == WORKER:
        sys.exit(UNGUARDED)


class _Batch:
    """What is left of a batch, and how often it was tried."""

    def __init__(self, experiment: Experiment, jobs: Sequence[Job]) -> None:
        self.left, self.tries, self.name_of = dict.fromkeys(jobs), 0, experiment.name_of

    def heard(self, told: Told, tell: Callable[[str], None] = silent) -> list[Trained]:
        """What follows: an outcome; all that is left, given up, when it has failed once too often; or the run's end."""
        if isinstance(told, Exception):
            raise told
        if not isinstance(told, str):
            del self.left[told[0]]
            return [told]
        self.tries += 1
        first, *others = self.left
        more = f" and {len(others)} more" if others else ""
        tell(f"failed, try {self.tries} of {TRIES}: {self.name_of(first)}{more}: {reason_of(told)}")
        given_up = list(self.left) if self.tries >= TRIES else []
        self.left = {} if given_up else self.left
        return [(job, told) for job in given_up]


def _train(experiment: Experiment, jobs: Sequence[Job], context: RunContext) -> Iterator[Told]:
    """Outcomes as they come; then, where some are missing, why."""
    left = set(jobs)
    try:
        for job, outcome in experiment.train(list(jobs), context):
            left.discard(job)
            yield job, outcome
        if left:
            raise RuntimeError(f"train ended without an outcome for {len(left)} of {len(jobs)} jobs")
    except ENDS as problem:
        yield problem
    except Exception:
        yield traceback.format_exc()


def reason_of(told: str) -> str:
    """The first line of what was raised, of a traceback; a text's own first line."""
    lines = told.strip().splitlines()
    frames = [place for place, line in enumerate(lines, 1) if line.startswith('  File "')]
    return next((line for line in lines[max(frames, default=0) :] if not line.startswith(" ")), lines[-1])


def _sent(told: Told) -> Told:
    """In a form that can be pickled: not every exception can."""
    kinds = (kind for kind in ENDS if isinstance(told, kind))
    return next((kind(str(told)) for kind in kinds), told)


# -- in this process -------------------------------------------------------------------------------------------------


class _Resting:
    """What nothing has to be ended of."""

    def close(self) -> None: ...


@dataclass
class Here(_Resting):
    """One batch after the other."""

    context: RunContext
    workers: int = 1

    def run(self, experiment: Experiment, batches: Sequence[list[Job]]) -> Iterator[Trained]:
        for number, jobs in enumerate(batches):
            batch = _Batch(experiment, jobs)
            context = replace(self.context, progress=_of_all(self.context.progress, number, len(batches)))
            while batch.left:
                for told in _train(experiment, list(batch.left), context):
                    yield from batch.heard(told, self.context.tell)


def _of_all(progress: Callable[[str, int, int], None], number: int, batches: int) -> Callable[[str, int, int], None]:
    """Tell a batch's steps as those of all batches, which are taken to be as long."""
    return lambda what, done, total: progress(what, number * total + done, batches * total)


# -- in processes of this machine ------------------------------------------------------------------------------------


@dataclass
class _News:
    """Of a run that is under way in another process."""

    told: tuple[str, float, float]


@dataclass
class Processes:
    """So many at a time. One that dies is replaced, and its batch goes on from its checkpoint."""

    context: RunContext
    workers: int
    started: dict[Connection, BaseProcess] = field(default_factory=dict, repr=False)

    def run(self, experiment: Experiment, batches: Sequence[list[Job]]) -> Iterator[Trained]:
        queue = deque(_Batch(experiment, jobs) for jobs in batches)
        busy: dict[Connection, _Batch] = {}
        started, is_whole = self.started, False
        late: TimeIsUp | None = None
        try:
            while queue or busy:
                while queue and len(busy) < self.workers:
                    free = [pipe for pipe in started if pipe not in busy]
                    idle = free[0] if free else self._start(experiment)
                    busy[idle] = queue.popleft()
                    try:
                        idle.send(list(busy[idle].left))
                    except OSError:
                        if free:  # it died while it waited; the death of a new one is heard below, and counts
                            queue.appendleft(busy.pop(idle))
                            started.pop(idle).join()
                ready = cast(list[Connection], wait(list(busy), GRACE if late else None))
                if not ready:
                    break
                for pipe in ready:
                    batch = busy[pipe]
                    try:
                        told: Told | _News | None = pipe.recv()
                    except (EOFError, OSError):  # it died
                        process = started.pop(pipe)
                        process.join()
                        told = f"the process ended with code {process.exitcode}"
                        if process.exitcode == UNGUARDED:
                            raise Unguarded(GUARD) from None
                    if isinstance(told, _News):
                        self.context.news(*told.told)
                        continue
                    if isinstance(told, tuple):
                        yield from batch.heard(told)
                        continue
                    del busy[pipe]
                    if isinstance(told, TimeIsUp):  # the others see to their own checkpoints
                        late = told
                        queue.clear()
                    elif told is not None:
                        yield from _waiting(busy) if isinstance(told, Exception) else ()
                        yield from batch.heard(told, self.context.tell)
                        queue += [batch] if batch.left and not late else []
            if late:
                raise late
            is_whole = True
        finally:
            if not is_whole:
                self.close()

    def close(self) -> None:
        """End the processes, which wait for another stage of the same experiment until then."""
        while self.started:
            pipe, process = self.started.popitem()
            process.terminate()
            process.join()
            pipe.close()

    def _start(self, experiment: Experiment) -> Connection:
        spawning = multiprocessing.get_context("spawn")
        ours, theirs = spawning.Pipe()
        threads = max(1, (os.cpu_count() or 1) // self.workers)
        context = RunContext(self.context.folder, self.context.device, self.context.ends)
        process = spawning.Process(target=_serve, args=(theirs, experiment, context, threads), name=WORKER, daemon=True)
        process.start()
        theirs.close()  # or its end would never be seen
        self.started[ours] = process
        return ours


def _waiting(busy: Mapping[Connection, _Batch]) -> Iterator[Trained]:
    """Outcomes that have come and were not read yet."""
    for pipe, batch in busy.items():
        with suppress(EOFError, OSError):  # its process has ended
            while pipe.poll():
                if isinstance(told := pipe.recv(), tuple):
                    yield from batch.heard(told)


def _serve(pipe: Connection, experiment: Experiment, context: RunContext, threads: int) -> None:
    """Train what comes through the pipe, and tell of it; None when it is done. Until nobody is at the other end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes: who conducts ends the others
    threading.Thread(target=_end_with_parent, daemon=True).start()
    context = replace(context, news=lambda *told: pipe.send(_News(told)))
    if "torch" in sys.modules:  # else the experiment does without it
        sys.modules["torch"].set_num_threads(threads)
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            told: Told | None = None
            for told in _train(experiment, pipe.recv(), context):
                try:
                    pipe.send(_sent(told))
                except (pickle.PicklingError, TypeError, AttributeError):  # an outcome that is no plain data
                    told = traceback.format_exc()
                    pipe.send(told)
                    break
            if isinstance(told, tuple):
                pipe.send(None)


def _end_with_parent() -> None:
    """However who conducts has ended: another one may begin, and must not meet us at the same checkpoints."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


# -- on a cluster ----------------------------------------------------------------------------------------------------


@dataclass
class OnRay(_Resting):
    """On a Ray cluster, whose workers and machines may come and go. All of them must see the folder of checkpoints."""

    context: RunContext
    address: str | None  # None: the cluster of this machine, or a new one
    gpus: float  # of a job, beside one core; a part of one lets several share it

    def __post_init__(self) -> None:
        try:
            import ray
        except ImportError:
            raise UserError("on ray needs the extra ray: pip install '.[ray]' in catnat's folder") from None
        self.ray = ray
        try:
            if not ray.is_initialized():
                quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
                ray.init(address=self.address, include_dashboard=False, **quiet)
        except Exception as problem:
            line = (str(problem).splitlines() or [type(problem).__name__])[0]
            raise UserError(f"on: there is no Ray cluster at {self.address or 'this machine'}: {line}") from None

    @property
    def workers(self) -> int:
        """As many as the cluster has room for now."""
        found = self.ray.cluster_resources()
        room = min(found.get("CPU", 0.0), found.get("GPU", 0.0) / self.gpus if self.gpus else math.inf)
        return max(1, int(room))

    def run(self, experiment: Experiment, batches: Sequence[list[Job]]) -> Iterator[Trained]:
        """All batches. Ray itself tries those anew whose worker or machine was lost."""
        ray = self.ray
        remote = ray.remote(num_cpus=1, num_gpus=self.gpus, max_retries=TRIES - 1)(_train_all)
        what, context = ray.put(experiment), replace(self.context, progress=silent, news=silent, tell=silent)
        queue = [_Batch(experiment, jobs) for jobs in batches]
        running = {remote.remote(what, list(batch.left), context): batch for batch in queue}
        while running:
            (ready,), _ = ray.wait(list(running), num_returns=1)
            batch = running.pop(ready)
            try:
                every = ray.get(ready)
            except ray.exceptions.RayError as lost:  # too often
                batch.tries = TRIES
                every = [f"{type(lost).__name__}: {lost}"]
            for told in every:
                yield from batch.heard(told)
            if batch.left:
                running[remote.remote(what, list(batch.left), context)] = batch


def _train_all(experiment: Experiment, jobs: Sequence[Job], context: RunContext) -> list[Told]:
    return [_sent(told) for told in _train(experiment, jobs, context)]
