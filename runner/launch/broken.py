"""Replicas whose device is of no more use: they take no more batches, the others make their share,
and the end says so.

A process that ended with an error would end all others, since its launcher stops them.
"""

import contextlib

from runner.launch.device_errors import is_fatal
from runner.launch.layout import Layout
from runner.launch.store import Store, StoreLostError

__all__ = ["broken", "is_first_whole", "leaves_share", "note_broken"]


def leaves_share(layout: Layout, error: BaseException) -> bool:
    """Whether the error ends this replica alone. One of several ranks is lost as a whole: its other
    ranks may wait in a collective."""
    return layout.replicas > 1 and layout.ranks_per_replica == 1 and is_fatal(error)


def note_broken(store: Store, replica: int, words: str) -> None:
    with contextlib.suppress(StoreLostError):
        store.set(_key(replica), words)
        store.add("broken")


def broken(store: Store, replicas: int) -> list[str]:
    """What became of each broken replica."""
    with contextlib.suppress(StoreLostError):
        if store.add("broken", 0):
            return [*filter(None, (store.get(_key(replica)) for replica in range(replicas)))]
    return []


def is_first_whole(store: Store, replica: int) -> bool:
    """Whether all replicas before this one are broken. Raises StoreLostError."""
    return all(store.get(_key(before)) is not None for before in range(replica))


def _key(replica: int) -> str:
    return f"broken/{replica}"
