"""A request to stop: TERM, INT, HUP or USR1. No new work; the current image if it fits in time."""

import os
import signal
import threading
import time
from types import FrameType

from runner.errors import ExitCode

__all__ = ["Stop"]

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


class Stop:
    """Whether to stop, and by when. At the deadline, or at a second Ctrl-C, the process ends where
    it stands: files are whole at any moment."""

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self.reason = ""
        self._deadline: float | None = None  # on the monotonic clock

    def install(self) -> None:
        for number in SIGNALS:
            signal.signal(number, self._on_signal)

    def request(self, reason: str) -> None:
        if self._deadline is not None:
            return
        self.reason = reason
        self._deadline = time.monotonic() + self.grace_s
        timer = threading.Timer(self.grace_s, os._exit, (int(ExitCode.INCOMPLETE),))
        timer.daemon = True
        timer.start()

    @property
    def requested(self) -> bool:
        return self._deadline is not None

    def left_s(self) -> float:
        """Seconds until the deadline; infinite while nobody asked to stop."""
        return float("inf") if self._deadline is None else self._deadline - time.monotonic()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            os._exit(int(ExitCode.INCOMPLETE))
        self.request(signal.Signals(number).name)
