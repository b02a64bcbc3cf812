"""One rank's share: load the model, take batches, render, write; lead a replica or follow."""

import contextlib
import logging
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runner.errors import (
    DiskError,
    ExitCode,
    GaveUpError,
    InterruptedRunError,
    ReplicaLostError,
    RunnerError,
    refusal,
)
from runner.folder.done_images import Done
from runner.folder.journal import Journal, merge
from runner.folder.merged_record import LOST, ReplicaTimes
from runner.folder.paths import OutputFolder
from runner.launch.crashes import Crashes, alone
from runner.launch.devices import set_device
from runner.launch.heartbeat import Pulse
from runner.launch.process_group import replica_group
from runner.launch.replica import Replica
from runner.launch.shards import shard, take, windows
from runner.launch.stop import Stop
from runner.launch.store import Store, StoreLostError
from runner.launch.world import World
from runner.model import files as model
from runner.plan import Fingerprints, Task, wanted_images
from runner.prepare.prepare import Job, Start
from runner.render.self_check import agree, reference
from runner.say import say
from runner.strategies import DataParallel

if TYPE_CHECKING:
    from runner.render.results import Renderer
    from runner.render.writer import Writer

__all__ = ["Rank", "wait_for_all", "work"]

log = logging.getLogger(__name__)

GONE_AFTER_S = 30.0  # a rank without a beat
GONE_AFTER_STOP_S = 5.0  # the same, once this rank was asked to stop


@dataclass(frozen=True, slots=True)
class Rank:
    """What a rank has at hand."""

    job: Job
    folder: OutputFolder
    store: Store
    pulse: Pulse
    world: World
    stop: Stop


def work(rank: Rank, start: Start, on_lost: Callable[[], None]) -> None:
    """Take batches until none is left; a rank without a share loads no model. Where the ranks of a
    replica lose each other, `on_lost` is called before the process ends."""
    world = rank.world
    rank.stop.watch_file(rank.folder.stop_file(rank.job.shard))
    layout = start.manifest.strategy.layout(world)
    if start.pending and world.local_rank == 0:
        _fetch(rank, start)  # for all ranks of this node
    if layout.is_idle or not shard(start.pending, layout.replica, layout.replicas):
        return
    journal = Journal(rank.folder.journals, start.generation, world.rank, start.launch)
    try:
        folder = _wait_for_model(rank)
        first_rank = world.rank - layout.rank_in_replica
        with Replica(layout, rank.store, rank.pulse, first_rank, on_lost) as replica:
            _make_images(rank, start, replica, folder, journal)
    except Exception as error:
        with contextlib.suppress(OSError):
            journal.error(f"rank {world.rank}: {error!r}", traceback.format_exc())
            journal.close()
        raise
    journal.close()


def wait_for_all(rank: Rank) -> list[int]:
    """Rank 0 waits for the other ranks; those that are gone."""
    stop = rank.stop
    try:
        return rank.pulse.wait_for_all(
            lambda: GONE_AFTER_STOP_S if stop.requested else GONE_AFTER_S
        )
    except StoreLostError:
        return []


def _fetch(rank: Rank, start: Start) -> None:
    """One process a node downloads what the cache lacks; the others read it offline."""
    key = f"model/{rank.world.node}"
    try:
        spec = start.manifest.model
        rank.store.set(key, str(model.local_folder(spec) or model.download(spec)))
    except RunnerError as error:
        rank.store.set(key, f"!{error}")
        raise


def _wait_for_model(rank: Rank) -> Path:
    world = rank.world
    found = rank.pulse.wait_for_value(
        f"model/{world.node}", world.rank - world.local_rank, lambda: rank.stop.requested
    )
    if found is None:
        raise InterruptedRunError("stopped before the model was there")
    if found.startswith("!"):
        raise refusal(found[1:], ExitCode.REFUSED)
    return Path(found)


def _make_images(
    rank: Rank, start: Start, replica: Replica, folder: Path, journal: Journal
) -> None:
    manifest, strategy, world = start.manifest, start.manifest.strategy, rank.world
    device = set_device(world, share=strategy.shares_node)
    from runner.render.load import load

    first = start.plan.task(start.plan.batch(start.pending[0])[0])
    is_plain = isinstance(strategy, DataParallel) and not manifest.compile
    checks = rank.job.self_check and not is_plain
    expected = None
    if checks and replica.layout.is_leader:
        expected = reference(manifest, folder, device, rank.stop, world, first)
    with replica_group(world, replica.layout, device, binds_device=not strategy.own_groups):
        link = None if replica.is_alone else replica
        pipeline = start.renderer or load(
            manifest, folder, strategy, device, rank.stop, world, link, start.plan.comes_again
        )
        if checks:
            agree(pipeline, first, expected, replica)
        if replica.layout.is_leader:
            _lead(rank, start, replica, pipeline, journal)
        else:
            _follow(start, replica, pipeline, journal)


