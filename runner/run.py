"""The straight line: manifest → plan → resume → shard → pipeline → images → journal → report.

Every rank runs `run`. Rank 0 prepares (start.py) and tells the others; then each replica works for
itself (work.py); at the end rank 0 waits for the last living one and reports.
"""

import contextlib
import secrets
import time

from runner.errors import (
    ExitCode,
    FolderError,
    InterruptedRunError,
    RefusedError,
    RunnerError,
    refusal,
)
from runner.folder import space
from runner.folder.counts import Counts, Launch, count, exit_code, is_over, outcome
from runner.folder.journal import merge
from runner.folder.lock import FolderLock, guard
from runner.folder.merged_record import Account
from runner.folder.paths import OutputFolder
from runner.folder.reports import rebuild
from runner.folder.scan import scan
from runner.folder.summary import (
    last_launch,
    read_summary,
    sentence,
    summarize,
    truncation_notice,
    write_summary,
)
from runner.launch.crashes import deaths
from runner.launch.heartbeat import Pulse
from runner.launch.progress import Progress
from runner.launch.stop import Stop
from runner.launch.store import Store, StoreLostError, connect
from runner.launch.world import World
from runner.plan import wanted_images
from runner.prepare.prepare import (
    Job,
    Start,
    hear,
    notices,
    prepare,
    refusal_noted,
    tell,
    tell_error,
)
from runner.say import say
from runner.units import counted
from runner.worker import Rank, wait_for_all, work

__all__ = ["run"]

REPORT_PATIENCE_S = 600.0  # for a sibling shard that writes the reports of a million images
ENDED = "ended"  # the exit code, where a restart has nothing to add


def run(job: Job, world: World, stop: Stop) -> ExitCode:
    """One rank's part of a job. Raises RunnerError; anything else is a bug or a broken machine."""
    try:
        store = connect(world)
        pulse = Pulse(store, world.rank, world.world_size)
        folder = OutputFolder(job.output, job.loaded.manifest.output)
        rank = Rank(job, folder, store, pulse, world, stop)
        try:
            _end_if_ended(store, world)
            if world.rank == 0:
                return _lead(rank)
            work(rank, hear(job, store, pulse, stop), on_lost=lambda: None)
            return ExitCode.COMPLETE  # what became of the whole job is rank 0's to say
        finally:
            pulse.end()
            if world.rank == 0 and not world.agent_store:
                wait_for_all(rank)  # they still listen to the store that this process serves
    except StoreLostError:
        raise InterruptedRunError("the launcher's store is out of reach") from None


def _end_if_ended(store: Store, world: World) -> None:
    """A launcher restarts all ranks after any exit code but 0, also where there is nothing to gain:
    images failed, the job was refused, somebody asked it to stop."""
    code = store.command.get(ENDED) if world.restart else None
    if code is not None:
        raise refusal("ended before this restart", int(code))


def _lead(rank: Rank) -> ExitCode:
    """Rank 0: prepare, tell, work, wait, report."""
    lock = FolderLock(rank.folder, secrets.token_hex(4), rank.job.shard)
    started = time.time()
    try:
        start = _prepare(rank, lock)
        launch = _launch(start, rank.world, started)
        if start.pending:
            remarks = (*notices(start.plan), space.notice(rank.folder, start.plan, start.missing))
            for line in (*filter(None, remarks), _greeting(start, launch)):
                say(line)
            counts = Counts(len(start.plan), done=start.finished)
            summary = summarize("running", counts, launch, Account())
            write_summary(rank.folder, summary, launch.id)
        _work_and_wait(rank, start, launch, lock)
        code = _report(start, rank, launch)
        if rank.stop.is_final or code == ExitCode.FAILED:
            with contextlib.suppress(StoreLostError):
                rank.store.command.set(ENDED, str(int(code)))
        return code
    finally:
        lock.release()


