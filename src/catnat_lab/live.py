"""What runs, its curve and the time left, on a terminal; in a log a line for every finished run."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 30  # of a curve on a terminal
FEWEST, SHARE = 4, 0.1  # of all runs, by which the time left is told


def curve(values: Sequence[float], low: float, high: float) -> str:
    """Values as bars between two bounds; what is no number is a gap."""
    if len(values) > WIDTH:
        values = [values[i * len(values) // WIDTH] for i in range(WIDTH)]
    places = [(value - low) / max(high - low, 1e-9) for value in values]
    return "".join(BARS[round(x * (len(BARS) - 1))] if 0 <= x <= 1 else " " for x in places)


@dataclass
class Watch:
    """Of a study: how many runs are done and how many there are, and what those under way have told."""

    total: int = 0
    done: int = 0
    new: int = 0  # finished since this began
    first: float = 0.0  # when the first of them was: what a process does once, it has done by then
    last: str = ""
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    console: Console = field(default_factory=lambda: Console(stderr=True))

    def __enter__(self) -> "Watch":
        self.live = Live(get_renderable=self.shown, console=self.console, transient=True, refresh_per_second=4)
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def tell(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def news(self, name: str, step: float, value: float) -> None:
        self.curves.setdefault(name, []).append((step, value))

    def finished(self, name: str, told: str, done: int, total: int) -> None:
        self.curves.pop(name, None)
        self.done, self.total, self.new = done, total, self.new + 1
        self.first = self.first or time.monotonic()
        self.last = f"{name}: {told} ({done} of {total}{self.left})"
        if not self.console.is_terminal:
            self.tell(self.last)

    @property
    def left(self) -> str:
        """Of the whole study, in minutes; nothing before there are runs enough to go by."""
        if self.new <= max(FEWEST, SHARE * self.total) or self.done >= self.total:
            return ""
        each = (time.monotonic() - self.first) / (self.new - 1)
        return f", {each * (self.total - self.done) / 60:.1f} minutes left"

    def shown(self) -> Group:
        table = Table(box=None, pad_edge=False, show_header=False)
        values = [value for told in self.curves.values() for _, value in told if abs(value) < float("inf")] or [0.0]
        for name, told in self.curves.items():
            drawn = curve([value for _, value in told], min(values), max(values))
            table.add_row(Text(name), f"step {told[-1][0]:g}", drawn, f"{told[-1][1]:.4g}")
        return Group(table, Text(f"{self.done} of {self.total} runs{self.left}"), Text(self.last))
