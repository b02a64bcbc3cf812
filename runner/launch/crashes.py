"""Images during which a process died, counted over the restarts of one launcher.

Such an image is tried once more, in a batch of its own. A second death makes it a failure. The
counts are in the launcher's store, so a new command starts without them: killing the whole command
marks no image.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence

from runner.errors import RunnerError
from runner.launch.store import Store, StoreLostError

__all__ = ["Crashes", "deaths", "quarantined", "split_batch"]

MAX_DEATHS = 2


class Crashes:
    """Notes in the store which images this rank works on, for the ranks of the next restart."""

    def __init__(self, store: Store, rank: int) -> None:
        self._store = store.command
        self._key = f"at/{rank}"

    @contextlib.contextmanager
    def during(self, indices: Sequence[int]) -> Iterator[None]:
        """Note these images. The note stays if the process dies here, or ends by an exception."""
        self._note(indices)
        try:
            yield
        except RunnerError:
            self.clear()  # the disk or a stop: not the fault of the images
            raise
        self.clear()

    def clear(self) -> None:
        """Remove the note. Also called when asked to stop: a launcher that ends this rank because
        another one died sends TERM first."""
        self._note(())

    def _note(self, indices: Sequence[int]) -> None:
        with contextlib.suppress(StoreLostError):
            self._store.set(self._key, json.dumps(list(indices)))


def deaths(store: Store, world_size: int) -> dict[int, int]:
    """Image index → how many processes of this command died with it. For rank 0, at the start: it
    adds the notes that the ranks before the restart left."""
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
    """The images that are not tried again."""
    return [index for index, count in counts.items() if count >= MAX_DEATHS]


def split_batch(indices: Sequence[int], counts: Mapping[int, int]) -> list[tuple[int, ...]]:
    """The batch as one call; or one call for each image, if a process died in the batch."""
    if not any(index in counts for index in indices):
        return [tuple(indices)]
    return [(index,) for index in indices if counts.get(index, 0) < MAX_DEATHS]
