"""What the ranks of a replica agree on, where a follower is ahead of its device."""

import threading

from runner.launch.heartbeat import Heartbeat
from runner.launch.layout import Layout
from runner.launch.replica import Replica
from runner.launch.store import LocalStore


def _rank(store: LocalStore, rank: int) -> Replica:
    layout = Layout(replicas=1, replica=0, ranks_per_replica=2, rank_in_replica=rank)
    return Replica(layout, store, Heartbeat(store, rank, 1), 0, lambda: None)


def test_a_follower_that_is_ahead_hears_of_a_stop() -> None:
    """It has queued its kernels before the leader had decided anything."""
    store = LocalStore()
    leader, follower = _rank(store, 0), _rank(store, 1)
    found: list[bool] = []
    ahead = threading.Thread(
        target=lambda: found.extend(follower.drops(step, is_too_late=False) for step in range(2)),
        daemon=True,
    )
    ahead.start()
    ahead.join(0.5)  # as far as it gets
    assert not leader.drops(0, is_too_late=True)
    ahead.join(30)
    assert found == [False, True]
    assert leader.drops(1, is_too_late=True)


def test_a_follower_that_is_behind_hears_of_a_stop_too() -> None:
    store = LocalStore()
    leader, follower = _rank(store, 0), _rank(store, 1)
    assert [leader.drops(step, is_too_late=step >= 2) for step in range(4)] == [False] * 3 + [True]
    assert [follower.drops(step, is_too_late=True) for step in range(4)] == [False] * 3 + [True]
