"""Before the work, on rank 0: look at the folder and the model, refuse or decide."""

from __future__ import annotations  # array[int] is no type at run time before 3.12

import contextlib
import dataclasses
import json
import operator
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runner.errors import RefusedError
from runner.folder import space
from runner.folder.accounting import Spent
from runner.folder.arrange import arrange
from runner.folder.clear import clear
from runner.folder.counts import Counts
from runner.folder.files import replace
from runner.folder.journal import Journal
from runner.folder.lock import FolderLock, guard, note_refusal
from runner.folder.logs import keep_log
from runner.folder.merged_record import FAILED, LOST, SKIPPED
from runner.folder.owners import live_launches
from runner.folder.pack import pack
from runner.folder.paths import HEADER, OutputFolder, os_errors_as_refusals
from runner.folder.recorded_prompts import record_prompts
from runner.folder.refuse import refuse
from runner.folder.survey import Survey, pending_batches
from runner.launch.crashes import deaths, quarantined
from runner.manifest.resolve import Resolved, decide, dump, fill
from runner.manifest.schema import Manifest
from runner.manifest.sources.prompt_list import Inline
from runner.plan import Plan, wanted_images
from runner.prepare.assignment import Assignment, checksum
from runner.prepare.batch_sizes import find_batch_sizes
from runner.prepare.look import Look, look, recorded_in
from runner.prepare.proof import compares_first_image
from runner.prepare.rank import Job, Rank
from runner.prepare.strategy import check_here
from runner.render.results import Renderer
from runner.say import say
from runner.units import counted, first_few

__all__ = ["Preparation", "prepare"]

MOVES_PATIENCE_S = 3600.0  # for a sibling shard that moves the images of a long list
TRIAL_PATIENCE_S = 1800.0  # for a sibling shard that tries batch sizes, model download included


@dataclass(frozen=True, slots=True)
class Preparation:
    """The assignment of a launch, and what rank 0 alone knows of it."""

    assignment: Assignment
    missing: int  # images to make
    there: Counts  # how the images stood
    spent: list[Spent]  # by earlier launches
    choice: str  # what `auto` chose and why
    renderer: Renderer | None  # where the model was loaded already, to try batch sizes


@dataclass(frozen=True, slots=True)
class _Settled:
    """What was decided, for which there must be work to do."""

    resolved: Resolved
    plan: Plan
    has_work: bool = True
    choice: str = ""
    compares_first: bool = False
    renderer: Renderer | None = None


@os_errors_as_refusals()
def prepare(rank: Rank, lock: FolderLock) -> Preparation:
    """Take the folder, look at it, check and decide. Raises RefusedError in any form: no image was
    touched until then."""
    begun = time.monotonic()
    job, folder = rank.job, rank.folder
    _take(rank, lock)
    with _refusal_noted(lock):
        seen, found = _survey(job, folder, lock)
        died = deaths(rank.store, rank.world.world_size, folder.own)
        crashed = [index for index in quarantined(died) if found.todo[index]]
        _leave_out(crashed, found)
        settled = _settle(rank, seen, found, lock)
        manifest = fill(job.loaded.manifest, settled.resolved)
        wanted = wanted_images(settled.plan, job.limit, job.part)
        is_other_list = bool(found.moves) or seen.is_other_list
        seen, found, journal = _arranged(job, folder, seen, found, lock)
        _leave_out(crashed, found)
        _record_survey(seen, found, journal, wanted, crashed, lock)
        if seen.model_files:
            text = json.dumps(seen.model_files)
            replace(folder.model, (text.encode(),), lock.launch, lock.check)
        # What was recorded with an earlier launch's choices stays where this one only looked.
        is_other_list = is_other_list or bool(found.beyond)
        if settled.has_work or (is_other_list and not manifest.has_open_batches):
            _record_manifest(job, folder, manifest, settled.choice, lock)
    assignment = Assignment(
        launch=lock.launch,
        # The survey's own journal came between the last launch and this one.
        generation=seen.record.generation + 2,
        begun=begun,
        resolved=settled.resolved,
        manifest=manifest,
        plan=settled.plan,
        fingerprints=seen.fingerprints,
        pending=_pending(seen, settled.plan, found, wanted),
        compares_first=settled.compares_first,
        deaths=died,
    )
    return Preparation(
        assignment,
        missing=sum(map(operator.and_, found.todo, wanted)),
        there=_there(seen, found, wanted, crashed),
        spent=list(seen.record.spent.values()),
        choice=settled.choice,
        renderer=settled.renderer,
    )


