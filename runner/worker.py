"""One rank's share: load the model, take batches, render and write them; lead or follow."""

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runner.errors import (
    ExitCode,
    GaveUpError,
    InterruptedRunError,
    ReplicaLostError,
    RunnerError,
    refusal,
)
from runner.folder.journal import Journal, merge
from runner.folder.merged_record import LOST, Done, Work
from runner.folder.survey import asked_images
from runner.launch.crashes import Crashes, alone
from runner.launch.devices import set_device
from runner.launch.process_group import replica_group
from runner.launch.replica import Replica
from runner.launch.shards import shard, take, windows
from runner.launch.store import Store, StoreLostError
from runner.model import files as model
from runner.plan import Fingerprints, Task
from runner.prepare.assignment import Assignment
from runner.prepare.rank import Rank
from runner.render.results import DroppedError, Failure, Renderer
from runner.render.self_check import agree, reference
from runner.render.writer import Writer
from runner.say import say
from runner.strategies import DataParallel

if TYPE_CHECKING:
    import torch

__all__ = ["render_and_write_batches", "wait_for_all"]

GONE_AFTER_S = 30.0  # a rank without a heartbeat
GONE_AFTER_STOP_S = 5.0  # the same, once this rank was asked to stop


@dataclass(frozen=True, slots=True)
class _Part:
    """Tasks of one batch that are rendered together: all of them, or one where a process died."""

    tasks: list[Task]
    degraded: tuple[str, ...]  # what that makes of their record


def render_and_write_batches(
    rank: Rank,
    assignment: Assignment,
    renderer: Renderer | None = None,
    on_lost: Callable[[], None] = lambda: None,
) -> None:
    """Take batches, render and write them, until none is left. A rank without a share loads no
    model; `renderer` is there where it is loaded already. Where the ranks of a replica lose each
    other, `on_lost` is called before the process ends."""
    world = rank.world
    rank.stop.watch_file(rank.folder.stop_file(rank.job.shard))
    layout = assignment.manifest.strategy.layout(world)
    if assignment.pending and world.local_rank == 0:
        _fetch_model(rank, assignment)  # for all ranks of this node
    if layout.is_idle or not shard(assignment.pending, layout.replica, layout.replicas):
        return
    journal = Journal(rank.folder.journals, assignment.generation, world.rank, assignment.launch)
    first_rank = world.rank - layout.rank_in_replica
    try:
        folder = _wait_for_model(rank)
        with Replica(layout, rank.store, rank.pulse, first_rank, on_lost) as replica:
            _make_images(rank, assignment, replica, folder, journal, renderer)
    except Exception as error:
        with contextlib.suppress(OSError):
            journal.error(f"rank {world.rank}: {error!r}", traceback.format_exc())
            journal.close()
        raise
    journal.close()


def wait_for_all(rank: Rank) -> list[int]:
    """Rank 0 waits for the other ranks. Returns those that are gone."""
    stop = rank.stop
    try:
        return rank.pulse.wait_for_all(
            lambda: GONE_AFTER_STOP_S if stop.requested else GONE_AFTER_S
        )
    except StoreLostError:
        return []


def _fetch_model(rank: Rank, assignment: Assignment) -> None:
    """One process a node downloads what the cache lacks; the others read it offline."""
    key = f"model/{rank.world.node}"
    try:
        spec = assignment.manifest.model
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
    rank: Rank,
    assignment: Assignment,
    replica: Replica,
    folder: Path,
    journal: Journal,
    renderer: Renderer | None,
) -> None:
    """Load the model where it is not, and lead or follow."""
    strategy = assignment.manifest.strategy
    device = set_device(rank.world, share=strategy.shares_node)
    # Before the process group is there: the reference is made by one rank alone.
    expected = _reference(rank, assignment, replica, folder, device)
    group = replica_group(rank.world, replica.layout, device, binds_device=not strategy.own_groups)
    with group:
        if renderer is None:
            renderer = _load(rank, assignment, replica, folder, device)
        if _is_checked(rank, assignment):
            agree(renderer, _first_task(assignment), expected, replica)
        if replica.layout.is_leader:
            _lead(rank, assignment, replica, renderer, journal)
        else:
            _follow(assignment, replica, renderer, journal)


def _load(
    rank: Rank, assignment: Assignment, replica: Replica, folder: Path, device: "torch.device"
) -> Renderer:
    from runner.render.load import load

    return load(
        assignment.manifest,
        folder,
        device=device,
        world=rank.world,
        stop=rank.stop,
        replica=None if replica.is_alone else replica,
        comes_again=assignment.plan.comes_again,
    )


def _is_checked(rank: Rank, assignment: Assignment) -> bool:
    """Whether the first image is compared with one rank's own: --self-check, where that could
    differ."""
    manifest = assignment.manifest
    is_plain = isinstance(manifest.strategy, DataParallel) and not manifest.compile
    return rank.job.self_check and not is_plain


def _first_task(assignment: Assignment) -> Task:
    plan = assignment.plan
    return plan.task(plan.batch(assignment.pending[0])[0])


def _reference(
    rank: Rank, assignment: Assignment, replica: Replica, folder: Path, device: "torch.device"
) -> "torch.Tensor | None":
    """The first image made by this rank alone, on the leader of a replica that is checked."""
    if not (_is_checked(rank, assignment) and replica.layout.is_leader):
        return None
    task = _first_task(assignment)
    return reference(assignment.manifest, folder, device, rank.stop, rank.world, task)


def _lead(
    rank: Rank, assignment: Assignment, replica: Replica, renderer: Renderer, journal: Journal
) -> None:
    """Take batches, render and write them."""
    crashes = Crashes(rank.store, rank.world.rank)
    rank.stop.on_request = crashes.clear
    clock = _Clock(assignment.begun)
    writer = Writer(
        rank.folder,
        assignment.manifest,
        _own_fingerprints(assignment),
        journal,
        rank.store,
        assignment.launch,
        regenerate=rank.job.regenerate,
    )
    limit = len(assignment.plan) if rank.job.limit is None else rank.job.limit
    with writer, _worked(journal, clock, replica.layout.replica):
        try:
            for window in _windows(rank, assignment, replica):
                parts = [part for number in window for part in _parts(assignment, number)]
                with clock.busy(sum(len(part.tasks) for part in parts)):
                    renderer.prepare([part.tasks for part in parts])
                    _render_and_write(parts, renderer, writer, limit, replica, crashes)
        except DroppedError:
            return
        except GaveUpError as error:
            say(str(error), every_rank=True)
            journal.gave_up(str(error))


def _windows(rank: Rank, assignment: Assignment, replica: Replica) -> Iterator[list[int]]:
    """The batches of this replica, then what dead ones left over; as many at once as the strategy
    begins together."""
    layout, pending = replica.layout, assignment.pending
    mine = take(rank.store, pending, layout.replica, layout.replicas)
    mine = replica.lead(_until_stop(rank, assignment, mine))
    left_over = _until_stop(rank, assignment, _leftovers(rank, assignment, replica))
    most, own = assignment.manifest.strategy.window, frozenset[int]()
    if most > 1:
        own = frozenset(shard(pending, layout.replica, layout.replicas))
    yield from windows(mine, most, own)
    yield from windows(left_over, most, own)


def _render_and_write(
    parts: Sequence[_Part],
    renderer: Renderer,
    writer: Writer,
    limit: int,
    replica: Replica,
    crashes: Crashes,
) -> None:
    """The parts, one after another, to the writer. Raises DroppedError, GaveUpError, and what ends
    this rank; what was finished before is written."""
    for part in parts:
        with crashes.during([task.index for task in part.tasks]):
            rendered = renderer.render(part.tasks, part.degraded)
            for result in rendered.results:
                if result.task.index < limit:
                    writer.put(result)
            if rendered.error is not None:
                raise _for_all(rendered.error, part, writer, replica)


def _for_all(error: Exception, part: _Part, writer: Writer, replica: Replica) -> Exception:
    """What broke one rank of a replica ends all of its ranks, and is recorded for the images."""
    if replica.is_alone or isinstance(error, DroppedError | GaveUpError | StoreLostError):
        return error
    trace = "".join(traceback.format_exception(error))
    for task in part.tasks:
        writer.put(Failure(task, LOST, str(error), trace))
    lost = ReplicaLostError(str(error))
    lost.__cause__ = error
    return lost


def _follow(assignment: Assignment, replica: Replica, renderer: Renderer, journal: Journal) -> None:
    """Compute along with the leader, who writes. What only this rank knows of a failure, it records
    itself."""
    for number in replica.follow():
        for part in _parts(assignment, number):
            error = renderer.render(part.tasks, part.degraded).error
            if error is None:
                continue
            if isinstance(error, DroppedError | GaveUpError):
                return
            if isinstance(error, StoreLostError):
                raise error
            _record_lost(assignment, part, error, journal)
            raise ReplicaLostError(str(error)) from error


def _record_lost(assignment: Assignment, part: _Part, error: Exception, journal: Journal) -> None:
    fingerprints, trace = _own_fingerprints(assignment), "".join(traceback.format_exception(error))
    for task in part.tasks:
        journal.failed(task.index, fingerprints.of(task), LOST, str(error), trace)


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

    def work(self, replica: int) -> Work:
        return Work(replica, self._images, round(self._start_s, 3), round(self._busy_s, 3))


@contextlib.contextmanager
def _worked(journal: Journal, clock: _Clock, replica: int) -> Iterator[None]:
    """Record at the end how busy the replica was, however it ends."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            journal.worked(clock.work(replica))


def _own_fingerprints(assignment: Assignment) -> Fingerprints:
    """Hashes for the writer's thread: the assignment's own may be in use on the main one."""
    return Fingerprints(assignment.manifest, model.identity(assignment.manifest.model))


def _parts(assignment: Assignment, number: int) -> Iterator[_Part]:
    """A batch's tasks, whole, or one by one where a process died in it. The same on all ranks."""
    plan = assignment.plan
    batch = plan.batch(number)
    for indices in alone(batch, assignment.deaths):
        tasks = [plan.task(index) for index in indices]
        yield _Part(tasks, () if indices == batch else ("batch split",))


def _until_stop(rank: Rank, assignment: Assignment, numbers: Iterator[int]) -> Iterator[int]:
    most = assignment.manifest.max_failures
    for number in numbers:
        if rank.stop.requested or _too_many_failures(rank.store, most):
            return
        yield number


def _too_many_failures(store: Store, most: int | None) -> bool:
    if most is None:
        return False
    with contextlib.suppress(StoreLostError):
        return store.add("failed", 0) >= most
    return False


def _leftovers(rank: Rank, assignment: Assignment, replica: Replica) -> Iterator[int]:
    """Rank 0 waits for the others, then takes the batches that dead ones had begun."""
    if rank.world.rank or not replica.is_alone or not wait_for_all(rank):
        return
    plan = assignment.plan
    done = merge(rank.folder.journals, len(plan)).done
    wanted = asked_images(plan, rank.job.limit, rank.job.shard)
    for number in assignment.pending:
        tasks = [plan.task(index) for index in plan.batch(number) if wanted[index]]
        if any(not _is_made(task, assignment.fingerprints, done) for task in tasks):
            yield number


def _is_made(task: Task, fingerprints: Fingerprints, done: Mapping[int, Done]) -> bool:
    known = done.get(task.index)
    return known is not None and known.fingerprint == fingerprints.of(task)