def _lead(
    rank: Rank, start: Start, replica: Replica, pipeline: "Renderer", journal: Journal
) -> None:
    """Take batches, render and write them."""
    from runner.render.results import DroppedError
    from runner.render.writer import Writer

    crashes = Crashes(rank.store, rank.world.rank)
    rank.stop.on_request = crashes.clear
    manifest, job = start.manifest, rank.job
    limit = len(start.plan) if job.limit is None else job.limit
    with Writer(
        rank.folder,
        manifest,
        _fingerprints(start),
        journal,
        rank.store,
        start.launch,
        regenerate=job.regenerate,
    ) as writer:
        layout = replica.layout
        mine = take(rank.store, start.pending, layout.replica, layout.replicas)
        mine = replica.lead(_until_stop(rank, start, mine))
        left_over = _until_stop(rank, start, _leftovers(rank, start, replica))
        most, own = manifest.strategy.window, frozenset[int]()
        if most > 1:
            own = frozenset(shard(start.pending, layout.replica, layout.replicas))
        clock = _Clock(start.begun)
        try:
            for numbers in (mine, left_over):
                for window in windows(numbers, most, own):
                    parts = [part for number in window for part in _parts(start, number)]
                    with clock.busy(sum(len(tasks) for tasks, _ in parts)):
                        pipeline.prepare([tasks for tasks, _ in parts])
                        for tasks, degraded in parts:
                            with crashes.during([task.index for task in tasks]):
                                _render(pipeline, tasks, degraded, writer, limit, replica)
        except DroppedError:
            return
        except GaveUpError as error:
            say(str(error), every_rank=True)
            journal.gave_up(str(error))
        finally:
            with contextlib.suppress(OSError):
                journal.worked(clock.times(layout.replica))


class _Clock:
    """How long a replica was busy with batches, and since when it could be."""

    def __init__(self, begun: float) -> None:
        self._start_s = time.monotonic() - begun
        self._busy_s = 0.0
        self._images = 0

    @contextlib.contextmanager
    def busy(self, images: int) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
            self._images += images
        finally:
            self._busy_s += time.monotonic() - start

    def times(self, replica: int) -> ReplicaTimes:
        return ReplicaTimes(replica, self._images, round(self._start_s, 3), round(self._busy_s, 3))


def _render(
    pipeline: "Renderer",
    tasks: list[Task],
    degraded: tuple[str, ...],
    writer: "Writer",
    limit: int,
    replica: Replica,
) -> None:
    """One batch to the writer. Raises DroppedError, GaveUpError, and what ends this rank."""
    from runner.render.results import DroppedError, Failure

    try:
        for result in pipeline.render(tasks, degraded):
            if result.task.index < limit:
                writer.put(result)
    except (DroppedError, GaveUpError, StoreLostError, DiskError):
        raise
    except Exception as error:
        if replica.is_alone:
            raise
        for task in tasks:
            writer.put(Failure(task, LOST, str(error), traceback.format_exc()))
        raise ReplicaLostError(str(error)) from error


def _follow(start: Start, replica: Replica, pipeline: "Renderer", journal: Journal) -> None:
    """Compute along with the leader, who writes. What only this rank knows of a failure, it records
    itself."""
    from runner.render.results import DroppedError

    fingerprints = _fingerprints(start)
    for number in replica.follow():
        for tasks, degraded in _parts(start, number):
            try:
                for _ in pipeline.render(tasks, degraded):
                    pass
            except DroppedError:
                return
            except StoreLostError:
                raise
            except Exception as error:
                for task in tasks:
                    fingerprint, trace = fingerprints.of(task), traceback.format_exc()
                    journal.failed(task.index, fingerprint, LOST, str(error), trace)
                raise ReplicaLostError(str(error)) from error


def _fingerprints(start: Start) -> Fingerprints:
    """Hashes for another thread than rank 0's main one, whose own may be in use."""
    return Fingerprints(start.manifest, model.identity(start.manifest.model))


def _parts(start: Start, number: int) -> Iterator[tuple[list[Task], tuple[str, ...]]]:
    """A batch's tasks, whole, or one by one where a process died in it; and what that makes of
    their record. The same on all ranks."""
    batch = start.plan.batch(number)
    for indices in alone(batch, start.deaths):
        tasks = [start.plan.task(index) for index in indices]
        yield tasks, () if indices == batch else ("batch split",)


def _until_stop(rank: Rank, start: Start, numbers: Iterator[int]) -> Iterator[int]:
    for number in numbers:
        if rank.stop.requested or _too_many_failures(rank.store, start.manifest.max_failures):
            return
        yield number


def _too_many_failures(store: Store, most: int | None) -> bool:
    if most is None:
        return False
    with contextlib.suppress(StoreLostError):
        return store.add("failed", 0) >= most
    return False


def _leftovers(rank: Rank, start: Start, replica: Replica) -> Iterator[int]:
    """Rank 0 waits for the others and then takes the batches that dead ones had begun."""
    if rank.world.rank or not replica.is_alone or not wait_for_all(rank):
        return
    plan = start.plan
    done = merge(rank.folder.journals, len(plan)).done
    wanted = wanted_images(plan, rank.job.limit, rank.job.shard)
    for number in start.pending:
        tasks = [plan.task(index) for index in plan.batch(number) if wanted[index]]
        if any(not _is_made(task, start.fingerprints, done) for task in tasks):
            yield number


def _is_made(task: Task, fingerprints: Fingerprints, done: Mapping[int, Done]) -> bool:
    known = done.get(task.index)
    return known is not None and known.fingerprint == fingerprints.of(task)
