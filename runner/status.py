"""The `status` command: how an output folder stands, from its journals."""

from pathlib import Path
from typing import Any

from runner import model, report
from runner.errors import DiskError, ExitCode
from runner.folder import OutputFolder
from runner.journal import merge
from runner.lock import Shard, live_launches
from runner.manifest import Loaded, decide, fill
from runner.plan import Fingerprints, Plan
from runner.report import Launch
from runner.resume import asked_images
from runner.start import recorded_in

__all__ = ["status"]


def status(loaded: Loaded, output: Path, limit: int | None, part: Shard | None) -> dict[str, Any]:
    """The summary, rebuilt with the other reports unless a job works on the folder; its
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
    known = report.read_summary(folder)
    live = live_launches(folder)
    if live and part is None:
        summary = {**known, "outcome": "running", "exit_code": int(ExitCode.INCOMPLETE)}
        return {**summary, "sentence": report.sentence(summary, folder)}
    manifest = fill(loaded.manifest, decide(loaded.manifest, recorded))
    plan = Plan(manifest, loaded.prompts, loaded.path)
    fingerprints = Fingerprints(manifest, model.identity(manifest.model))
    record = merge(folder.journals)
    launch = _launch(known)
    asked = asked_images(plan, limit, part)
    about = (folder, plan, fingerprints, record, asked, launch)
    try:
        counts, dry = report.rebuild(*about), False
    except DiskError:  # full, or another user's: the answer holds without the files
        counts, dry = report.rebuild(*about, dry=True), True
    most = manifest.max_failures
    is_over = record.gave_up or (most is not None and counts.failed >= most)
    outcome = report.outcome(counts, gave_up=is_over)
    summary = report.write_summary(folder, outcome, counts, launch, record.errors, dry=dry)
    return {**summary, "sentence": report.sentence(summary, folder)}


def _launch(known: dict[str, Any]) -> Launch:
    """The last launch as the summary tells it."""
    values: Any = known.get("launch")
    try:
        return Launch(**values)
    except TypeError:  # lost, or not ours
        return Launch("unknown", 0)
