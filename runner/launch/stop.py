"""Requests to stop: TERM, INT, HUP, USR1, the stop file, or the death of the launcher.

After a request no new work begins; the current image is finished if there is time. A thread watches
for requests and keeps the deadline, even while the main thread is in a long call of a library.
"""

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from runner.errors import ExitCode
from runner.say import say

__all__ = ["Stop"]

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
POLL_S = 1.0
SOON_S = 1.0  # to end where no image is in work


class Stop:
    """Whether to stop, and by when. At the deadline, or at a second Ctrl-C, the process ends at
    once. That is safe: files are whole at any moment. `on_request` is called, in a thread, at the
    first request; `on_cut` before the process is ended while it loads."""

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self.is_final = False  # a restart by the launcher should not continue the work
        self.on_request: Callable[[], None] | None = None
        self.on_cut: Callable[[], None] | None = None
        self._requested = threading.Event()
        self._requested_at = 0.0  # on the monotonic clock
        self._had_ctrl_c = False
        self._is_loading = False
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
        if self.requested:
            return
        self.is_final = is_final
        self._requested_at = time.monotonic()
        self._requested.set()
        if self.on_request is not None:
            _in_thread(self.on_request)

    @property
    def requested(self) -> bool:
        return self._requested.is_set()

    def wait(self, timeout_s: float) -> None:
        """Return at a request, or after `timeout_s`."""
        self._requested.wait(timeout_s)

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """A request in here ends the process soon: nothing is lost, and nobody looks at the request
        before the end of a long call."""
        self._is_loading = True
        try:
            yield
        finally:
            self._is_loading = False

    def left_s(self) -> float:
        """Seconds until the deadline; infinite before a request."""
        if not self.requested:
            return float("inf")
        grace_s = min(self.grace_s, SOON_S) if self._is_loading else self.grace_s
        return self._requested_at + grace_s - time.monotonic()

    def _watch(self, reading: int) -> None:
        while self.left_s() > 0:
            if select.select([reading], [], [], min(POLL_S, self.left_s()))[0]:
                for number in os.read(reading, 64):
                    self._on_signal(number)
            elif self._file is not None and os.path.lexists(self._file):
                self._announce()
                self.request(is_final=True)
            elif self._parent not in (None, os.getppid()):
                self.request()
        if self._is_loading and self.on_cut is not None:
            _in_thread(self.on_cut).join(self.grace_s)
        os._exit(ExitCode.INCOMPLETE)

    def _on_signal(self, number: int) -> None:
        # torchrun passes a second Ctrl-C on as TERM.
        ends_now = (signal.SIGINT, signal.SIGTERM) if self._had_ctrl_c else (signal.SIGINT,)
        if self.requested and number in ends_now:
            os._exit(ExitCode.INCOMPLETE)
        self._had_ctrl_c = self._had_ctrl_c or number == signal.SIGINT
        if number in SIGNALS:
            self._announce()
            self.request()

    def _announce(self) -> None:
        """Say once that the process stops: an image may take long."""
        if self.requested:
            return
        words = "stopping"
        if not self._is_loading:
            words += f"; the image in work gets up to {self.grace_s:g} s"
        words += "; Ctrl-C again ends at once" if self._had_ctrl_c else ""
        _in_thread(lambda: say(words))


def _in_thread(call: Callable[[], None]) -> threading.Thread:
    """For what may hang, a store or a terminal: our own thread keeps the deadline."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread
