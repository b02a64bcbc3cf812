"""Whose batch is next: one counter per shard, used by its owner and by helpers alike.

A shard is every R-th batch of those to do, for R replicas. Its owner goes first; a replica that
has done its own takes from the others'. One atomic operation a batch, and no batch is handed out
twice while the store lives.
"""

import random
from collections.abc import Container, Iterable, Iterator, Sequence

from runner.launch.store import Store, StoreLostError

__all__ = ["Part", "open_shards", "shard", "take", "windows"]

Part = tuple[int, int]  # of --shard I/N: the I-th of N equal parts of the plan, from 1


def shard(pending: Sequence[int], replica: int, replicas: int) -> Sequence[int]:
    """The batches that are a replica's to do first; sizes differ by at most one."""
    return pending[replica::replicas]


def open_shards(store: Store, replicas: int) -> None:
    """Begin all counters, before anybody takes: helpers read them in one request."""
    for replica in range(replicas):
        store.add(_key(replica), 0)


def take(store: Store, pending: Sequence[int], replica: int, replicas: int) -> Iterator[int]:
    """The batches that this replica does, each taken when it is asked for.

    A replica without a share of its own takes nothing: it would load the model to snatch a batch
    from one that is about to begin. Without the store it does its own share and ends.
    """
    own = shard(pending, replica, replicas)
    place = -1
    while own:
        try:
            place = store.add(_key(replica)) - 1
        except StoreLostError:
            place += 1
        if place >= len(own):
            yield from _help(store, pending, replica, replicas)
            return
        yield own[place]


def windows(numbers: Iterable[int], most: int, own: Container[int]) -> Iterator[list[int]]:
    """Up to so many batches at once. Nobody else can help with what a window holds: so none goes
    on from a replica's own batches to those of others, who may be about to begin them."""
    window: list[int] = []
    for number in numbers:
        if window and (number in own) != (window[0] in own):
            yield window
            window = []
        window.append(number)
        if len(window) == most:
            yield window
            window = []
    if window:
        yield window


def _help(store: Store, pending: Sequence[int], replica: int, replicas: int) -> Iterator[int]:
    """Batches of the others. Whom to help is drawn by how much each has left: so the slowest get
    most of the help, and the helpers do not all run to the same one."""
    draw = random.Random(replica)
    keys = [_key(other) for other in range(replicas)]
    sizes = [len(range(other, len(pending), replicas)) for other in range(replicas)]
    try:
        while True:
            taken = store.counts(keys)
            left = [max(0, size - count) for size, count in zip(sizes, taken, strict=True)]
            if not any(left):
                return
            other = draw.choices(range(replicas), left)[0]
            while (place := store.add(keys[other]) - 1) < sizes[other]:
                yield pending[other + place * replicas]
    except StoreLostError:
        return


def _key(replica: int) -> str:
    return f"shard/{replica}"
