"""The `status` command: how an output folder stands, from its journals."""

import contextlib
import time
from pathlib import Path
from typing import Any

from runner.errors import DiskError, ExitCode, FolderError, refusal
from runner.folder.counts import Launch, count, is_over, outcome
from runner.folder.journal import journal_launch, merge
from runner.folder.lock import live_launches
from runner.folder.merged_record import MergedRecord
from runner.folder.paths import OutputFolder, os_errors_as_refusals
from runner.folder.refuse import refuse, refuse_to_draw
from runner.folder.reports import rebuild
from runner.folder.scan import scan
from runner.folder.summary import (
    GO_ON,
    last_launch,
    read_summary,
    sentence,
    summarize,
    write_summary,
)
from runner.folder.survey import Survey, survey
from runner.launch.shards import Shard
from runner.manifest.load import Loaded
from runner.manifest.resolve import decide, fill
from runner.model import files as model
from runner.plan import Fingerprints, Plan, wanted_images
from runner.prepare.prepare import recorded_in
from runner.units import counted

__all__ = ["status"]

REST_OF_A_PART = "the last launch was to make a part; run without --limit, or the other shards"
COUNTED = ("images", "done", "failed", "skipped", "missing", "made")


@os_errors_as_refusals()
def status(loaded: Loaded, output: Path, limit: int | None, part: Shard | None) -> dict[str, Any]:
    """The summary, counted anew; its `exit_code` is that of the job that was asked about. Only
    reads, but brings the reports up to date that a killed job left behind.

    Raises FolderError where a run would.
    """
    folder = OutputFolder(output, loaded.manifest.output)
    folder.check()
    if (why := folder.refusal()) and not live_launches(folder):
        raise refusal(f"the last launch was refused: {why}", ExitCode.REFUSED)
    recorded, live = recorded_in(folder), live_launches(folder)
    manifest = fill(loaded.manifest, decide(loaded.manifest, recorded))
    plan = Plan(manifest, loaded.prompts, loaded.root)
    fingerprints = Fingerprints(manifest, model.identity(manifest.model))
    if recorded is None:
        if loaded.manifest.seed is None:
            refuse_to_draw(folder, plan)
        return _never_run(folder, plan, fingerprints)
    known, record = read_summary(folder), merge(folder.journals, len(plan))
    launch, unfit = last_launch(known, record), ""
    is_running = bool(live) and part is None
    if is_running:
        launch = launch if launch.id in live else Launch("", 0)  # it only begins
        launch.seconds = round(time.time() - launch.started, 3) if launch.id else None
    if live:
        states = record.states(plan, fingerprints, scan(folder, len(plan)).sizes)
    else:
        found = _survey(folder, plan, fingerprints, record)
        states, unfit = found.states, _refusal(folder, found)
    counts = count(states, record, wanted_images(plan, limit, part), launch)
    account = record.account(launch.id)
    gave_up = is_over(counts, account, manifest.max_failures)
    now = "running" if is_running else outcome(counts, gave_up=gave_up)
    summary = summarize(now, counts, launch, account)
    if unfit:
        return {**summary, "exit_code": int(ExitCode.REFUSED), "sentence": f"refused: {unfit}"}
    # Without journals there is nothing to write that the reports do not know better.
    if not live and record.journals and _is_stale(known, summary):
        with contextlib.suppress(DiskError):  # full, or another user's: the answer holds
            rebuild(folder, plan, record, states, launch.id)
            write_summary(folder, summary, launch.id)
    is_of_all = limit is None and part is None and known.get("outcome") == "limited"
    remedy = REST_OF_A_PART if is_of_all else GO_ON
    return {**summary, "sentence": sentence(summary, counts, folder, remedy)}


def _never_run(folder: OutputFolder, plan: Plan, fingerprints: Fingerprints) -> dict[str, Any]:
    """No run has begun the folder, or its manifest.yaml is gone. Raises FolderError for what a run
    would refuse whatever the seed and the revision become that it settles."""
    there, words = 0, "never run"
    if folder.dir.is_dir():
        found = _survey(folder, plan, fingerprints, merge(folder.journals, len(plan)))
        if there := found.finished + len(found.changed):
            words = f"{folder.manifest.name} is gone, run the same command again to go on"
        found.changed.clear()
        refuse(folder, found, regenerate=False)
    return {
        "outcome": "interrupted",
        "exit_code": int(ExitCode.INCOMPLETE),
        "images": len(plan),
        "sentence": f"{words}: {there} of {counted(len(plan), 'image')} in {folder.dir}",
    }


def _survey(
    folder: OutputFolder, plan: Plan, fingerprints: Fingerprints, record: MergedRecord
) -> Survey:
    """How the images stand, and those that a run would adopt put into the record.

    An unclean end is taken on trust: only a run reads all of its files.
    """
    trusted = set(map(journal_launch, record.unclean))
    found = survey(folder, plan, fingerprints, record, trusted)
    for index, done in found.adopted.items():
        record.add_done(index, done._replace(generation=record.generation + 1))
    return found


def _refusal(folder: OutputFolder, found: Survey) -> str:
    """What a run would be refused for, or ""."""
    try:
        refuse(folder, found, regenerate=False)
    except FolderError as error:
        return str(error)
    return ""


def _is_stale(known: dict[str, Any], summary: dict[str, Any]) -> bool:
    """Whether the reports speak of a job that was killed, or of other images."""
    return known.get("outcome") in (None, "running") or any(
        known.get(key) != summary[key] for key in COUNTED
    )
