"""The straight line: manifest → plan → resume → shard → pipeline → images → journal → report.

Every rank runs `run`. Rank 0 prepares (start.py) and tells the others; then each replica works for
itself; at the end rank 0 waits for the last living one and reports.
"""

import contextlib
import itertools
import logging
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from runner import model, report
from runner.errors import (
    DiskError,
    ExitCode,
    InterruptedRunError,
    ReplicaLostError,
    RunnerError,
    StrategyError,
    refusal,
)
from runner.folder import OutputFolder
from runner.group import replica_group
from runner.journal import LOST, Journal, merge
from runner.lock import FolderLock
from runner.plan import Fingerprints, Plan, Task
from runner.progress import Progress
from runner.pulse import Pulse
from runner.replica import Replica
from runner.report import Counts, Launch
from runner.resume import asked_images
from runner.selfcheck import agree, reference
from runner.shard import shard, take
from runner.start import Job, Start, hear, notices, prepare, tell, tell_error
from runner.stop import Stop
from runner.store import Store, StoreLostError, connect
from runner.strategies import DataParallel, Layout
from runner.world import World, set_device

if TYPE_CHECKING:
    from runner.pipeline import Pipeline
    from runner.writer import Writer

__all__ = ["run"]

log = logging.getLogger(__name__)

GONE_AFTER_S = 30.0  # a rank without a beat
GONE_AFTER_STOP_S = 5.0  # the same, once this rank was asked to stop


def run(job: Job, world: World, stop: Stop) -> ExitCode:
    """One rank's part of a job. Raises RunnerError; anything else is a bug or a broken machine."""
    folder = OutputFolder(job.output, job.loaded.manifest.output)
    store = connect(world)
    pulse = Pulse(store, world.rank, world.world_size)
    try:
        if world.rank == 0:
            return _lead(job, folder, store, pulse, world, stop)
        start = hear(job, store, pulse, stop)
        _work(start, job, folder, store, pulse, world, stop, lambda: None)
        return ExitCode.COMPLETE  # what became of the whole job is rank 0's to say
    except StoreLostError:
        raise InterruptedRunError("the launcher's store is out of reach") from None
    finally:
        pulse.end()


def _lead(
    job: Job, folder: OutputFolder, store: Store, pulse: Pulse, world: World, stop: Stop
) -> ExitCode:
    """Rank 0: prepare, tell, work, wait, report."""
    lock = FolderLock(folder, secrets.token_hex(4), job.shard)
    started = time.time()
    try:
        try:
            start = prepare(job, folder, lock, world)
        except BaseException as error:
            with contextlib.suppress(StoreLostError):
                tell_error(error if isinstance(error, RunnerError) else repr(error), store)
            raise
        tell(start, store)
        launch = _launch(start, world, started)
        if start.pending:
            for line in notices(start.plan):
                print(f"runner: {line}", file=sys.stderr)
            counts = Counts(len(start.plan), done=start.finished)
            report.write_summary(folder, "running", counts, launch, [])
        images = sum(len(start.plan.batch(number)) for number in start.pending)

        def on_lost() -> None:
            _report(start, job, folder, launch)
            lock.release()

        with Progress(store, images):
            try:
                _work(start, job, folder, store, pulse, world, stop, on_lost)
            except (ReplicaLostError, StrategyError):  # the latter from the self-check
                on_lost()
                raise
            finally:
                pulse.end()
            with contextlib.suppress(StoreLostError):
                pulse.wait_for_all(lambda: GONE_AFTER_STOP_S if stop.requested else GONE_AFTER_S)
        return _report(start, job, folder, launch)
    finally:
        lock.release()


def _work(
    start: Start,
    job: Job,
    folder: OutputFolder,
    store: Store,
    pulse: Pulse,
    world: World,
    stop: Stop,
    on_lost: Callable[[], None],
) -> None:
    """Take batches until none is left; a rank without a share loads no model. Where the ranks of a
    replica lose each other, `on_lost` is called before the process ends."""
    layout = start.manifest.strategy.layout(world)
    has_share = not layout.is_idle and bool(shard(start.pending, layout.replica, layout.replicas))
    if start.pending and world.local_rank == 0:
        _fetch(start, store, world)  # for all ranks of this node
    if not has_share:
        return
    journal = Journal(folder.journals, start.generation, world.rank, start.launch)
    try:
        model_folder = _wait_for_model(start, pulse, world, stop)
        first_rank = world.rank - layout.rank_in_replica
        with Replica(layout, store, pulse, first_rank, on_lost) as replica:
            _make_images(start, job, folder, model_folder, journal, store, world, stop, replica)
    except Exception as error:
        with contextlib.suppress(OSError):
            journal.error(f"rank {world.rank}: {error!r}", traceback.format_exc())
        raise
    finally:
        with contextlib.suppress(OSError):
            journal.close()


def _make_images(
    start: Start,
    job: Job,
    folder: OutputFolder,
    model_folder: Path,
    journal: Journal,
    store: Store,
    world: World,
    stop: Stop,
    replica: Replica,
) -> None:
    manifest, strategy, layout = start.manifest, start.manifest.strategy, replica.layout
    device = set_device(world, share=strategy.shares_node)
    from runner.pipeline import DroppedError, load
    from runner.writer import Writer

    # The writer's thread hashes with its own: rank 0's may be in use.
    fingerprints = Fingerprints(manifest, model.identity(manifest.model))
    first = start.plan.task(start.plan.batch(start.pending[0])[0])
    checks = job.self_check and not isinstance(strategy, DataParallel)
    expected = None
    if checks and layout.is_leader:
        expected = reference(manifest, model_folder, device, stop, world, first)
    with replica_group(world, layout, device, binds_device=not strategy.own_groups):
        link = None if replica.is_alone else replica
        pipeline = load(manifest, model_folder, strategy, device, stop, world, link)
        if checks:
            agree(pipeline, first, expected, replica)
        if not layout.is_leader:
            _follow(start, pipeline, replica, journal, fingerprints)
            return
        limit = len(start.plan) if job.limit is None else job.limit
        with Writer(
            folder, manifest, fingerprints, journal, store, start.launch, regenerate=job.regenerate
        ) as writer:
            numbers = replica.lead(_next_batches(start, store, layout, stop))
            with contextlib.suppress(DroppedError):
                while window := list(itertools.islice(numbers, strategy.window)):
                    batches = [_tasks(start.plan, number) for number in window]
                    pipeline.prepare(batches)
                    for tasks in batches:
                        _render(pipeline, tasks, writer, limit, replica)


def _render(
    pipeline: "Pipeline", tasks: list[Task], writer: "Writer", limit: int, replica: Replica
) -> None:
    """One batch to the writer. Raises DroppedError, and what ends this rank."""
    from runner.pipeline import DroppedError, Failure

    try:
        for result in pipeline.render(tasks):
            if result.task.index < limit:
                writer.put(result)
    except (DroppedError, StoreLostError, DiskError):
        raise
    except Exception as error:
        if replica.is_alone:
            raise
        for task in tasks:
            writer.put(Failure(task, LOST, str(error), traceback.format_exc()))
        raise ReplicaLostError(str(error)) from error


def _follow(
    start: Start,
    pipeline: "Pipeline",
    replica: Replica,
    journal: Journal,
    fingerprints: Fingerprints,
) -> None:
    """Compute along with the leader, who writes. What only this rank knows of a failure, it records
    itself."""
    from runner.pipeline import DroppedError

    for number in replica.follow():
        tasks = _tasks(start.plan, number)
        try:
            for _ in pipeline.render(tasks):
                pass
        except DroppedError:
            return
        except StoreLostError:
            raise
        except Exception as error:
            for task in tasks:
                fingerprint = fingerprints.of(task)
                journal.failed(task.index, fingerprint, LOST, str(error), traceback.format_exc())
            raise ReplicaLostError(str(error)) from error


def _tasks(plan: Plan, number: int) -> list[Task]:
    return [plan.task(index) for index in plan.batch(number)]


def _next_batches(start: Start, store: Store, layout: Layout, stop: Stop) -> Iterator[int]:
    """Batches that are this replica's to do, until we should stop."""
    for number in take(store, start.pending, layout.replica, layout.replicas):
        if stop.requested or _too_many_failures(store, start.manifest.max_failures):
            return
        yield number


def _too_many_failures(store: Store, most: int | None) -> bool:
    if most is None:
        return False
    with contextlib.suppress(StoreLostError):
        return store.add("failed", 0) >= most
    return False


def _fetch(start: Start, store: Store, world: World) -> None:
    """One process a node downloads what the cache lacks; the others read it offline."""
    key = f"model/{world.node}"
    try:
        spec = start.manifest.model
        store.set(key, str(model.local_folder(spec) or model.download(spec)))
    except RunnerError as error:
        store.set(key, f"!{error}")
        raise


def _wait_for_model(start: Start, pulse: Pulse, world: World, stop: Stop) -> Path:
    local_leader = world.rank - world.local_rank
    found = pulse.wait_for_value(f"model/{world.node}", local_leader, lambda: stop.requested)
    if found is None:
        raise InterruptedRunError("stopped before the model was there")
    if found.startswith("!"):
        raise refusal(found[1:], ExitCode.REFUSED)
    return Path(found)


def _launch(start: Start, world: World, started: float) -> Launch:
    strategy = start.manifest.strategy
    replicas = strategy.layout(world).replicas
    kind = strategy.kind
    size = world.world_size
    return Launch(start.launch, start.generation, size, replicas, kind, started, start.choice)


def _report(start: Start, job: Job, folder: OutputFolder, launch: Launch) -> ExitCode:
    """Rebuild the reports from all journals, and say in one line how it went."""
    record = merge(folder.journals)
    asked = asked_images(start.plan, job.limit, job.shard)
    counts = report.rebuild(folder, start.plan, start.fingerprints, record, asked, launch)
    most = start.manifest.max_failures
    outcome = report.outcome(counts, gave_up=most is not None and counts.failed >= most)
    summary = report.write_summary(folder, outcome, counts, launch, record.errors)
    print(f"runner: {report.sentence(summary, folder)}", file=sys.stderr)
    return report.exit_code(outcome)
