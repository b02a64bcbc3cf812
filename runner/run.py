"""The straight line: manifest → plan → resume → shard → pipeline → images → journal → report.

Every rank runs `run`. Rank 0 prepares (start.py) and tells the others; then each replica works for
itself; at the end rank 0 waits for the last living one and reports.
"""

import contextlib
import logging
import secrets
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

from runner import disk, model, report
from runner.crashes import Crashes, alone, deaths
from runner.errors import (
    ExitCode,
    GaveUpError,
    InterruptedRunError,
    RefusedError,
    RunnerError,
    printable,
    refusal,
)
from runner.folder import OutputFolder
from runner.journal import Done, Journal, merge
from runner.lock import FolderLock
from runner.plan import Fingerprints, Task
from runner.progress import Progress
from runner.pulse import Pulse
from runner.report import Counts, Launch
from runner.resume import asked_images
from runner.shard import shard, take
from runner.start import Job, Start, hear, notices, prepare, tell, tell_error
from runner.stop import Stop
from runner.store import Store, StoreLostError, connect
from runner.strategies import Layout
from runner.world import World, set_device

__all__ = ["run"]

log = logging.getLogger(__name__)

ENDED = "ended"  # the exit code, where a restart has nothing to add
GONE_AFTER_S = 30.0  # a rank without a beat
GONE_AFTER_STOP_S = 5.0  # the same, once this rank was asked to stop


def run(job: Job, world: World, stop: Stop) -> ExitCode:
    """One rank's part of a job. Raises RunnerError; anything else is a bug or a broken machine."""
    folder = OutputFolder(job.output, job.loaded.manifest.output)
    store = connect(world)
    pulse = Pulse(store, world.rank, world.world_size)
    try:
        _end_if_ended(store, world)
        if world.rank == 0:
            return _lead(job, folder, store, pulse, world, stop)
        start = hear(job, store, pulse, stop)
        _work(start, job, folder, store, pulse, world, stop)
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
            start = prepare(job, folder, lock, world, deaths(store, world.world_size))
        except BaseException as error:
            with contextlib.suppress(StoreLostError):
                tell_error(error if isinstance(error, RunnerError) else repr(error), store)
                if isinstance(error, RefusedError):
                    store.command.set(ENDED, str(int(error.exit_code)))
            raise
        tell(start, store)
        launch = _launch(start, world, started)
        if start.pending:
            images = sum(len(start.plan.batch(number)) for number in start.pending)
            for line in (*notices(start.plan), disk.notice(folder, start.plan, images)):
                if line:
                    print(f"runner: {printable(line)}", file=sys.stderr)
            counts = Counts(len(start.plan), done=start.finished)
            report.write_summary(folder, "running", counts, launch, [])
        images = sum(len(start.plan.batch(number)) for number in start.pending)
        with Progress(store, images):
            try:
                _work(start, job, folder, store, pulse, world, stop)
            finally:
                pulse.end()
            _wait_for_all(pulse, stop)
        code = _report(start, job, folder, launch)
        if stop.is_final or code == ExitCode.FAILED:
            with contextlib.suppress(StoreLostError):
                store.command.set(ENDED, str(int(code)))
        return code
    finally:
        lock.release()


def _end_if_ended(store: Store, world: World) -> None:
    """A launcher restarts all ranks after any exit code but 0, also where there is nothing to gain:
    images failed, the job was refused, somebody asked it to stop."""
    code = store.command.get(ENDED) if world.restart else None
    if code is not None:
        raise refusal("ended before this restart", int(code))


def _wait_for_all(pulse: Pulse, stop: Stop) -> list[int]:
    """Rank 0 waits for the other ranks; those that are gone."""
    try:
        return pulse.wait_for_all(lambda: GONE_AFTER_STOP_S if stop.requested else GONE_AFTER_S)
    except StoreLostError:
        return []


