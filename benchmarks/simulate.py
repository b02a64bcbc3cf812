"""How long a job takes on many unequal replicas: static shards, helping (runner.shard), the ideal.

    python benchmarks/simulate.py [--replicas 1024] [--images 1000] [--slow 0.1] [--slowness 4]

A discrete-event simulation: each replica asks `runner.shard.take`, the real code, for its next
batch, and is busy with it for a time that depends on its speed and a little chance. Replicas may
die (what they had begun is left to one more launch), and the job may be preempted (all batches
under way are lost, all replicas start anew). Times are in seconds; an image takes 1 second on a
normal replica. Prints a table and writes JSON.
"""

import argparse
import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Sequence

import arguments

from runner.launch.shards import open_shards, shard, take
from runner.launch.store import LocalStore

START_S = 20.0  # imports and weights, paid by every replica at every start
Take = Callable[[Sequence[int], int, int, LocalStore], Iterator[int]]


def static(pending: Sequence[int], replica: int, replicas: int, _: LocalStore) -> Iterator[int]:
    return iter(shard(pending, replica, replicas))


def helping(
    pending: Sequence[int], replica: int, replicas: int, store: LocalStore
) -> Iterator[int]:
    return take(store, pending, replica, replicas)


def makespan(
    way: Take, seconds: Sequence[float], batches: int, deaths: float, preemptions: Sequence[float]
) -> float:
    """When the last batch is done. `seconds` a batch of each replica; `deaths`: their share."""
    chance = random.Random(0)
    pending: Sequence[int] = range(batches)
    now = 0.0
    for end in itertools.chain(preemptions, itertools.repeat(float("inf"))):
        now, pending = _launch(way, seconds, pending, deaths, chance, now, end)
        if not pending:
            break
    return now


def _launch(
    way: Take,
    seconds: Sequence[float],
    pending: Sequence[int],
    deaths: float,
    chance: random.Random,
    start: float,
    end: float,
) -> tuple[float, Sequence[int]]:
    """One launch, until all is done or it is preempted: when, and the batches that are left."""
    replicas, store = len(seconds), LocalStore()
    open_shards(store, replicas)
    dies_after = [
        chance.randrange(1, len(pending) // replicas + 2) if chance.random() < deaths else -1
        for _ in seconds
    ]
    takers = [way(pending, replica, replicas, store) for replica in range(replicas)]
    events = [(start + START_S, replica, -1) for replica in range(replicas)]
    left, last, now = set(pending), start, start
    while events:
        now, replica, batch = heapq.heappop(events)
        if now > end:
            return end, sorted(left)
        if batch >= 0:
            left.discard(batch)
            last = now
            dies_after[replica] -= 1
        following = next(takers[replica], None)
        if following is not None and dies_after[replica] != 0:
            took = seconds[replica] * chance.uniform(0.9, 1.1)
            heapq.heappush(events, (now + took, replica, following))
    # What the dead had begun (and, with static shards, had not begun): one more launch.
    return (last, ()) if not left else (now, sorted(left))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=arguments.whole(1), default=1024)
    count, share = arguments.whole(1), arguments.real(0, 1)
    parser.add_argument("--images", type=count, default=1000, help="per replica")
    parser.add_argument("--slow", type=share, default=0.1, help="share of slow replicas")
    parser.add_argument("--slowness", type=arguments.real(1, 1000), default=4.0)
    parser.add_argument("--json", type=arguments.new_file)
    options = parser.parse_args()
    chance = random.Random(1)
    batches = options.replicas * options.images
    seconds = [
        options.slowness if chance.random() < options.slow else 1.0 for _ in range(options.replicas)
    ]
    ideal = START_S + batches / sum(1 / a_batch for a_batch in seconds)
    rows = []
    for name, deaths, preemptions in (
        ("all live", 0.0, ()),
        ("1 % die", 0.01, ()),
        ("preempted twice", 0.0, (ideal / 3, 2 * ideal / 3)),
    ):
        best = ideal + START_S * len(preemptions)
        for way in (static, helping):
            end = makespan(way, seconds, batches, deaths, preemptions)
            rows.append({"faults": name, "way": way.__name__, "s": end, "of_ideal": end / best})
    print(f"{options.replicas} replicas, {batches} images, ideal {ideal:.0f} s")
    print(f"{'faults':<16} {'way':<8} {'makespan s':>10} {'of the ideal':>12}")
    for row in rows:
        print(f"{row['faults']:<16} {row['way']:<8} {row['s']:>10.0f} {row['of_ideal']:>12.3f}")
    arguments.write_json(options.json, rows)


if __name__ == "__main__":
    main()