def _prepare(rank: Rank, lock: FolderLock) -> Start:
    """The start, told to the other ranks; or what stands in its way, told likewise."""
    store, world = rank.store, rank.world
    try:
        with refusal_noted(rank.folder, lock):
            start = prepare(
                rank.job, rank.folder, lock, world, deaths(store, world.world_size), rank.stop
            )
    except BaseException as error:
        with contextlib.suppress(StoreLostError):
            tell_error(error if isinstance(error, RunnerError) else repr(error), store)
            if isinstance(error, RefusedError):
                store.command.set(ENDED, str(int(error.exit_code)))
        raise
    tell(rank.job, start, store, start.manifest.strategy.layout(world).replicas)
    return start


def _work_and_wait(rank: Rank, start: Start, launch: Launch, lock: FolderLock) -> None:
    """Rank 0's share, then the others'. What ends it early is reported before it is raised."""

    def on_lost() -> None:
        _report(start, rank, launch)
        lock.release()

    at_once = min(launch.replicas, len(start.pending)) * start.manifest.largest_batch
    with Progress(rank.store, start.missing, launch.started, at_once):
        try:
            work(rank, start, on_lost)
        except Exception:
            with contextlib.suppress(OSError, InterruptedRunError):
                _report(start, rank, launch)
            raise
        finally:
            rank.pulse.end()
        wait_for_all(rank)


def _launch(start: Start, world: World, started: float) -> Launch:
    strategy = start.manifest.strategy
    replicas = strategy.layout(world).replicas
    kind = strategy.kind
    size = world.world_size
    sizes = start.manifest.batch_sizes
    return Launch(
        start.launch, start.generation, size, replicas, kind, started, start.choice, sizes
    )


def _greeting(start: Start, launch: Launch) -> str:
    """`12 batches to do: data_parallel, 4 processes, 4 replicas`, and how many have nothing."""
    batches = len(start.pending)
    idle = max(0, launch.replicas - batches)
    spare = f" ({idle} with nothing to do)" if idle else ""
    return (
        f"{counted(batches, 'batch')} to do, {counted(start.finished, 'image')} there: "
        f"{launch.strategy}, {counted(launch.world_size, 'process')}, "
        f"{counted(launch.replicas, 'replica')}{spare}"
    )


def _report(start: Start, rank: Rank, launch: Launch) -> ExitCode:
    """Rebuild the reports from all journals, and say in one line how it went. Raises
    InterruptedRunError where the prompts are no longer there: then summary.json alone is written.
    """
    folder, job = rank.folder, rank.job
    launch.seconds = round(time.monotonic() - start.begun, 3)
    plan = start.plan
    wanted = wanted_images(plan, job.limit, job.shard)
    with contextlib.ExitStack() as stack:
        # Of sibling shards that end together, who writes last must have seen all journals whole.
        with contextlib.suppress(FolderError):  # one that hangs must not keep us
            stack.enter_context(guard(folder.locks / "report", REPORT_PATIENCE_S))
        record = merge(folder.journals, len(plan))
        if not start.pending:  # what the last one did is worth more than that this one did nothing
            launch = last_launch(read_summary(folder), record)
        account = record.account(launch.id)
        try:
            states = record.states(plan, start.fingerprints, scan(folder, len(plan)).sizes)
        except InterruptedRunError:
            counts = count(record.states_by_journals(), record, wanted, launch)
            summary = summarize("interrupted", counts, launch, account)
            write_summary(folder, summary, launch.id)
            raise
        counts = count(states, record, wanted, launch)
        gave_up = is_over(counts, account, start.manifest.max_failures)
        ended = outcome(counts, gave_up=gave_up)
        summary = summarize(ended, counts, launch, account)
        rebuild(folder, plan, record, states, launch.id)
        write_summary(folder, summary, launch.id)
    told = summary if start.pending else {**summary, "made": 0}
    words = sentence(told, counts, folder)
    for line in filter(None, (truncation_notice(counts), words)):
        say(line)
    return exit_code(ended)
