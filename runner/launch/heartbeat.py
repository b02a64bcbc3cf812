"""Which ranks of the launch are alive, by heartbeats in the store: no rank waits for a dead one.

With its heartbeat each rank publishes its pulse, from which rank 0 learns how the ranks stand.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Container
from dataclasses import dataclass

import msgspec

from runner.launch.pulse import OwnPulse, Pulse
from runner.launch.store import Store, StoreLostError

__all__ = ["Heartbeat", "Seen"]

BEAT_S = 1.0
POLL_S = 0.1
PULSE = msgspec.json.Decoder(Pulse)


@dataclass(frozen=True, slots=True)
class Seen:
    """A rank as this process sees it."""

    pulse: Pulse
    silent_s: float  # since its heartbeat last changed, by the clock of this process
    has_ended: bool


class Heartbeat:
    """Counts up this rank's heartbeat in a thread, and watches those of the other ranks."""

    def __init__(self, store: Store, rank: int, world_size: int) -> None:
        self.store = store
        self.rank = rank
        self.world_size = world_size
        self.pulse = OwnPulse(rank)
        self._published = b""
        self._seen: dict[int, Pulse] = {}
        self._look = _Watch(store, 0)
        self._gone: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        if world_size > 1:
            self._thread.start()

    def end(self) -> None:
        """Mark this rank as ended, the first time it is called."""
        if self._stop.is_set():
            return
        self._stop.set()
        with contextlib.suppress(StoreLostError):
            self._publish()
            self.store.add(f"ended/{self.rank}")
            self.store.add("ended")

    def wait_for_value(self, key: str, of_rank: int, stopped: Callable[[], bool]) -> str | None:
        """The value that another rank sets; None if that rank is gone, or if we should stop."""
        watch = _Watch(self.store, 60.0)
        while not stopped():
            value = self.store.get(key)
            if value is not None:
                return value
            if watch.is_gone(of_rank):
                return None
            time.sleep(POLL_S)
        return self.store.get(key)  # it may have been set before the stop

    def wait_for_others(self, patience_s: Callable[[], float], but: Container[int]) -> None:
        """Wait until each other rank, except these, has ended, or its heartbeat has stood still for
        `patience_s`. Ranks that were gone in an earlier call are not waited for again."""
        watch = _Watch(self.store, 0)
        others = set(range(self.world_size)) - {self.rank, *self._gone}
        waiting = {rank for rank in others if rank not in but}
        while waiting:
            if self.store.add("ended", 0) >= self.world_size:
                break
            watch.patience_s = patience_s()
            for rank in sorted(waiting):
                if self._has_ended(rank):
                    waiting.discard(rank)
                elif watch.is_gone(rank):
                    waiting.discard(rank)
                    self._gone.append(rank)
            time.sleep(POLL_S)

    def watch(self, patience_s: float = 30.0) -> Callable[[int], bool]:
        """A function: whether a rank is gone, with no heartbeat for so long and not ended."""
        watch = _Watch(self.store, patience_s)
        return lambda rank: watch.is_gone(rank) and not self._has_ended(rank)

    def seen(self, ranks_per_replica: int) -> list[Seen]:
        """All ranks, in order. Call it again and again: how long a rank is silent counts from the
        first call. Raises StoreLostError."""
        found = []
        for rank in range(self.world_size):
            silent_s = 0.0 if rank == self.rank else self._look.silent_s(rank)
            if rank == self.rank:
                self._seen[rank] = self.pulse.now()
            elif not silent_s and (text := self.store.get(f"pulse/{rank}")):
                with contextlib.suppress(msgspec.MsgspecError):  # others may write to the store
                    self._seen[rank] = PULSE.decode(text)
            pulse = self._seen.get(rank) or Pulse(rank=rank)
            if pulse.state == "starting":  # it does not know its replica yet
                pulse.replica = rank // ranks_per_replica
            found.append(Seen(pulse, silent_s, silent_s > 0 and self._has_ended(rank)))
        return found

    def _has_ended(self, rank: int) -> bool:
        return self.store.add(f"ended/{rank}", 0) > 0

    def _beat(self) -> None:
        with contextlib.suppress(StoreLostError):
            self._publish()
            while not self._stop.wait(BEAT_S):
                self._publish()

    def _publish(self) -> None:
        """The pulse first: a reader looks at it once the heartbeat has changed."""
        pulse = msgspec.json.encode(self.pulse.now())
        if pulse != self._published:
            self.store.set(f"pulse/{self.rank}", pulse.decode())
            self._published = pulse
        self.store.add(f"beat/{self.rank}")


class _Watch:
    """Remembers when each rank's heartbeat last changed, by the clock of this process."""

    def __init__(self, store: Store, patience_s: float) -> None:
        self.store = store
        self.patience_s = patience_s
        self._seen: dict[int, tuple[int, float]] = {}

    def is_gone(self, rank: int) -> bool:
        return self.silent_s(rank) > self.patience_s

    def silent_s(self, rank: int) -> float:
        """Seconds since the heartbeat changed; 0 where it has since the last call."""
        beat, now = self.store.add(f"beat/{rank}", 0), time.monotonic()
        known, since = self._seen.get(rank, (-1, now))
        if beat != known:
            self._seen[rank] = (beat, now)
            return 0.0
        return now - since
