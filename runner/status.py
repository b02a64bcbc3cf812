"""The `status` command: how an output folder stands, from its journals."""

import time
from pathlib import Path
from typing import Any

from runner import model, report
from runner.errors import DiskError, ExitCode
from runner.folder import OutputFolder
from runner.journal import merge
from runner.lock import Shard, live_launches
from runner.manifest import Loaded, decide, fill
from runner.plan import Fingerprints, Plan
from runner.record import Record
from runner.report import Launch
from runner.resume import asked_images
from runner.start import recorded_in

__all__ = ["status"]


def status(loaded: Loaded, output: Path, limit: int | None, part: Shard | None) -> dict[str, Any]:
    """The summary, counted anew; unless a job works on the folder, the reports are written too. Its
    `exit_code` is that of the job that was asked about."""
    folder = OutputFolder(output, loaded.manifest.output)
    recorded = recorded_in(folder) if folder.was_run() else None
    if recorded is None:
        plan = Plan(loaded.manifest, loaded.prompts, loaded.path)
        return {
            "outcome": "interrupted",
            "exit_code": int(ExitCode.INCOMPLETE),
            "images": len(plan),
            "sentence": f"never run: 0 of {len(plan)} images in {folder.dir}",
        }
    live = live_launches(folder) if part is None else set()
    manifest = fill(loaded.manifest, decide(loaded.manifest, recorded))
    plan = Plan(manifest, loaded.prompts, loaded.path)
    fingerprints = Fingerprints(manifest, model.identity(manifest.model))
    record = merge(folder.journals, len(plan))
    launch = _launch(folder, record)
    if live:
        launch = launch if launch.id in live else Launch("", 0)  # it only begins
        launch.seconds = round(time.time() - launch.started, 3) if launch.id else None
    asked = asked_images(plan, limit, part)
    about = (folder, plan, fingerprints, record, asked, launch)
    try:
        counts, dry = report.rebuild(*about, dry=bool(live)), bool(live)
    except DiskError:  # full, or another user's: the answer holds without the files
        counts, dry = report.rebuild(*about, dry=True), True
    most, account = manifest.max_failures, record.account(launch.id)
    is_over = account.gave_up or (most is not None and counts.failed >= most)
    outcome = "running" if live else report.outcome(counts, gave_up=is_over)
    summary = report.write_summary(folder, outcome, counts, launch, account, dry=dry)
    return {**summary, "sentence": report.sentence(summary, folder)}


def _launch(folder: OutputFolder, record: Record) -> Launch:
    """The last launch as the summary tells it; where that is lost, as the journals do."""
    values: Any = report.read_summary(folder).get("launch")
    try:
        return Launch(**values)
    except TypeError:
        return Launch(record.launch, record.generation)
