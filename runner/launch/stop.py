"""Requests to stop: TERM, INT, HUP, USR1, the stop file, or the death of the launcher.

After a request no new work begins; the current image is finished if there is time. A thread watches
for requests and keeps the deadline, even while the main thread is in a long call of a library.
"""

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from runner.errors import ExitCode

__all__ = ["Stop"]

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
POLL_S = 1.0


class Stop:
    """Whether to stop, and by when. At the deadline, or at a second Ctrl-C, the process ends at
    once. That is safe: files are whole at any moment."""

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self.is_final = False  # a restart by the launcher should not continue the work
        self.on_request: Callable[[], None] | None = None
        self._deadline: float | None = None  # on the monotonic clock
        self._file: Path | None = None
        self._parent: int | None = None

    def install(self) -> None:
        """Handle the signals. Call it in the main thread, before slow imports."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        # Python's C handler writes the number into the pipe at once. A handler in Python would wait
        # for the main thread, which may be in a long call.
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in SIGNALS:
            # Under nohup, HUP stays ignored.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        threading.Thread(target=self._watch, args=(reading,), name="stop", daemon=True).start()

    def watch_file(self, path: Path) -> None:
        """Stop once `path` exists."""
        self._file = path

    def watch_launcher(self) -> None:
        """Stop once the process that started this one is gone: then nothing else would end us."""
        self._parent = os.getppid()

    def request(self, *, is_final: bool = False) -> None:
        """Stop within the grace time; later requests change nothing."""
        if self._deadline is not None:
            return
        self.is_final = is_final
        self._deadline = time.monotonic() + self.grace_s
        if self.on_request is not None:
            # Not in this thread, which keeps the deadline: the call may use a store that hangs.
            threading.Thread(target=self.on_request, daemon=True).start()

    @property
    def requested(self) -> bool:
        return self._deadline is not None

    def left_s(self) -> float:
        """Seconds until the deadline; infinite before a request."""
        return float("inf") if self._deadline is None else self._deadline - time.monotonic()

    def _watch(self, reading: int) -> None:
        while self.left_s() > 0:
            if select.select([reading], [], [], min(POLL_S, self.left_s()))[0]:
                for number in os.read(reading, 64):
                    self._on_signal(number)
            elif self._file is not None and os.path.lexists(self._file):
                self.request(is_final=True)
            elif self._parent not in (None, os.getppid()):
                self.request()
        os._exit(ExitCode.INCOMPLETE)

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGINT and self.requested:
            os._exit(ExitCode.INCOMPLETE)
        if number in SIGNALS:
            self.request()
