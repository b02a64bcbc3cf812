"""The `status` command: how an output folder stands, from its journals."""

import contextlib
import time
from pathlib import Path
from typing import Any

from runner import model, report
from runner.errors import DiskError, ExitCode, FolderError, refusal
from runner.folder import OutputFolder, told_as_refusal
from runner.journal import launch_of, merge
from runner.lock import Shard, live_launches
from runner.manifest import Loaded, decide, fill
from runner.plan import Fingerprints, Plan
from runner.record import Record
from runner.report import Launch
from runner.resume import asked_images, refuse, refuse_to_draw, survey
from runner.start import recorded_in
from runner.units import counted

__all__ = ["status"]

COUNTED = ("images", "done", "failed", "skipped", "missing", "made")


@told_as_refusal()
def status(loaded: Loaded, output: Path, limit: int | None, part: Shard | None) -> dict[str, Any]:
    """The summary, counted anew; its `exit_code` is that of the job that was asked about. Only
    reads, but brings the reports up to date that a killed job left behind.

    Raises FolderError where a run would.
    """
    folder = OutputFolder(output, loaded.manifest.output)
    folder.check()
    if (why := folder.refusal()) and not live_launches(folder):
        raise refusal(f"the last launch was refused: {why}", ExitCode.REFUSED)
    recorded = recorded_in(folder)
    if recorded is None:
        return _never_run(folder, Plan(loaded.manifest, loaded.prompts, loaded.path))
    manifest = fill(loaded.manifest, decide(loaded.manifest, recorded))
    plan = Plan(manifest, loaded.prompts, loaded.path)
    live = live_launches(folder)
    known, record = report.read_summary(folder), merge(folder.journals, len(plan))
    launch = _launch(known, record)
    is_running = bool(live) and part is None
    if is_running:
        launch = launch if launch.id in live else Launch("", 0)  # it only begins
        launch.seconds = round(time.time() - launch.started, 3) if launch.id else None
    fingerprints = Fingerprints(manifest, model.identity(manifest.model))
    unfit = "" if live else _adopt(folder, plan, fingerprints, record)
    about = (folder, plan, fingerprints, record, asked_images(plan, limit, part), launch)
    counts, account = report.rebuild(*about, dry=True), record.account(launch.id)
    is_over = report.is_over(counts, account, manifest.max_failures)
    outcome = "running" if is_running else report.outcome(counts, gave_up=is_over)
    told = (folder, outcome, counts, launch, account)
    summary = report.write_summary(*told, dry=True)
    if unfit:
        return {**summary, "exit_code": int(ExitCode.REFUSED), "sentence": f"refused: {unfit}"}
    # Without journals there is nothing to write that the reports do not know better.
    if not live and record.journals and _is_stale(known, summary):
        with contextlib.suppress(DiskError):  # full, or another user's: the answer holds
            report.rebuild(*about)
            report.write_summary(*told)
    return {**summary, "sentence": report.sentence(summary, folder)}


def _never_run(folder: OutputFolder, plan: Plan) -> dict[str, Any]:
    """No run has begun the folder, or its manifest.yaml is gone. Raises FolderError for what a run
    would refuse whatever the seed and the revision become that it settles."""
    if plan.manifest.seed is None:
        refuse_to_draw(folder, plan)
    if folder.dir.is_dir():
        fingerprints = Fingerprints(plan.manifest, model.identity(plan.manifest.model))
        found = survey(folder, plan, fingerprints, Record(len(plan)), set())
        found.changed.clear()
        refuse(folder, found, regenerate=False)
    return {
        "outcome": "interrupted",
        "exit_code": int(ExitCode.INCOMPLETE),
        "images": len(plan),
        "sentence": f"never run: 0 of {counted(len(plan), 'image')} in {folder.dir}",
    }


def _adopt(folder: OutputFolder, plan: Plan, fingerprints: Fingerprints, record: Record) -> str:
    """Count images as done that a run would adopt; return what it would be refused for, or "".

    An unclean end is taken on trust: only a run reads all of its files.
    """
    trusted = set(map(launch_of, record.unclean))
    found = survey(folder, plan, fingerprints, record, trusted)
    for task, done in found.adopted:
        record.add_done(task.index, done._replace(generation=record.generation + 1))
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


def _launch(known: dict[str, Any], record: Record) -> Launch:
    """The last launch as the summary tells it; where that is lost, as the journals do."""
    values: Any = known.get("launch")
    try:
        return Launch(**values)
    except TypeError:
        return Launch(record.launch, record.generation)
