"""Ctrl-C at a good moment: a loop saves what it has before it ends."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    asked = False


@contextmanager
def noted_stops() -> Iterator[Stop]:
    """Within it the first Ctrl-C or SIGTERM is only noted; the second one ends the program at once."""
    stop = Stop()
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # a worker: who conducts decides
    if ignored or threading.current_thread() is not threading.main_thread():  # signals come to the main thread alone
        yield stop
        return

    def note(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True
        print("\nstopping after this update, with a checkpoint; once more stops at once", file=sys.stderr, flush=True)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
