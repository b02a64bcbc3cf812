"""The progress of the whole job, shown by rank 0: a bar on a terminal, plain lines elsewhere."""

import contextlib
import os
import sys
import threading
import time
from typing import Any, TextIO

from tqdm import tqdm

from runner.launch.store import Store, StoreLostError
from runner.launch.tally import Totals, totals
from runner.say import has_bars, say
from runner.units import counted, duration

__all__ = ["Progress"]

POLL_S = 0.5
LINES = 10  # about how many plain lines a job prints
LINE_S = 60.0  # while images come, print at least one line in this time


class Progress:
    """Shows how many images of the job are there, of all replicas, in a thread.

    `total`: the images that were asked for; `there`: those of them that an earlier launch made;
    `started`: when the launch started, in seconds since 1970; `first`: the number of images in the
    first batches of all replicas together.
    """

    def __init__(self, store: Store, total: int, there: int, started: float, first: int) -> None:
        self.store = store
        self.total = total
        self.there = there
        self.started = started
        self._rate = _Rate(first)
        self._left = total - there
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="progress", daemon=True)
        self._has_bar = has_bars() and _has_room(sys.stderr)
        self._printed, self._printed_at = 0, time.monotonic()

    def __enter__(self) -> "Progress":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def per_second(self) -> float:
        """Images per second without the start of the launch; 0 while it is unknown."""
        return self._rate.per_second

    @property
    def left_s(self) -> float | None:
        """Seconds until the end, None while they are unknown."""
        return self._left / self.per_second if self.per_second else None

    def _follow(self) -> None:
        with _Bar(total=self.total, unit="image", disable=not self._has_bar, leave=False) as bar:
            bar.start_t = self.started
            while not self._stop.wait(POLL_S):
                with contextlib.suppress(StoreLostError):
                    self._show(totals(self.store), bar)

    def _show(self, so_far: Totals, bar: "_Bar") -> None:
        now = time.monotonic()
        self._rate.update(so_far.finished, now)
        self._left = max(0, self.total - self.there - so_far.finished)
        if self._has_bar:
            bar.n, bar.per_second = self.total - self._left, self.per_second
            bar.refresh()
            return
        new, waited_s = so_far.finished - self._printed, now - self._printed_at
        is_time = new >= (self.total - self.there) / LINES or waited_s >= LINE_S
        if new > 0 and is_time:
            done = min(self.there + so_far.made, self.total)
            say(
                _line(done, so_far.failed, self.total, self.per_second, self.left_s),
                fields={
                    "done": done,
                    "failed": so_far.failed,
                    "images": self.total,
                    "images_per_second": self.per_second or None,
                    "left_s": self.left_s,
                },
            )
            self._printed, self._printed_at = so_far.finished, now


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


def _line(done: int, failed: int, total: int, per_second: float, left_s: float | None) -> str:
    """`29 of 64 images, 2 failed, 2.4 images/s, about 15 s left`, as far as it is known."""
    words = f"{done} of {counted(total, 'image')}"
    words += f", {failed} failed" if failed else ""
    if not per_second:
        return words
    rate = f"{per_second:.0f}" if per_second >= 9.95 else f"{per_second:#.2g}"
    left = f", about {duration(left_s)} left" if left_s else ""
    return f"{words}, {rate} images/s{left}"