def _work(
    start: Start,
    job: Job,
    folder: OutputFolder,
    store: Store,
    pulse: Pulse,
    world: World,
    stop: Stop,
) -> None:
    """Take batches until none is left; a rank without a share loads no model."""
    stop.watch_file(folder.stop_file(job.shard))
    layout = start.manifest.strategy.layout(world)
    has_share = bool(shard(start.pending, layout.replica, layout.replicas))
    if start.pending and world.local_rank == 0:
        _fetch(start, store, world)  # for all ranks of this node
    if not has_share:
        return
    journal = Journal(folder.journals, start.generation, world.rank, start.launch)
    try:
        model_folder = _wait_for_model(start, pulse, world, stop)
        _make_images(start, job, folder, model_folder, journal, store, pulse, world, stop)
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
    pulse: Pulse,
    world: World,
    stop: Stop,
) -> None:
    device = set_device(world)
    from runner.pipeline import DroppedError, load
    from runner.writer import Writer

    manifest, plan, strategy = start.manifest, start.plan, start.manifest.strategy
    pipeline = load(manifest, model_folder, strategy, device, stop)
    crashes = Crashes(store, world.rank)
    stop.on_request = crashes.clear
    layout = strategy.layout(world)
    limit = len(plan) if job.limit is None else job.limit
    # The writer's thread hashes with its own: rank 0's may be in use.
    fingerprints = Fingerprints(manifest, model.identity(manifest.model))
    with Writer(
        folder, manifest, fingerprints, journal, store, start.launch, regenerate=job.regenerate
    ) as writer:
        mine = take(store, start.pending, layout.replica, layout.replicas)
        for number in chain(mine, _leftovers(start, job, folder, pulse, layout, stop)):
            if stop.requested or _too_many_failures(store, manifest.max_failures):
                return
            for indices in alone(plan.batch(number), start.deaths):
                tasks = [plan.task(index) for index in indices]
                degraded = () if indices == plan.batch(number) else ("batch split",)
                try:
                    with crashes.during(indices):
                        for result in pipeline.render(tasks, degraded):
                            if result.task.index < limit:
                                writer.put(result)
                except DroppedError:
                    return
                except GaveUpError as error:
                    print(f"runner: rank {world.rank}: {error}", file=sys.stderr)
                    journal.gave_up(str(error))
                    return


def _leftovers(
    start: Start, job: Job, folder: OutputFolder, pulse: Pulse, layout: Layout, stop: Stop
) -> Iterator[int]:
    """Rank 0 waits for the others and then takes the batches that dead ones had begun."""
    if layout.replica or layout.ranks_per_replica > 1 or not _wait_for_all(pulse, stop):
        return
    done, plan = merge(folder.journals).done, start.plan
    asked = asked_images(plan, job.limit, job.shard)
    for number in start.pending:
        wanted = [plan.task(index) for index in plan.batch(number) if asked[index]]
        if any(not _is_made(task, start.fingerprints, done) for task in wanted):
            yield number


def _is_made(task: Task, fingerprints: Fingerprints, done: Mapping[int, Done]) -> bool:
    known = done.get(task.index)
    return known is not None and known.fingerprint == fingerprints.of(task)


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
    return Launch(start.launch, start.generation, world.world_size, replicas, kind, started)


def _report(start: Start, job: Job, folder: OutputFolder, launch: Launch) -> ExitCode:
    """Rebuild the reports from all journals, and say in one line how it went."""
    record = merge(folder.journals)
    asked = asked_images(start.plan, job.limit, job.shard)
    counts = report.rebuild(folder, start.plan, start.fingerprints, record, asked, launch)
    most = start.manifest.max_failures
    is_over = record.gave_up or (most is not None and counts.failed >= most)
    outcome = report.outcome(counts, gave_up=is_over)
    summary = report.write_summary(folder, outcome, counts, launch, record.errors)
    print(f"runner: {report.sentence(summary, folder)}", file=sys.stderr)
    return report.exit_code(outcome)
