"""A clean end on SIGTERM or Ctrl-C, and progress on the terminal."""

import dataclasses
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self, TextIO


class Interrupted(Exception):  # noqa: N818 - it is not an error: everything done is saved
    """The run was asked to stop and has saved what is done.

    Attributes:
        signal: the signal's number.
    """

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.signal = number


class Stop:
    """Turns the first SIGTERM or Ctrl-C into a request; the second one acts at once."""

    def __init__(self) -> None:
        self.number = 0
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._old[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        signal.signal(number, self._old.get(number, signal.SIG_DFL))
        print("stopping after this batch; what is done is saved", file=sys.stderr)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, old in self._old.items():
            signal.signal(number, old)

    def check(self, agreed: Callable[[bool], bool] = bool) -> None:
        """Raise Interrupted if asked to stop.

        Args:
            agreed: makes the request known to all processes of a run.
        """
        if agreed(self.number != 0):
            raise Interrupted(self.number or signal.SIGTERM)


def duration(seconds: float) -> str:
    """``h:mm:ss`` or ``m:ss``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@dataclasses.dataclass
class Progress:
    """Progress lines with the time left, at most one per ``every`` seconds.

    Attributes:
        label: names the stage.
        total: units of the stage.
        done: units that earlier runs have finished.
        stream: None prints nothing (processes other than the first).
    """

    label: str
    total: int
    done: int = 0
    every: float = 5.0
    stream: TextIO | None = dataclasses.field(default_factory=lambda: sys.stderr)

    def __post_init__(self) -> None:
        self._start = self._last = time.monotonic()
        self._new = 0

    def add(self, count: int) -> None:
        """Count finished units."""
        self._new += count
        now = time.monotonic()
        finished = self.done + self._new >= self.total
        if self.stream is None or (now - self._last < self.every and not finished):
            return
        self._last = now
        rate = self._new / max(now - self._start, 1e-9)
        left = (self.total - self.done - self._new) / max(rate, 1e-9)
        end = f"done in {duration(now - self._start)}" if finished else f"{duration(left)} left"
        print(
            f"{self.label}: {self.done + self._new}/{self.total}, {rate:.1f}/s, {end}",
            file=self.stream,
            flush=True,
        )
