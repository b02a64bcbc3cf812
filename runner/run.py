"""The whole run, in one straight line:

    look at the folder → check → share → render → write → report

Every rank runs `run`, with the manifest read and its plan made (cli.py, plan.py).

1. Rank 0 looks at the output folder for what is finished, checks that the job can work and chooses
   batch sizes, for which it may load the model (prepare/). It broadcasts the assignment.
2. Each replica, one rank or several, takes a shard of the batches from the store; a replica that is
   done takes batches of the others (launch/shards.py). It renders a batch, writes its images and
   records them in its journal, until no batch is left (worker.py, lead.py, render/).
3. Rank 0 reports once the last living rank has ended (report.py).

Each start of the job on a folder is a launch; its generation counts them from 1. Rank 0 holds the
folder's lock, and loses it only to a later launch that takes the folder over.
"""

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Iterator

from runner.errors import (
    DiskError,
    ExitCode,
    InterruptedRunError,
    RefusedError,
    RunnerError,
    TakenOverError,
    already_printed,
)
from runner.folder.counts import Launch
from runner.folder.lock import FolderLock, note_refusal
from runner.folder.paths import OutputFolder
from runner.folder.space import notice
from runner.launch.heartbeat import Heartbeat
from runner.launch.progress import Progress
from runner.launch.stop import Stop
from runner.launch.store import StoreLostError, connect
from runner.launch.world import World
from runner.lead import wait_for_all
from runner.monitor import Monitor
from runner.prepare.assignment import Assignment, broadcast, broadcast_error, receive
from runner.prepare.device_notices import device_name, device_notices
from runner.prepare.notices import model_notices
from runner.prepare.prepare import Preparation, prepare
from runner.prepare.rank import Job, Rank
from runner.report import report
from runner.say import say
from runner.units import counted
from runner.worker import render_and_write_batches

__all__ = ["run"]

ENDED = "ended"  # the exit code, where a restart has nothing to add


def run(job: Job, world: World, stop: Stop) -> ExitCode:
    """One rank's part of a job. Raises RunnerError; anything else is a bug or a broken machine."""
    with _joined(job, world, stop) as rank:
        if world.rank == 0:
            return _run_on_rank_0(rank)
        assignment = receive(rank)
        try:
            with _refusal_ends_launch(rank, assignment):
                render_and_write_batches(rank, assignment)
        except TakenOverError as error:
            _let_no_restart_go_on(rank, error.exit_code)
            raise
        return ExitCode.COMPLETE  # rank 0 reports on the whole job


def _run_on_rank_0(rank: Rank) -> ExitCode:
    printing = threading.Lock()  # a thread and the main one may both find that the folder is lost

    def on_lost(error: TakenOverError) -> None:
        _let_no_restart_go_on(rank, error.exit_code)
        if printing.acquire(blocking=False):
            say(str(error), level=logging.ERROR)
        error.is_printed = True
        rank.stop.request(is_final=True)

    lock = FolderLock(rank.folder, secrets.token_hex(4), rank.job.part, on_lost)
    rank.stop.on_cut = lock.release
    started = time.time()
    try:
        prepared = _look_and_check(rank, lock)
        broadcast(rank, prepared.assignment)
        launch = _launch_of(rank, prepared, started)
        _announce(rank, prepared, launch)
        _work_and_wait(rank, prepared, launch, lock)
        code = report(rank, prepared.assignment, launch)
        if rank.stop.is_final or code == ExitCode.FAILED:
            _let_no_restart_go_on(rank, code)
        return code
    except TakenOverError as error:
        on_lost(error)
        raise
    finally:
        lock.release()


@contextlib.contextmanager
def _joined(job: Job, world: World, stop: Stop) -> Iterator[Rank]:
    """This rank among the others of its launch, from its first heartbeat to its last."""
    try:
        store = connect(world)
        heartbeat = Heartbeat(store, world.rank, world.world_size)
        folder = OutputFolder(job.output, job.loaded.manifest.output)
        rank = Rank(job, folder, store, heartbeat, world, stop)
        try:
            _end_if_ended(rank)
            yield rank
        finally:
            heartbeat.end()
            if world.rank == 0 and not world.agent_store:
                wait_for_all(rank)  # they still need the store that this process serves
    except StoreLostError:
        raise InterruptedRunError("the launcher's store is out of reach") from None


def _end_if_ended(rank: Rank) -> None:
    """A launcher restarts all ranks after any exit code but 0, also where there is nothing to gain:
    images failed, the job was refused, somebody asked it to stop."""
    code = rank.store.command.get(ENDED) if rank.world.restart else None
    if code is not None:
        raise already_printed("ended before this restart", int(code))


def _let_no_restart_go_on(rank: Rank, code: ExitCode) -> None:
    with contextlib.suppress(StoreLostError):
        rank.store.command.set(ENDED, str(int(code)))


