"""The progress of the whole job, shown by rank 0: a bar on a terminal, plain lines elsewhere."""

import contextlib
import os
import sys
import threading
import time
from typing import Any, TextIO

from tqdm import tqdm

from runner.launch.store import Store, StoreLostError
from runner.say import say
from runner.units import counted, duration

__all__ = ["Progress"]

POLL_S = 0.5
LINES = 10  # about how many plain lines a job prints
LINE_S = 60.0  # while images come, print at least one line in this time


class Progress:
    """Shows the counter of finished images of all replicas, in a thread.

    `started`: when the launch started, in seconds since 1970; `first`: the number of images in the
    first batches of all replicas together.
    """

    def __init__(self, store: Store, total: int, started: float, first: int) -> None:
        self.store = store
        self.total = total
        self.started = started
        self._rate = _Rate(first)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="progress", daemon=True)
        self._has_bar = _has_room(sys.stderr)
        self._printed, self._printed_at = 0, time.monotonic()

    def __enter__(self) -> "Progress":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _follow(self) -> None:
        with _Bar(total=self.total, unit="image", disable=not self._has_bar, leave=False) as bar:
            bar.start_t = self.started
            while not self._stop.wait(POLL_S):
                with contextlib.suppress(StoreLostError):
                    self._show(min(self.store.add("finished", 0), self.total), bar)

    def _show(self, finished: int, bar: "_Bar") -> None:
        now = time.monotonic()
        self._rate.update(finished, now)
        if self._has_bar:
            bar.n, bar.per_second = finished, self._rate.per_second
            bar.refresh()
            return
        new, waited_s = finished - self._printed, now - self._printed_at
        if new > 0 and (new >= self.total / LINES or waited_s >= LINE_S):
            say(_line(finished, self.total, self._rate.per_second))
            self._printed, self._printed_at = finished, now


class _Rate:
    """Images per second, from the end of the first batches to the newest image. The time before
    that, for example to load the model, says nothing about the rest."""

    def __init__(self, first: int) -> None:
        self.first = first
        self._from = self._to = (0, 0.0)  # images, seconds

    def update(self, finished: int, now: float) -> None:
        if finished > self._to[0]:
            self._to = finished, now
            if finished <= self.first or not self._from[0]:
                self._from = self._to

    @property
    def per_second(self) -> float:
        """0 while it is unknown."""
        images, seconds = (end - start for start, end in zip(self._from, self._to, strict=True))
        return images / seconds if images else 0.0


class _Bar(tqdm):  # type: ignore[type-arg]
    """tqdm's bar with our rate: its own rate counts from the start of the launch."""

    per_second = 0.0

    @property
    def format_dict(self) -> Any:
        return {**super().format_dict, "rate": self.per_second}


def _has_room(stream: TextIO) -> bool:
    """Whether it is a terminal that can show a bar. One without columns (`script`) cannot."""
    return stream.isatty() and os.get_terminal_size(stream.fileno()).columns > 0


def _line(finished: int, total: int, per_second: float) -> str:
    """`29 of 64 images, 2.4 images/s, about 15 s left`, if the rate is known."""
    words = f"{finished} of {counted(total, 'image')}"
    if not per_second:
        return words
    rate = f"{per_second:.0f}" if per_second >= 9.95 else f"{per_second:#.2g}"
    left = f", about {duration((total - finished) / per_second)} left" if finished < total else ""
    return f"{words}, {rate} images/s{left}"
