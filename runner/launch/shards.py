"""Which replica makes which batch: one counter for each shard, used by its owner and by helpers.

With R replicas, a shard is every R-th of the batches to make. Each replica first takes its own
shard, then helps the others. Taking a batch is one atomic operation, so no batch is given out twice
while the store lives. The counters only share out the work. What is done, the journals say: in the
end the first replica makes what none of them has.
"""

import random
from collections.abc import Container, Iterable, Iterator, Sequence

from runner.launch.store import Store, StoreLostError

__all__ = ["likely_next", "open_shards", "shard", "take", "windows"]


def shard(pending: Sequence[int], replica: int, replicas: int) -> Sequence[int]:
    """The batches that a replica takes first. The sizes of shards differ by at most one."""
    return pending[replica::replicas]


def open_shards(store: Store, replicas: int) -> None:
    """Create all counters before the first batch is taken: helpers read them in one request."""
    for replica in range(replicas):
        store.add(_key(replica), 0)


def take(store: Store, pending: Sequence[int], replica: int, replicas: int) -> Iterator[int]:
    """The batches that this replica makes; each is taken only when the caller asks for it.

    A replica with an empty shard takes nothing: it would load the model for a batch that another
    replica is about to begin. If the store is lost, a replica makes its own shard and ends.
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


def likely_next(pending: Sequence[int], number: int, replicas: int) -> int | None:
    """The batch that a replica takes after this one, unless another one takes it first."""
    place = pending.index(number) + replicas
    return pending[place] if place < len(pending) else None


def windows(numbers: Iterable[int], most: int, own: Container[int]) -> Iterator[list[int]]:
    """Groups of up to `most` batches. No other replica can help with the batches of a group. So a
    group never mixes the replica's own batches with batches that another one may begin soon."""
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
    """Batches of other shards. The shard is drawn at random, weighted by what is left in each: the
    slowest replicas get most of the help, and helpers do not all choose the same one."""
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