def _there(seen: Look, found: Survey, wanted: bytearray, crashed: Sequence[int]) -> Counts:
    """Failed and skipped are those that this launch does not make again."""
    kept_out = Counter(found.states[index] for index in seen.record.kept_out)
    return Counts(
        total=len(found.states),
        done=found.finished,
        failed=kept_out[FAILED] + len(crashed),
        skipped=found.states.count(SKIPPED),
        wanted=sum(wanted),
    )


@contextlib.contextmanager
def _refusal_noted(lock: FolderLock) -> Iterator[None]:
    try:
        yield
    except RefusedError as error:
        note_refusal(lock.folder, error, lock.owned, lock.part)
        raise


def _take(rank: Rank, lock: FolderLock) -> None:
    """Make the folder and lock it; forget what earlier launches were asked."""
    folder, stop_file = rank.folder, rank.folder.stop_file(rank.job.part)
    folder.prepare()
    lock.acquire()
    keep_log(folder, rank.world, lock.launch, rank.job.part)
    folder.forget_refusal(rank.job.part)
    stop_file.unlink(missing_ok=True)  # a new launch means: go on
    rank.stop.watch_file(stop_file)


def _look(job: Job, folder: OutputFolder, lock: FolderLock) -> Look:
    """The folder, with seed and revision settled. Of sibling shards the first settles for all."""
    with guard(folder.locks / "guard"):
        seen = look(job.loaded, folder).with_versions().with_revision()
        if seen.recorded is None:
            _ = seen.plan  # refused where a seed would be drawn beside finished images
            _record_manifest(job, folder, seen.manifest, "", lock)
    return seen


def _survey(job: Job, folder: OutputFolder, lock: FolderLock) -> tuple[Look, Survey]:
    """How the images stand, while no sibling shard moves any. Refused where it must be."""
    with guard(folder.locks / "moves", MOVES_PATIENCE_S, is_shared=True):
        seen = _look(job, folder, lock)
        found = seen.survey(but=lock.launch)
        refuse(folder, found, regenerate=job.regenerate)
        if not found.moves:
            lock.note_list(checksum(job.loaded))
    return seen, found


def _arranged(
    job: Job, folder: OutputFolder, seen: Look, found: Survey, lock: FolderLock
) -> tuple[Look, Survey, Journal]:
    """Move images to their new places, if the list of prompts moved. Of sibling shards the first
    moves them for all."""
    journal = Journal(folder.journals, seen.record.generation + 1, 0, lock.launch)
    if not found.moves and not found.twins:
        return seen, found, journal
    with guard(folder.locks / "moves", MOVES_PATIENCE_S):
        if job.part is not None:
            seen = _look(job, folder, lock)
            found = seen.survey(but=lock.launch)
            refuse(folder, found, regenerate=job.regenerate)
            journal = Journal(folder.journals, seen.record.generation + 1, 0, lock.launch)
        list_sum = checksum(job.loaded)
        lock.refuse_other_lists(list_sum)
        if found.moves:
            say(f"moving {counted(len(found.moves), 'image')} to new places in the list")
        arrange(folder, seen.plan, found, seen.record, journal, lock.launch, lock.check)
        lock.note_list(list_sum)
    return seen, found, journal


def _leave_out(crashed: Sequence[int], found: Survey) -> None:
    for index in crashed:
        found.todo[index] = 0


