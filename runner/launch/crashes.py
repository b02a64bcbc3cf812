"""Images during which their own process died, within one command: a launcher restarts the ranks.

Such an image is tried once more alone; the second death makes it a failure. It is kept in the
launcher's store, so that a new command knows nothing of it: a kill from outside marks no image.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence

from runner.errors import RunnerError
from runner.launch.store import Store, StoreLostError

__all__ = ["Crashes", "alone", "deaths", "quarantined"]

MOST = 2  # deaths


class Crashes:
    """What this rank is at, for whoever comes after it."""

    def __init__(self, store: Store, rank: int) -> None:
        self._store = store.command
        self._key = f"at/{rank}"

    @contextlib.contextmanager
    def during(self, indices: Sequence[int]) -> Iterator[None]:
        """Stays noted where the process dies in here, or an exception is to end it."""
        self._note(indices)
        try:
            yield
        except RunnerError:
            self.clear()  # the disk, or a stop: no fault of the images
            raise
        self.clear()

    def clear(self) -> None:
        """Also when asked to stop: a launcher that ends us for a neighbour's fault asks first."""
        self._note(())

    def _note(self, indices: Sequence[int]) -> None:
        with contextlib.suppress(StoreLostError):
            self._store.set(self._key, json.dumps(list(indices)))


def deaths(store: Store, world_size: int) -> dict[int, int]:
    """Rank 0, at the start: image index → how many processes of this command died with it.

    Takes what the ranks of the last attempt noted into the count.
    """
    common = store.command
    counts = {int(index): n for index, n in json.loads(common.get("deaths") or "{}").items()}
    for rank in range(int(common.get("ranks") or 0)):
        for index in json.loads(common.get(f"at/{rank}") or "[]"):
            counts[index] = counts.get(index, 0) + 1
        common.set(f"at/{rank}", "[]")
    common.set("deaths", json.dumps(counts))
    common.set("ranks", str(world_size))
    return counts


def quarantined(counts: Mapping[int, int]) -> list[int]:
    return [index for index, count in counts.items() if count >= MOST]


def alone(indices: Sequence[int], counts: Mapping[int, int]) -> list[tuple[int, ...]]:
    """A batch as it is to be made: whole, or one by one where a process died in it."""
    if not any(index in counts for index in indices):
        return [tuple(indices)]
    return [(index,) for index in indices if counts.get(index, 0) < MOST]
