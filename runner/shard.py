"""Whose batch is next: one counter per shard, used by its owner and by helpers alike.

A shard is every R-th batch of those to do, for R replicas. Its owner goes first; a replica that
has done its own takes from the others'. One atomic operation a batch, and no batch is handed out
twice while the store lives.
"""

from collections.abc import Iterator, Sequence

from runner.store import Store, StoreLostError

__all__ = ["shard", "take"]


def shard(pending: Sequence[int], replica: int, replicas: int) -> Sequence[int]:
    """The batches that are a replica's to do first; sizes differ by at most one."""
    return pending[replica::replicas]


def take(store: Store, pending: Sequence[int], replica: int, replicas: int) -> Iterator[int]:
    """The batches that this replica does, each taken when it is asked for.

    A replica without a share of its own takes nothing: it would load the model to snatch a batch
    from one that is about to begin. Without the store it does its own share and ends.
    """
    own = shard(pending, replica, replicas)
    if not own:
        return
    place = -1
    for other in range(replica, replica + replicas):
        batches = own if other == replica else shard(pending, other % replicas, replicas)
        while True:
            try:
                place = store.add(f"shard/{other % replicas}") - 1
            except StoreLostError:
                if other != replica:
                    return
                place += 1
            if place >= len(batches):
                break
            yield batches[place]
