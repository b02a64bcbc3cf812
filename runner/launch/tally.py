"""Counts what becomes of images, for the whole launch in the store and for this rank."""

import contextlib
from typing import NamedTuple

from runner.launch.pulse import OwnPulse
from runner.launch.store import Store, StoreLostError

__all__ = ["Tally", "Totals", "totals"]


MANY = 10**9  # a place after all others


class Totals(NamedTuple):
    """Images of a launch so far."""

    finished: int  # all of them: made, failed, skipped
    failed: int
    skipped: int

    @property
    def made(self) -> int:
        return max(0, self.finished - self.failed - self.skipped)


class Tally:
    """What this rank adds to the counters of the launch."""

    def __init__(self, store: Store, pulse: OwnPulse) -> None:
        self._store = store
        self._pulse = pulse

    def image(self) -> None:
        self._pulse.count_image()
        self._add("finished")

    def failure(self) -> None:
        self._pulse.count_failure()
        self._add("failed", "finished")

    def skipped(self) -> None:
        self._add("skipped", "finished")

    def fault(self) -> int:
        """Which error of the launch this is, from 1."""
        with contextlib.suppress(StoreLostError):
            return self._store.add("faults")
        return MANY

    def _add(self, *keys: str) -> None:
        with contextlib.suppress(StoreLostError):
            for key in keys:
                self._store.add(key)


def totals(store: Store) -> Totals:
    """Of all ranks. Raises StoreLostError."""
    return Totals(*(store.add(key, 0) for key in Totals._fields))
