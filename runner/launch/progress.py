"""One progress line for the whole job, on rank 0: a bar on a terminal, plain lines elsewhere."""

import contextlib
import os
import sys
import threading
import time
from types import TracebackType
from typing import Any, TextIO

from tqdm import tqdm

from runner.launch.store import Store, StoreLostError
from runner.say import say
from runner.units import counted, duration

__all__ = ["Progress"]

POLL_S = 0.5
LINES = 10  # plain lines a job, about
LINE_S = 60.0  # and one at least so often while images come


class Progress:
    """Follows the counter of finished images, of all replicas, in a thread of its own.

    `started`: when the launch did, in seconds since 1970; `first`: how many images the replicas
    have in their first batches, together.
    """

    def __init__(self, store: Store, total: int, started: float, first: int) -> None:
        self.store = store
        self.total = total
        self.started = started
        self._rate = _Rate(first)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="progress", daemon=True)
        self._has_bar = _has_room(sys.stderr)
        self._told, self._told_at = 0, time.monotonic()

    def __enter__(self) -> "Progress":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _follow(self) -> None:
        bar = _Bar(total=self.total, unit="image", disable=not self._has_bar, leave=False)
        with bar:
            bar.start_t = self.started
            while not self._stop.wait(POLL_S):
                with contextlib.suppress(StoreLostError):
                    finished = min(self.store.add("finished", 0), self.total)
                    self._rate.see(finished, time.monotonic())
                    if self._has_bar:
                        bar.n, bar.per_second = finished, self._rate.per_second
                        bar.refresh()
                    else:
                        self._tell(finished)

    def _tell(self, finished: int) -> None:
        now = time.monotonic()
        is_due = finished - self._told >= self.total / LINES or now - self._told_at >= LINE_S
        if finished > self._told and is_due:
            say(_line(finished, self.total, self._rate.per_second))
            self._told, self._told_at = finished, now


class _Rate:
    """Images a second from the first batches' end to the newest image: what the launch took before
    it, to load the model for one, says nothing of the rest."""

    def __init__(self, first: int) -> None:
        self.first = first
        self._from = self._to = (0, 0.0)  # images, seconds

    def see(self, finished: int, now: float) -> None:
        if finished > self._to[0]:
            self._to = finished, now
            if finished <= self.first or not self._from[0]:
                self._from = self._to

    @property
    def per_second(self) -> float:
        """0 while it is not known."""
        images, seconds = (end - start for start, end in zip(self._from, self._to, strict=True))
        return images / seconds if images else 0.0


class _Bar(tqdm):  # type: ignore[type-arg]
    """With our rate: tqdm's own begins where the elapsed time does."""

    per_second = 0.0

    @property
    def format_dict(self) -> Any:
        return {**super().format_dict, "rate": self.per_second}


def _has_room(stream: TextIO) -> bool:
    """Whether it is a terminal for a bar; one without columns, as `script` has, shows none."""
    return stream.isatty() and os.get_terminal_size(stream.fileno()).columns > 0


def _line(finished: int, total: int, per_second: float) -> str:
    """`29 of 64 images, 2.4 images/s, about 15 s left`, as far as the rate is known."""
    words = f"{finished} of {counted(total, 'image')}"
    if not per_second:
        return words
    rate = f"{per_second:.0f}" if per_second >= 9.95 else f"{per_second:#.2g}"
    left = f", about {duration((total - finished) / per_second)} left" if finished < total else ""
    return f"{words}, {rate} images/s{left}"
