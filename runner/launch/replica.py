"""The ranks that make one image together: a leader, and followers that do the same calls.

They exchange messages through the launch's store. The leader broadcasts the number of each batch.
After each pipeline call, every follower publishes that it left the call, and the leader broadcasts
whether the call failed. So all ranks split, skip or stop at the same place, and none enters a
collective that the others do not enter. If a rank fails while the others are still in the call, the
replica is lost: its ranks end at once, and the next launch continues.

A replica of one rank does not use the store.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from runner.errors import ExitCode, ReplicaLostError
from runner.launch.heartbeat import Heartbeat
from runner.launch.layout import Layout
from runner.launch.store import Store, StoreLostError

__all__ = ["Replica"]

PATIENCE_S = 12.0  # how long a failed rank waits for the others to leave the call
WATCH_S = 0.5
FIRST_POLL_S, LAST_POLL_S = 0.001, 0.02
END = -1

Fault = tuple[str, str]  # its kind and its message


class Replica:
    """One rank's link to the others of its replica. Use as a context manager: while it is open, a
    lost replica ends this process by `on_lost` and os._exit."""

    def __init__(
        self,
        layout: Layout,
        store: Store,
        heartbeat: Heartbeat,
        first_rank: int,
        on_lost: Callable[[], None],
    ) -> None:
        self.layout = layout
        self.store = store
        self.heartbeat = heartbeat
        self.members = range(first_rank, first_rank + layout.ranks_per_replica)
        self.on_lost = on_lost
        self._calls = 0  # pipeline calls so far, the same on all ranks
        self._drop_at: int | None = None  # the denoising step after which the call is given up
        self._batches = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="replica", daemon=True)

    @property
    def is_alone(self) -> bool:
        return self.layout.ranks_per_replica == 1

    def __enter__(self) -> "Replica":
        if not self.is_alone:
            self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.is_alone:
            return
        self._closed.set()
        self._thread.join()
        if isinstance(error, Exception):
            # The other ranks would wait for this one for ever.
            with contextlib.suppress(StoreLostError):
                self.store.set(self._key("lost"), f"rank {self.heartbeat.rank}: {error}")

    # --- which batch ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def batches_broadcast(self) -> Iterator[Callable[[Iterable[int]], Iterator[int]]]:
        """On the leader: a function from batches to the same batches, each broadcast before it
        begins. At the end the followers learn that no more come."""

        def broadcast(numbers: Iterable[int]) -> Iterator[int]:
            for number in numbers:
                if not self.is_alone:
                    self._broadcast_batch(number)
                yield number

        try:
            yield broadcast
        finally:  # also when the leader takes no more
            if not self.is_alone:
                with contextlib.suppress(StoreLostError):
                    self._broadcast_batch(END)

    def receive_batches(self) -> Iterator[int]:
        """On a follower: the batches that the leader broadcasts, until their end."""
        while True:
            self._batches += 1
            number = int(self._wait_for("batch", self._batches))
            if number == END:
                return
            yield number

    def _broadcast_batch(self, number: int) -> None:
        self._batches += 1
        self._publish("batch", self._batches, str(number))

    # --- how a call ended ----------------------------------------------------------------------

    def agree_on(self, failure: Fault | None) -> Fault | None:
        """Call it on every rank after every pipeline call, with the failure of this rank.

        Returns the leader's failure on all ranks: if the leader has an image, the image is whole.
        Raises ReplicaLostError if this rank failed while others are still in the call.
        """
        if self.is_alone:
            return failure
        self._calls += 1
        patience_s = PATIENCE_S if failure else float("inf")
        try:
            if self.layout.is_leader:
                self._wait_for_followers(patience_s)
                self._publish("verdict", self._calls, json.dumps(failure))
                return failure
            self._publish(f"left/{self.layout.rank_in_replica}", self._calls, json.dumps(failure))
            verdict: Fault | None = json.loads(self._wait_for("verdict", self._calls, patience_s))
        except TimeoutError:
            raise ReplicaLostError(
                f"rank {self.heartbeat.rank} failed alone in a replica of "
                f"{self.layout.ranks_per_replica} ranks: {failure and failure[1]}; run the same "
                f"command again"
            ) from None
        return verdict

    def _wait_for_followers(self, patience_s: float) -> None:
        """Wait until all of them have left the call. Raises TimeoutError."""
        for rank in range(self.layout.ranks_per_replica):
            if rank != self.layout.leader:
                self._wait_for(f"left/{rank}", self._calls, patience_s)

    def drops(self, step: int, is_too_late: bool) -> bool:
        """Whether all ranks give up the call after this denoising step (from 0).

        The leader decides one step ahead, and no rank goes past a step before it knows what the
        leader decided about it. A GPU computes later than it is asked to, so a follower may be
        steps ahead of what it has, and would queue a collective that the leader never joins.
        """
        if self.is_alone:
            return is_too_late
        call = self._calls + 1
        if self.layout.is_leader:
            drops = self._drop_at is not None and step >= self._drop_at
            if is_too_late and self._drop_at is None:
                self._drop_at = step + 1
            self._publish("steps", call, json.dumps((step + 1, self._drop_at)))
            return drops
        if step:

            def is_decided(message: str) -> bool:
                return bool(json.loads(message)[0] >= step)

            decision = self._wait_for("steps", call, is_enough=is_decided)
            self._drop_at = json.loads(decision)[1]
        return self._drop_at is not None and step >= self._drop_at

    # --- the end of a replica ------------------------------------------------------------------

    def _watch(self) -> None:
        """End this process once the replica is lost: the main thread may hang in a collective,
        where no signal reaches it."""
        is_gone = self.heartbeat.watch()
        others = [rank for rank in self.members if rank != self.heartbeat.rank]
        while not self._closed.wait(WATCH_S):
            try:
                is_lost = self.store.get(self._key("lost")) is not None
                is_lost = is_lost or any(map(is_gone, others))
            except StoreLostError:
                is_lost = True
            if is_lost:
                with contextlib.suppress(Exception):
                    self.on_lost()
                os._exit(int(ExitCode.ERROR))

    # --- messages ------------------------------------------------------------------------------
    # Each new message of a name replaces the last one and has the next number. A reader is never
    # more than one message behind, so it misses none.

    def _key(self, name: str) -> str:
        return f"replica/{self.layout.replica}/{name}"

    def _publish(self, name: str, number: int, message: str) -> None:
        self.store.set(self._key(name), f"{number} {message}")

    def _read(self, name: str, number: int) -> str | None:
        """The message with this number, or None while it has not come."""
        text = self.store.get(self._key(name))
        if text is None:
            return None
        found, _, message = text.partition(" ")
        return message if int(found) == number else None

    def _wait_for(
        self,
        name: str,
        number: int,
        patience_s: float = float("inf"),
        is_enough: Callable[[str], bool] = lambda message: True,
    ) -> str:
        """The message with this number, once it comes and is enough; `_watch` ends the wait in a
        lost replica.

        Raises TimeoutError.
        """
        until, poll_s = time.monotonic() + patience_s, FIRST_POLL_S
        while (message := self._read(name, number)) is None or not is_enough(message):
            if time.monotonic() > until:
                raise TimeoutError
            time.sleep(poll_s)
            poll_s = min(poll_s * 1.5, LAST_POLL_S)
        return message