def _look_and_check(rank: Rank, lock: FolderLock) -> Preparation:
    """Prepare the launch. What stands in its way is broadcast before it is raised."""
    try:
        return prepare(rank, lock)
    except BaseException as error:
        if isinstance(error, RunnerError):  # first: the launcher ends us once another rank exits
            say(str(error), level=logging.ERROR)
            error.is_printed = True
        with contextlib.suppress(StoreLostError):
            broadcast_error(rank.store, error)
        if isinstance(error, RefusedError):
            _let_no_restart_go_on(rank, error.exit_code)
        raise


@contextlib.contextmanager
def _refusal_ends_launch(rank: Rank, assignment: Assignment) -> Iterator[None]:
    """What is found wrong with the model only while it loads is a refusal like those before: it
    is noted for `status`, printed by one rank, and no restart tries again."""
    try:
        yield
    except RefusedError as error:
        owned = rank.owned(assignment.launch)
        # Where rank 0 was refused first, it has left the note and given the folder back.
        with contextlib.suppress(OSError, DiskError, TakenOverError):
            note_refusal(rank.folder, error, owned, rank.job.part)
        _let_no_restart_go_on(rank, error.exit_code)
        with contextlib.suppress(StoreLostError):
            error.is_printed = rank.store.add("refused") > 1
        if not error.is_printed:
            say(str(error), every_rank=True, level=logging.ERROR)
            error.is_printed = True
        raise


def _launch_of(rank: Rank, prepared: Preparation, started: float) -> Launch:
    """The launch as summary.json has it."""
    world, part = rank.world, rank.job.part
    assignment = prepared.assignment
    strategy = assignment.manifest.strategy
    return Launch(
        id=assignment.launch,
        generation=assignment.generation,
        world_size=world.world_size,
        replicas=strategy.layout(world).replicas,
        strategy=strategy.kind,
        shard=f"{part[0]}/{part[1]}" if part else "",
        started=started,
        choice=prepared.choice,
        batch_sizes=assignment.manifest.batch_sizes,
    )


def _announce(rank: Rank, prepared: Preparation, launch: Launch) -> None:
    """Say what is to do; nothing where nothing is to do."""
    assignment = prepared.assignment
    if not assignment.pending:
        return
    room = notice(rank.folder, assignment.plan, prepared.missing)
    remarks = map(str, rank.job.loaded.remarks)
    notices = (
        *remarks,
        *model_notices(assignment.plan),
        *device_notices(assignment.manifest, rank.world),
        _drawn_seed(rank, assignment),
        room,
    )
    for line in filter(None, notices):
        say(line)
    devices = device_name(rank.world)
    say(_greeting(len(assignment.pending), prepared.there.done, launch, devices))


def _drawn_seed(rank: Rank, assignment: Assignment) -> str:
    """The seed, where the manifest has none: with it the job can be done elsewhere, too."""
    drawn = assignment.resolved.seed
    if rank.job.loaded.manifest.seed is not None or drawn.start is None:
        return ""
    words = f"{{per: prompt, start: {drawn.start}}}" if drawn.per else drawn.start
    return f"seed: {words}, drawn for this folder; write it into the manifest to use it elsewhere"


def _greeting(batches: int, finished: int, launch: Launch, devices: str) -> str:
    """`12 batches to do, 0 images there: data_parallel, 4 processes, 4 replicas on NVIDIA H200`."""
    idle = max(0, launch.replicas - batches)
    spare = f" ({idle} with nothing to do)" if idle else ""
    return (
        f"{counted(batches, 'batch')} to do, {counted(finished, 'image')} there: "
        f"{launch.strategy}, {counted(launch.world_size, 'process')}, "
        f"{counted(launch.replicas, 'replica')}{spare}{' on ' if devices else ''}{devices}"
    )


def _work_and_wait(rank: Rank, prepared: Preparation, launch: Launch, lock: FolderLock) -> None:
    """Rank 0's share, then the others'. What ends it early is reported before it is raised."""
    assignment = prepared.assignment

    there, first = prepared.there, min(launch.replicas, len(assignment.pending))
    progress = Progress(
        rank.store,
        there.wanted,
        there.wanted - prepared.missing,
        launch.started,
        first * assignment.manifest.largest_batch,
    )
    monitor = Monitor(rank, assignment, launch, there, prepared.spent, progress)

    def on_lost() -> None:
        monitor.end()
        report(rank, assignment, launch)
        lock.release()

    rank.stop.on_cut = on_lost
    with progress, monitor if assignment.pending else contextlib.nullcontext():
        try:
            with _refusal_ends_launch(rank, assignment):
                render_and_write_batches(rank, assignment, prepared.renderer, on_lost)
        except StoreLostError:
            say(
                "the launcher's store is out of reach", level=logging.WARNING
            )  # the report says what that cost
        except Exception as error:
            is_refused = isinstance(error, RefusedError)
            monitor.end()
            with contextlib.suppress(OSError, InterruptedRunError):
                report(rank, assignment, launch, is_refused=is_refused)
            raise
        finally:
            rank.heartbeat.end()
        wait_for_all(rank)
