"""Properties of shards, journals and resume, for whatever hypothesis thinks of."""

import json
import os
import tempfile
from array import array
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.jobs import print_of

from runner.folder.journal import Journal, merge
from runner.folder.survey import pending_batches
from runner.launch.crashes import quarantined, split_batch
from runner.launch.shards import open_shards, shard, take
from runner.launch.store import LocalStore, StoreLostError
from runner.plan import wanted_images

numbers = st.lists(st.integers(0, 10**6), unique=True, max_size=60)


class _LostAfter(LocalStore):
    """A store that is lost after some operations, from when the shards are open."""

    left = 10**9

    def __init__(self, replicas: int, operations: int) -> None:
        super().__init__()
        open_shards(self, replicas)
        self.left = operations

    def add(self, key: str, amount: int = 1) -> int:
        self.left -= 1
        if self.left < 0:
            raise StoreLostError
        return super().add(key, amount)


@given(numbers, st.integers(1, 9))
def test_shards_are_a_partition_of_even_size(pending: list[int], replicas: int) -> None:
    shards = [shard(pending, replica, replicas) for replica in range(replicas)]
    assert sorted(number for one in shards for number in one) == sorted(pending)
    sizes = [len(one) for one in shards]
    assert max(sizes) - min(sizes) <= 1


@given(numbers, st.integers(1, 6), st.data())
def test_every_batch_is_taken_once_in_any_order_of_steps(
    pending: list[int], replicas: int, data: st.DataObject
) -> None:
    store = LocalStore()
    open_shards(store, replicas)
    takers = {r: take(store, pending, r, replicas) for r in range(replicas)}
    taken: list[int] = []
    while takers:
        replica = data.draw(st.sampled_from(sorted(takers)))
        number = next(takers[replica], None)
        if number is None:
            del takers[replica]
        else:
            taken.append(number)
    assert sorted(taken) == sorted(pending)


@given(numbers, st.integers(1, 6), st.integers(0, 40))
def test_a_lost_store_loses_no_batch(pending: list[int], replicas: int, operations: int) -> None:
    """Each replica finishes its own share; a batch may be taken twice, never left."""
    taken: list[int] = []
    for replica in range(replicas):
        taken += take(_LostAfter(replicas, operations), pending, replica, replicas)
    assert set(taken) == set(pending)


events = st.lists(
    st.tuples(
        st.integers(1, 3),  # generation
        st.integers(0, 2),  # rank
        st.sampled_from(["done", "failed"]),
        st.integers(0, 5),  # image
    ),
    max_size=30,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(events, st.integers(0, 400))
def test_a_merge_says_the_last_launch_and_survives_a_tear(
    told: list[tuple[int, int, str, int]], tear: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        journals: dict[tuple[int, int], Journal] = {}
        for generation, rank, kind, index in told:
            key = (generation, rank)
            journal = journals.setdefault(key, Journal(folder, generation, rank, "5f3a90c2"))
            if kind == "done":
                journal.done(index, print_of(generation), 1, 2, {})
            else:
                journal.failed(index, print_of(generation), "error", "e", "")
        record = merge(folder, 6)
        for index in range(6):
            latest = max((g for g, _, _, i in told if i == index), default=0)
            kinds = {k for g, _, k, i in told if (g, i) == (latest, index)}
            if "done" in kinds:
                assert record.done[index].fingerprint == print_of(latest)
                assert index not in record.failed
            elif kinds:
                assert record.failed[index].fingerprint == print_of(latest)
        if journals:
            torn = min(journals.values(), key=lambda journal: journal.path).path
            os.truncate(torn, min(tear, torn.stat().st_size))
            again = merge(folder, 6)
            assert set(again.done) <= set(record.done)
            assert torn.name in again.unclean


fragments = st.sampled_from(
    ['"', "{", "}", ",", "0", "1e5", "-", "\\", '"seconds":0.5}', '"seconds":2', '"made":{', "\x00"]
)
made = st.dictionaries(
    st.sampled_from(["width", "seconds", "truncated", 'a"b']),
    st.floats() | st.integers() | fragments | st.dictionaries(st.just("seconds"), st.floats()),
)


def with_blanks(line: bytes) -> bytes:
    """The same JSON in a form in which the seconds are not looked for at the end."""
    try:
        return json.dumps(json.loads(line)).encode()
    except ValueError:
        return line


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=300)
@given(made, st.integers(0, 7), st.lists(fragments), st.integers(0, 200), st.integers(0, 9))
def test_a_line_in_its_usual_form_says_what_any_json_says(
    made: dict[str, object], index: int, instead: list[str], place: int, length: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        journal = Journal(folder, 1, 0, "5f3a90c2")
        journal.done(index, print_of(index), index, 3, {**made, "seconds": 0.25})
        journal.done(index, print_of(index), index, 3, made)
        before, after = journal.path.read_bytes().splitlines()
        torn = before[:place] + "".join(instead).encode() + before[place + length :]
        said = []
        for form in (bytes, with_blanks):
            lines = (before, after, torn)
            journal.path.write_bytes(b"".join(form(line) + b"\n" for line in lines))
            record = merge(folder, 6)
            said.append((repr(dict(record.done)), record.lines))
        assert said[0] == said[1]


class _Plan:
    """What the functions of a resume need of a plan: batches of a size, in index order."""

    def __init__(self, images: int, size: int) -> None:
        self.images, self.size = images, size
        self.batch_count = -(-images // size)

    def __len__(self) -> int:
        return self.images

    def batch(self, number: int) -> tuple[int, ...]:
        return tuple(range(number * self.size, min(self.images, (number + 1) * self.size)))


@given(st.integers(1, 50), st.integers(1, 7), st.integers(1, 5), st.data())
def test_what_array_jobs_do_is_together_what_is_missing(
    images: int, size: int, parts: int, data: st.DataObject
) -> None:
    plan = _Plan(images, size)
    todo = bytearray(data.draw(st.lists(st.booleans(), min_size=images, max_size=images)))
    limit = data.draw(st.none() | st.integers(1, images))
    found: list[array[int]] = []
    for part in range(1, parts + 1):
        asked = wanted_images(plan, limit, (part, parts))  # type: ignore[arg-type]
        found.append(pending_batches(plan, todo, asked))  # type: ignore[arg-type]
    together = [number for one in found for number in one]
    assert len(together) == len(set(together))
    made = {index for number in together for index in plan.batch(number)}
    wanted = {i for i in range(images) if todo[i] and (limit is None or i < limit)}
    assert wanted <= made


@given(
    st.lists(st.integers(0, 20), unique=True, min_size=1),
    st.dictionaries(st.integers(0, 20), st.integers(1, 3)),
)
def test_a_batch_with_a_death_in_it_is_made_one_by_one(
    batch: list[int], deaths: dict[int, int]
) -> None:
    groups = split_batch(batch, deaths)
    left = [index for group in groups for index in group]
    assert left == [index for index in batch if index not in quarantined(deaths)]
    if set(batch) & set(deaths):
        assert all(len(group) == 1 for group in groups)
    else:
        assert groups == [tuple(batch)]
