"""What each rank publishes about itself once a second: what it does, and how much it has done."""

import contextlib
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator

import msgspec

__all__ = ["OwnPulse", "Pulse"]

RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # of getrusage


class Pulse(msgspec.Struct):
    """How a rank stands, by its own account. Seconds count from the start of the launch."""

    replica: int = 0
    rank: int = 0
    state: str = "starting"  # starting, loading, busy, idle
    images: int = 0  # that it wrote
    failed: int = 0
    start_s: float = 0.0  # when its replica could begin to work; 0: not yet
    busy_s: float = 0.0  # with batches
    host: str = ""
    device: str = ""  # NVIDIA H200; cpu
    devices: int = 0  # accelerators that it drives
    memory_peak: int = 0  # bytes: of one accelerator; without one of the process


class OwnPulse:
    """The pulse of this process. The main thread, the writer's and the heartbeat's share it; each
    number has one writer."""

    def __init__(self, rank: int) -> None:
        self._pulse = Pulse(rank=rank, host=socket.gethostname())
        self._busy_since: float | None = None
        self._memory_peak: Callable[[], int] = _memory_of_process

    def loads(self, replica: int) -> None:
        self._pulse.replica, self._pulse.state = replica, "loading"

    def is_on(self, device: str, devices: int, memory_peak: Callable[[], int]) -> None:
        """Its accelerators, and how to ask for the most memory that one of them had."""
        self._pulse.device, self._pulse.devices = device, devices
        if devices:
            self._memory_peak = memory_peak

    def works_from(self, start_s: float) -> None:
        self._pulse.start_s, self._pulse.state = start_s, "idle"

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """While it makes batches."""
        self._busy_since, self._pulse.state = time.monotonic(), "busy"
        try:
            yield
        finally:
            since, self._busy_since = self._busy_since, None
            self._pulse.busy_s += time.monotonic() - since
            self._pulse.state = "idle"

    def count_image(self) -> None:
        self._pulse.images += 1

    def count_failure(self) -> None:
        self._pulse.failed += 1

    def now(self) -> Pulse:
        since, busy_s = self._busy_since, self._pulse.busy_s
        if since is not None:
            busy_s += time.monotonic() - since
        self._pulse.memory_peak = self._memory_peak()
        start_s = round(self._pulse.start_s, 3)
        return msgspec.structs.replace(self._pulse, start_s=start_s, busy_s=round(busy_s, 3))


def _memory_of_process() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT
