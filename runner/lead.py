"""Lead a replica or follow: the loop that takes a batch, renders it and writes it."""

import contextlib
import copy
import time
import traceback
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from runner.errors import GaveUpError, ReplicaLostError
from runner.folder import files
from runner.folder.journal import Journal, merge
from runner.folder.merged_record import LOST, MergedRecord
from runner.launch.broken import is_first_whole
from runner.launch.crashes import Crashes, split_batch
from runner.launch.failures import Failures
from runner.launch.pulse import OwnPulse
from runner.launch.replica import Replica
from runner.launch.shards import likely_next, shard, take, windows
from runner.launch.store import LocalStore, Store, StoreLostError
from runner.plan import Fingerprints, Task, wanted_images
from runner.prepare.assignment import Assignment
from runner.prepare.rank import Rank
from runner.render.results import DroppedError, Failure, Renderer
from runner.render.writer import Writer
from runner.say import say

__all__ = ["follow", "lead", "wait_for_all"]

GONE_AFTER_S = 30.0  # a rank without a heartbeat
GONE_AFTER_STOP_S = 5.0  # the same, once this rank was asked to stop


@dataclass(frozen=True, slots=True)
class _Part:
    """Tasks of one batch that are rendered together: all of them, or one where a process died."""

    tasks: list[Task]
    degraded: tuple[str, ...]  # what that makes of their record


def wait_for_all(rank: Rank) -> None:
    """Rank 0 waits until the other ranks have ended or are gone."""
    with contextlib.suppress(StoreLostError):
        wait_for(rank, but=())


def wait_for(rank: Rank, but: Container[int]) -> None:
    """Wait until all ranks but these have ended or are gone. Raises StoreLostError."""
    stop = rank.stop
    rank.heartbeat.wait_for_others(
        lambda: GONE_AFTER_STOP_S if stop.requested else GONE_AFTER_S, but
    )


def lead(
    rank: Rank, assignment: Assignment, replica: Replica, renderer: Renderer, journal: Journal
) -> None:
    """Take batches, render and write them."""
    crashes = _crashes(rank, assignment)
    rank.stop.on_request = crashes.clear
    pulse = rank.heartbeat.pulse
    pulse.works_from(time.monotonic() - assignment.begun)
    writer = Writer(
        rank.folder,
        assignment.manifest,
        _own_fingerprints(assignment),
        journal,
        rank.tally,
        assignment.launch,
        rank.owned(assignment.launch).check,
        regenerate=rank.job.regenerate,
    )
    most = assignment.manifest.max_failures
    failures = Failures(rank.store, len(assignment.plan), is_watching=most is None)
    leader = _Leader(rank, assignment, replica, renderer, writer, crashes, failures)
    with _worked(journal, pulse), crashes, writer:
        try:
            for window in leader.windows():
                leader.render_and_write(window)
        except DroppedError:
            return
        except GaveUpError as error:
            if not error.is_printed:
                say(str(error), every_rank=True)
            journal.gave_up(str(error))


@dataclass(frozen=True, slots=True)
class _Leader:
    """The rank of a replica that takes batches and writes images."""

    rank: Rank
    assignment: Assignment
    replica: Replica
    renderer: Renderer
    writer: Writer
    crashes: Crashes
    failures: Failures

    def windows(self) -> Iterator[list[int]]:
        """The batches of this replica, then what dead ones left over; as many at once as the
        strategy begins together."""
        layout, pending = self.replica.layout, self.assignment.pending
        mine = take(self.rank.store, pending, layout.replica, layout.replicas)
        left_over = _leftovers(self.rank, self.assignment, self.replica)
        most, own = self.assignment.manifest.strategy.window, frozenset[int]()
        if most > 1:
            own = frozenset(shard(pending, layout.replica, layout.replicas))
        with self.replica.batches_broadcast() as broadcast:
            for numbers in (mine, left_over):
                yield from windows(broadcast(self._until_stop(numbers)), most, own)

    def _until_stop(self, numbers: Iterator[int]) -> Iterator[int]:
        most = self.assignment.manifest.max_failures
        for number in numbers:
            if self.rank.stop.requested or _too_many_failures(self.rank.store, most):
                return
            yield number

    def render_and_write(self, window: Sequence[int]) -> None:
        """Batches, one after another, to the writer. Raises DroppedError, GaveUpError, and what
        ends this rank."""
        parts = [part for number in window for part in _parts(self.assignment, number)]
        later = _later_tasks(self.assignment, parts, window[-1], self.replica)
        with self.rank.heartbeat.pulse.busy():
            self.renderer.prepare([part.tasks for part in parts])
            for part, then in zip(parts, later, strict=True):
                self.renderer.expect(part.tasks, then)
                self._render_part(part)
                self._end_on_same_error()

    def _end_on_same_error(self) -> None:
        """Raises GaveUpError, which rank 0 prints as the last line of the job."""
        if why := self.failures.same_error():
            error = GaveUpError(why)
            error.is_printed = True
            raise error

    def _render_part(self, part: _Part) -> None:
        """What was finished before an error is written."""
        limit = self.rank.job.limit
        with self.crashes.during([task.index for task in part.tasks]):
            rendered = self.renderer.render(part.tasks, part.degraded)
            for result in rendered.results:
                if limit is None or result.task.index < limit:
                    self.writer.put(result)
                self.failures.note(result.error if isinstance(result, Failure) else None)
            error = self._for_all(rendered.error, part) if rendered.error else None
            if error is not None and not isinstance(error, DroppedError):
                raise error
        if error is not None:
            raise error  # a stop: the images are not to blame

    def _for_all(self, error: Exception, part: _Part) -> Exception:
        """What breaks one rank of a replica ends all of its ranks, and is recorded for the images
        of the batch."""
        only_ours = DroppedError | GaveUpError | StoreLostError
        if self.replica.is_alone or isinstance(error, only_ours):
            return error
        trace = "".join(traceback.format_exception(error))
        for task in part.tasks:
            self.writer.put(Failure(task, LOST, str(error), trace))
        lost = ReplicaLostError(str(error))
        lost.__cause__ = error
        return lost


def follow(
    rank: Rank, assignment: Assignment, replica: Replica, renderer: Renderer, journal: Journal
) -> None:
    """Compute along with the leader, who writes. What only this rank knows of a failure, it records
    itself."""
    pulse = rank.heartbeat.pulse
    pulse.works_from(time.monotonic() - assignment.begun)
    with _worked(journal, pulse), _crashes(rank, assignment) as crashes:
        rank.stop.on_request = crashes.clear
        numbers = replica.receive_batches()
        for number, part in ((n, part) for n in numbers for part in _parts(assignment, n)):
            renderer.expect(part.tasks, *_later_tasks(assignment, [part], number, replica))
            with crashes.during([task.index for task in part.tasks]), pulse.busy():
                error = renderer.render(part.tasks, part.degraded).error
            if isinstance(error, DroppedError | GaveUpError):
                return
            _raise_lost(rank, assignment, part, error, journal)


def _raise_lost(
    rank: Rank, assignment: Assignment, part: _Part, error: Exception | None, journal: Journal
) -> None:
    """On a follower: raises what ends the replica, if anything does, and records it."""
    if error is None:
        return
    if isinstance(error, StoreLostError):
        raise error
    fingerprints, trace = _own_fingerprints(assignment), "".join(traceback.format_exception(error))
    fault = rank.tally.fault()
    for task in part.tasks:
        journal.failed(task.index, fingerprints.of(task), LOST, str(error), trace, fault)
    raise ReplicaLostError(str(error)) from error


def _crashes(rank: Rank, assignment: Assignment) -> Crashes:
    trace = rank.folder.own / f"crash-{rank.world.rank}"
    is_restarted = rank.world.max_restarts > 0
    path = files.temporary_path(trace, assignment.launch) if is_restarted else None
    return Crashes(rank.store, rank.world.rank, path)


@contextlib.contextmanager
def _worked(journal: Journal, pulse: OwnPulse) -> Iterator[None]:
    """Record at the end what this rank did, however it ends."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            journal.worked(pulse.now())


def _own_fingerprints(assignment: Assignment) -> Fingerprints:
    """Hashes for the writer's thread: the assignment's own may be in use on the main one."""
    return copy.copy(assignment.fingerprints)


def _parts(assignment: Assignment, number: int) -> Iterator[_Part]:
    """A batch's tasks, whole, or one by one where a process died in it. The same on all ranks."""
    plan = assignment.plan
    batch = plan.batch(number)
    for indices in split_batch(batch, assignment.deaths):
        tasks = [plan.task(index) for index in indices]
        yield _Part(tasks, () if indices == batch else ("batch split",))


def _later_tasks(
    assignment: Assignment, parts: Sequence[_Part], number: int, replica: Replica
) -> list[list[Task]]:
    """What is likely to be rendered after each of these parts, the last of which is of batch
    `number`. Of interest only where input images are read ahead."""
    if assignment.manifest.inputs is None:
        return [[] for _ in parts]
    after = likely_next(assignment.pending, number, replica.layout.replicas)
    last = [] if after is None else next(_parts(assignment, after)).tasks
    return [*(part.tasks for part in parts[1:]), last]


def _too_many_failures(store: Store, most: int | None) -> bool:
    if most is None:
        return False
    with contextlib.suppress(StoreLostError):
        return store.add("failed", 0) >= most
    return False


def _leftovers(rank: Rank, assignment: Assignment, replica: Replica) -> Iterator[int]:
    """The first replica that works waits for the others. Then it makes what no journal has: batches
    that dead ones had begun, or that a counter in the store gave to nobody. Counters only share out
    the work."""
    if isinstance(rank.store, LocalStore):
        return
    with contextlib.suppress(StoreLostError):
        if not is_first_whole(rank.store, replica.layout.replica):
            return
        wait_for(rank, but=replica.members)
        plan, journals = assignment.plan, rank.folder.journals
        record = merge(journals, len(plan))
        wanted = wanted_images(plan, rank.job.limit, rank.job.part)
        for number in assignment.pending:
            tasks = [plan.task(index) for index in plan.batch(number) if wanted[index]]
            if not all(_is_settled(task, assignment, record) for task in tasks):
                yield number


def _is_settled(task: Task, assignment: Assignment, record: MergedRecord) -> bool:
    """Whether a journal says that an image is done, or that it failed in this launch."""
    fingerprint = assignment.fingerprints.of(task)
    done, failed = record.done.get(task.index), record.failed.get(task.index)
    if failed is not None and failed.generation < assignment.generation:
        failed = None
    return any(known is not None and known.fingerprint == fingerprint for known in (done, failed))
