"""One progress line for the whole job, on rank 0: a bar on a terminal, plain lines elsewhere."""

import contextlib
import sys
import threading
import time
from types import TracebackType

from tqdm import tqdm

from runner.store import Store, StoreLostError
from runner.units import counted

__all__ = ["Progress"]

POLL_S = 0.5
LINES = 10  # plain lines a job, about
LINE_S = 60.0  # and one at least so often while images come


class Progress:
    """Follows the counter of finished images, of all replicas, in a thread of its own. Its rate is
    the summary's: images since `started`, in seconds since 1970."""

    def __init__(self, store: Store, total: int, started: float) -> None:
        self.store = store
        self.total = total
        self.started = started
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="progress", daemon=True)
        self._is_terminal = sys.stderr.isatty()
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
        bar = tqdm(
            total=self.total,
            unit="image",
            disable=not self._is_terminal,
            leave=False,
            smoothing=0,
        )
        with bar:
            bar.start_t = self.started
            while not self._stop.wait(POLL_S):
                with contextlib.suppress(StoreLostError):
                    finished = min(self.store.add("finished", 0), self.total)
                    bar.update(finished - bar.n)
                    if not self._is_terminal:
                        self._tell(finished)

    def _tell(self, finished: int) -> None:
        now = time.monotonic()
        is_due = finished - self._told >= self.total / LINES or now - self._told_at >= LINE_S
        if finished > self._told and is_due:
            print(
                f"runner: {finished} of {counted(self.total, 'image')}", file=sys.stderr, flush=True
            )
            self._told, self._told_at = finished, now
