"""Which replica makes which batch: exact, without padding, each once."""

from hypothesis import given, settings
from hypothesis import strategies as st

from runner.launch.shards import open_shards, shard, take, windows
from runner.launch.store import LocalStore, StoreLostError


# Case 9.
def test_shards_are_an_exact_partition() -> None:
    for total in range(41):
        for replicas in range(1, 10):
            shards = [shard(range(total), replica, replicas) for replica in range(replicas)]
            assert sorted(b for part in shards for b in part) == list(range(total))
            sizes = [len(part) for part in shards]
            assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(1, 8), st.randoms())
def test_every_batch_is_taken_once_in_any_interleaving(total, replicas, random) -> None:  # type: ignore[no-untyped-def]
    store = LocalStore()
    open_shards(store, replicas)
    running = {r: take(store, range(total), r, replicas) for r in range(replicas)}
    taken: list[int] = []
    while running:
        replica = random.choice(sorted(running))
        batch = next(running[replica], None)
        if batch is None:
            del running[replica]
        else:
            taken.append(batch)
    assert sorted(taken) == list(range(total))


# Case 69: the fast replica helps the slow one.
def test_a_replica_that_is_done_takes_from_the_others() -> None:
    store = LocalStore()
    open_shards(store, 2)
    slow = take(store, range(12), 1, 2)
    first = next(slow)
    assert list(take(store, range(12), 0, 2)) == [0, 2, 4, 6, 8, 10, 3, 5, 7, 9, 11]
    assert first == 1
    assert list(slow) == []


# Case 10: a spare replica does not snatch what its neighbour is about to begin.
def test_a_replica_without_a_share_takes_nothing() -> None:
    store = LocalStore()
    open_shards(store, 4)
    assert list(take(store, range(1), 3, 4)) == []
    assert list(take(store, range(1), 0, 4)) == [0]


def test_helpers_spread_over_those_who_have_most_left() -> None:
    store = LocalStore()
    open_shards(store, 8)
    for _ in range(
        90
    ):  # replicas 1 to 7 have done theirs but for 10 batches of 100; 0 has all left
        for other in range(1, 8):
            store.add(f"shard/{other}")
    helped = [batch % 8 for batch in list(take(store, range(800), 1, 8))[10:]]
    assert sorted(set(helped)) == [0, *range(2, 8)]
    assert helped.count(0) == 100


class Losing(LocalStore):
    """A store that is gone after so many operations."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def add(self, key: str, amount: int = 1) -> int:
        self.left -= 1
        if self.left < 0:
            raise StoreLostError
        return super().add(key, amount)


def test_without_the_store_a_replica_does_its_own_share_and_ends() -> None:
    for left in range(9):
        losing = Losing(left + 2)
        open_shards(losing, 2)
        taken = list(take(losing, range(10), 1, 2))
        assert taken[:5] == [1, 3, 5, 7, 9]
        # Its own five and their end take six operations; what is left may help.
        assert taken[5:] == [0, 2][: max(0, left - 6)]


def test_windows_end_with_the_own_share() -> None:
    assert list(windows([0, 2, 4, 1, 3], 2, {0, 2, 4})) == [[0, 2], [4], [1, 3]]
    assert list(windows([5, 6], 3, ())) == [[5, 6]]
    asked: list[int] = []
    numbers = (asked.append(number) or number for number in range(3))
    assert next(windows(numbers, 1, ())) == [0]
    assert asked == [0]  # the next is not taken before it is asked for
