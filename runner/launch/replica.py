"""The ranks that make one image together: one leads, the others follow its word.

Words go through the launch's store. The leader says the number of each batch; after every pipeline
call all ranks say that they left it, and the leader says whether it failed. So all of them split,
skip or stop at the same place, and none enters a collective that the others do not. A rank that
fails while the others are still in the call cannot be helped: the replica is lost, its ranks end
at once, and the next launch goes on.

A replica of one rank has nobody to tell, and does not touch the store.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any

from runner.errors import ExitCode, ReplicaLostError
from runner.launch.heartbeat import Pulse
from runner.launch.layout import Layout
from runner.launch.store import Store, StoreLostError

__all__ = ["Replica"]

PATIENCE_S = 12.0  # how long a failed rank waits for the others to leave the call
WATCH_S = 0.5
FIRST_POLL_S, LAST_POLL_S = 0.001, 0.02
END = -1

Fault = tuple[str, str]  # its kind and its words


class Replica:
    """One rank's link to the others of its replica. Use as a context manager: while it is open, the
    process ends by `on_lost` and os._exit once the replica is lost."""

    def __init__(
        self,
        layout: Layout,
        store: Store,
        pulse: Pulse,
        first_rank: int,
        on_lost: Callable[[], None],
    ) -> None:
        self.layout = layout
        self.store = store
        self.pulse = pulse
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.is_alone:
            return
        self._closed.set()
        self._thread.join()
        if isinstance(error, Exception):
            # The others wait in vain for this rank.
            with contextlib.suppress(StoreLostError):
                self.store.set(self._key("lost"), f"rank {self.pulse.rank}: {error}")

    # --- which batch ---------------------------------------------------------------------------

    def lead(self, numbers: Iterable[int]) -> Iterator[int]:
        """The leader's batches, each said to the others before it is begun, and the end of them."""
        if self.is_alone:
            yield from numbers
            return
        try:
            for number in numbers:
                self._say_batch(number)
                yield number
        finally:  # also where the leader stops asking
            with contextlib.suppress(StoreLostError):
                self._say_batch(END)

    def follow(self) -> Iterator[int]:
        """The batches that the leader says, until it says that there are no more."""
        while True:
            self._batches += 1
            number = int(self._hear("batch", self._batches))
            if number == END:
                return
            yield number

    def _say_batch(self, number: int) -> None:
        self._batches += 1
        self._say("batch", self._batches, str(number))

    # --- how a call ended ----------------------------------------------------------------------

    def settle(self, failure: Fault | None) -> Fault | None:
        """Call it on every rank after every pipeline call, with what failed there.

        Returns the leader's own failure, on all ranks: where the leader has an image, it is whole.
        Raises ReplicaLostError where other ranks are still in the call.
        """
        if self.is_alone:
            return failure
        self._calls += 1
        patience_s = PATIENCE_S if failure else float("inf")
        try:
            if self.layout.is_leader:
                for rank in range(self.layout.ranks_per_replica):
                    if rank != self.layout.leader:
                        self._hear(f"left/{rank}", self._calls, patience_s)
                self._say("verdict", self._calls, json.dumps(failure))
                return failure
            self._say(f"left/{self.layout.rank_in_replica}", self._calls, json.dumps(failure))
            verdict: Fault | None = json.loads(self._hear("verdict", self._calls, patience_s))
        except TimeoutError:
            raise ReplicaLostError(
                f"rank {self.pulse.rank} failed alone in a replica of "
                f"{self.layout.ranks_per_replica} ranks: {failure and failure[1]}; run the same "
                f"command again"
            ) from None
        return verdict

    def drops(self, step: int, is_too_late: bool) -> bool:
        """Whether all ranks give up the call after this denoising step (from 0).

        The leader decides for the step after: while the others are in that one, they wait for the
        leader's part of it, so none of them can miss the word.
        """
        if self.is_alone:
            return is_too_late
        call = self._calls + 1
        if self.layout.is_leader:
            if is_too_late and self._drop_at is None:
                self._drop_at = step + 1
                self._say("drop", call, str(self._drop_at))
        elif (said := self._read("drop", call)) is not None:
            self._drop_at = int(said)
        return self._drop_at is not None and step >= self._drop_at

    # --- the end of a replica ------------------------------------------------------------------

    def _watch(self) -> None:
        """The main thread may wait in a collective for ever, where no signal reaches it."""
        gone = self.pulse.watch()
        while not self._closed.wait(WATCH_S):
            try:
                lost = self.store.get(self._key("lost")) is not None
            except StoreLostError:
                lost = True
            if lost or any(gone(rank) for rank in self.members if rank != self.pulse.rank):
                with contextlib.suppress(Exception):
                    self.on_lost()
                os._exit(int(ExitCode.ERROR))

    # --- words ---------------------------------------------------------------------------------
    # A key is written over and over, `number` says for what: nobody is ever two words behind.

    def _key(self, name: str) -> str:
        return f"replica/{self.layout.replica}/{name}"

    def _say(self, name: str, number: int, word: str) -> None:
        self.store.set(self._key(name), f"{number} {word}")

    def _read(self, name: str, number: int) -> str | None:
        said = self.store.get(self._key(name))
        if said is None:
            return None
        of, _, word = said.partition(" ")
        return word if int(of) == number else None

    def _hear(self, name: str, number: int, patience_s: float = float("inf")) -> Any:
        """Wait for a word. Raises TimeoutError; a lost replica ends the wait by ending us."""
        until, poll_s = time.monotonic() + patience_s, FIRST_POLL_S
        while (word := self._read(name, number)) is None:
            if time.monotonic() > until:
                raise TimeoutError
            time.sleep(poll_s)
            poll_s = min(poll_s * 1.5, LAST_POLL_S)
        return word
