"""Progress of long work, on standard error."""

import sys
import time
from typing import TextIO


class Progress:
    """Prints what is done, the speed and the time left.

    On a terminal one line is rewritten; in a log a line is written every ten seconds. The first
    and last state are always shown.

    Args:
        what: the work, e.g. ``converting``.
        items, nbytes: how much there is in all.
        item: what is counted, e.g. ``parameters``.
    """

    def __init__(
        self,
        what: str,
        items: int,
        nbytes: int,
        *,
        item: str = "tensors",
        stream: TextIO | None = None,
        enabled: bool = True,
    ):
        self.what, self.items, self.nbytes, self.item = what, items, nbytes, item
        self.stream = sys.stderr if stream is None else stream
        self.enabled = enabled
        self.started = self.shown = time.monotonic()
        self.done_items = self.done_bytes = self.skipped = 0
        self._width = 0

    def skip(self, items: int, nbytes: int) -> None:
        """Count work that an earlier run did; it says nothing about the speed."""
        self.done_items += items
        self.done_bytes += nbytes
        self.skipped += nbytes

    def add(self, items: int, nbytes: int) -> None:
        """Count finished work and show it if it is time."""
        self.done_items += items
        self.done_bytes += nbytes
        interval = 0.2 if self._live else 10.0
        if time.monotonic() - self.shown >= interval:
            self._show()

    def finish(self) -> None:
        """Show the last state."""
        self._show()
        if self.enabled and self._live:
            self.stream.write("\n")

    @property
    def _live(self) -> bool:
        return self.stream.isatty()

    def _show(self) -> None:
        self.shown = time.monotonic()
        if not self.enabled:
            return
        line = self.line()
        if self._live:
            self.stream.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self.stream.write(line + "\n")
        self.stream.flush()

    def line(self) -> str:
        """The state as one line."""
        elapsed = max(time.monotonic() - self.started, 1e-6)
        speed = (self.done_bytes - self.skipped) / elapsed
        left = (self.nbytes - self.done_bytes) / speed if speed else float("inf")
        eta = "" if self.done_bytes >= self.nbytes else f", {_clock(left)} left"
        return (
            f"{self.what}: {self.done_items}/{self.items} {self.item}, "
            f"{self.done_bytes / 1e9:.2f}/{self.nbytes / 1e9:.2f} GB, {speed / 1e6:.0f} MB/s{eta}"
        )


def _clock(seconds: float) -> str:
    if seconds == float("inf"):
        return "unknown time"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