def _settle(rank: Rank, seen: Look, found: Survey, lock: FolderLock) -> _Settled:
    """Strategy and batch sizes, where there is work to do."""
    job, folder = rank.job, rank.folder
    wanted = wanted_images(seen.plan, job.limit, job.part)
    # Which batches are a shard's own is not known before their sizes are.
    has_work = any(found.todo) if job.part else any(map(operator.and_, found.todo, wanted))
    if not has_work:
        return _Settled(seen.resolved, seen.plan, has_work=False)
    resolution, configs = check_here(seen.plan, rank.world)
    resolved = seen.resolved.model_copy(update={"strategy": resolution.strategy})
    space.check(folder)
    manifest = fill(job.loaded.manifest, resolved)
    compares = compares_first_image(manifest, configs, folder, is_asked=job.self_check)
    settled = _Settled(resolved, seen.plan, choice=resolution.choice, compares_first=compares)
    return _settle_batches(rank, seen, settled, lock) if manifest.has_open_batches else settled


def _settle_batches(rank: Rank, seen: Look, settled: _Settled, lock: FolderLock) -> _Settled:
    """Find the batch sizes, record them, and cut the plan anew. One launch at a time: sibling
    shards take what the first has found."""
    loaded, folder, renderer = seen.loaded, seen.folder, None
    with guard(folder.locks / "batches", TRIAL_PATIENCE_S):
        sizes = decide(loaded.manifest, recorded_in(folder)).batch_sizes
        if not sizes:
            manifest = fill(loaded.manifest, settled.resolved)
            sizes, renderer = find_batch_sizes(rank, settled.plan, manifest)
        resolved = settled.resolved.model_copy(update={"batch_sizes": sizes})
        manifest = fill(loaded.manifest, resolved)
        _record_manifest(rank.job, folder, manifest, settled.choice, lock)
    found = ", ".join(f"{count} for {name}" for name, count in sizes.items())
    say(f"batch_size auto: {found}")
    plan = Plan(manifest, loaded.prompts, loaded.root)
    return dataclasses.replace(settled, resolved=resolved, plan=plan, renderer=renderer)


def _pending(seen: Look, plan: Plan, found: Survey, wanted: bytearray) -> array[int]:
    """The batches to make. What ended a replica may do so again: those come last."""
    lost = {index for index, failed in seen.record.failed.items() if failed.kind == LOST}
    return pending_batches(plan, found.todo, wanted, lost)


def _record_survey(
    seen: Look,
    found: Survey,
    journal: Journal,
    wanted: bytearray,
    crashed: Sequence[int],
    lock: FolderLock,
) -> None:
    """Remove what is in the way, and put what the survey learned into a journal of its own."""
    folder, record, launch = seen.folder, seen.record, lock.launch
    if found.beyond:
        names = first_few([path.name for path in found.beyond])
        say(f"removing what is not in the list any more: {names}")
    clear(folder, found, journal, record, seen.live - {launch}, wanted, seen.plan, lock.check)
    for index in crashed:
        fingerprint = seen.fingerprints.of(seen.plan.task(index))
        journal.failed(index, fingerprint, "crashed", "its process died, and again alone", "")
    journal.close()
    pack(folder.journals, record, lambda: live_launches(folder), launch, lock.check)


def _record_manifest(
    job: Job, folder: OutputFolder, manifest: Manifest, choice: str, lock: FolderLock
) -> None:
    """Write manifest.yaml: the manifest as run. Prompts that do not stand in it go beside it."""
    if not isinstance(job.loaded.prompts, Inline):
        file = record_prompts(folder, job.loaded, lock.launch, lock.check)
        manifest = manifest.model_copy(update={"prompts": file, "images": None})
    remark = f"# {choice}\n" if choice else ""
    parts = (HEADER, remark, dump(manifest))
    replace(folder.manifest, (part.encode() for part in parts), lock.launch, lock.check)
