"""A request to stop: TERM, INT, HUP, USR1, the stop file, or the death of the launcher.

No new work; the current image if it fits in time. A thread of its own watches, so that a request
is noted and the deadline kept even while the main thread is deep in a library or a driver.
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
    """Whether to stop, and by when. At the deadline, or at a second Ctrl-C, the process ends where
    it stands: files are whole at any moment."""

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self.reason = ""
        self.is_final = False
        self.on_request: Callable[[], None] | None = None
        self._deadline: float | None = None  # on the monotonic clock
        self._file: Path | None = None
        self._parent: int | None = None

    def install(self) -> None:
        """Take the signals. In the main thread, before anything slow is imported."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        # The kernel's call writes the number into the pipe at once; a handler in Python would wait
        # for the main thread, which may be in a long call.
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in SIGNALS:
            # Under nohup HUP is ignored, and stays so.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        threading.Thread(target=self._watch, args=(reading,), name="stop", daemon=True).start()

    def watch_file(self, path: Path) -> None:
        """Stop once `path` exists."""
        self._file = path

    def watch_launcher(self) -> None:
        """Stop once the process that started this one is gone: nobody would end us."""
        self._parent = os.getppid()

    def request(self, reason: str, *, is_final: bool = False) -> None:
        """`is_final`: a launcher's restart is not to go on with the work."""
        if self._deadline is not None:
            return
        self.reason, self.is_final = reason, is_final
        self._deadline = time.monotonic() + self.grace_s
        if self.on_request is not None:
            # Not in this thread, which keeps the deadline: it may talk to a store that hangs.
            threading.Thread(target=self.on_request, daemon=True).start()

    @property
    def requested(self) -> bool:
        return self._deadline is not None

    def left_s(self) -> float:
        """Seconds until the deadline; infinite while nobody asked to stop."""
        return float("inf") if self._deadline is None else self._deadline - time.monotonic()

    def _watch(self, reading: int) -> None:
        while self.left_s() > 0:
            if select.select([reading], [], [], min(POLL_S, self.left_s()))[0]:
                for number in os.read(reading, 64):
                    self._on_signal(number)
            elif self._file is not None and os.path.lexists(self._file):
                self.request("the stop file", is_final=True)
            elif self._parent not in (None, os.getppid()):
                self.request("the launcher is gone")
        os._exit(ExitCode.INCOMPLETE)

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGINT and self.requested:
            os._exit(ExitCode.INCOMPLETE)
        if number in SIGNALS:
            self.request(signal.Signals(number).name)
