"""The `status` command: how an output folder stands.

While a job works, rank 0 keeps a summary up to date, and that is the answer. Otherwise it comes
from the journals and the files.
"""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.errors import DiskError, ExitCode, FolderError, RefusedError
from runner.folder import summary
from runner.folder.clear import remove_unfinished_reports
from runner.folder.counts import Launch, count
from runner.folder.live import Glance, glance, live_rows, silent_rows
from runner.folder.merged_record import LEFT
from runner.folder.owners import live_parts
from runner.folder.paths import OutputFolder, os_errors_as_refusals
from runner.folder.refuse import refuse
from runner.folder.reports import rebuild
from runner.folder.survey import Survey
from runner.launch.layout import Part
from runner.manifest.load import Loaded
from runner.plan import wanted_images
from runner.prepare.look import Look, look
from runner.units import counted, first_few

__all__ = ["status"]

REST_OF_A_PART = (
    "the last launch covered part of the job; run without --limit, or run the other shards"
)
SO_FAR, BY_LAST = "made so far", "made by the last launch"
COUNTED = ("images", "done", "failed", "skipped", "missing", "made")


@os_errors_as_refusals()
def status(loaded: Loaded, output: Path, limit: int | None, part: Part | None) -> dict[str, Any]:
    """The summary as it is now; its `exit_code` is that of the job that was asked about. Only
    reads, but brings the reports up to date that a killed job left behind.

    Raises FolderError where a run would.
    """
    folder = OutputFolder(output, loaded.manifest.output)
    folder.check()
    seen = glance(folder, part) if limit is None else None
    if seen is not None and seen.is_fresh:
        return {**seen.values, "sentence": summary.sentence(seen.values, folder, made=SO_FAR)}
    return _counted_anew(look(loaded, folder), limit, part, seen)


def _counted_anew(
    seen: Look, limit: int | None, part: Part | None, working: Glance | None
) -> dict[str, Any]:
    """The summary from journals and files. `working`: what a job wrote that does not write any
    more, though it lives."""
    folder = seen.folder
    if (why := folder.refusal(part)) and not _works(seen, part):
        raise RefusedError(f"the last launch was refused: {why}")
    if seen.recorded is None:
        return _never_run(seen)
    known = summary.read_summary(folder.summary)
    is_running = bool(seen.live) and part is None
    launch = _launch_of(seen, known, is_running=is_running)
    states, unfit, moves = _states(seen)
    counts = count(states, seen.record, wanted_images(seen.plan, limit, part), launch)
    if is_running:
        values = summary.summarize("running", counts, launch, seen.record, known)
        values["replicas"] = silent_rows(working) if working else live_rows(folder, seen.live)
    else:
        values = summary.conclude(counts, launch, seen.record, seen.manifest.max_failures, known)
    if unfit:
        return {**values, "exit_code": int(ExitCode.REFUSED), "sentence": f"refused: {unfit}"}
    is_limited = limit is None and part is None and _is_as_limited(known, values)
    if is_limited:  # what was asked for is there; what is asked here is not
        values["outcome"] = "limited"
    # Without journals there is nothing to write that the reports do not know better. While images
    # wait for their new places, the reports are those of the list before.
    if not seen.live and seen.record.journals and not moves and _is_stale(known, values):
        with contextlib.suppress(DiskError):  # full, or another user's: the answer holds
            rebuild(folder, seen.plan, seen.record, states, launch.id)
            summary.write_summary(folder.summary, values, launch.id)
            remove_unfinished_reports(folder)
    words = summary.sentence(
        values,
        folder,
        counts,
        remedy=REST_OF_A_PART if is_limited else "",
        made=SO_FAR if is_running else BY_LAST,
        gone=0 if is_running else _gone(seen, states),
    )
    if moves:
        words += f"; {counted(moves, 'image')} will only be moved"
    return {**values, "sentence": words}


def _gone(seen: Look, states: bytearray) -> int:
    """How many images were made as the manifest has them, but are not there."""
    missing = (index for index in seen.record.done if index < len(states) and states[index] == LEFT)
    return sum(
        seen.record.done[index].fingerprint == seen.fingerprints.of(seen.plan.task(index))
        for index in missing
    )


def _is_as_limited(known: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Whether the folder is as a launch with --limit or --shard left it, at its end."""
    is_same = all(known.get(key) == values[key] for key in ("images", "done"))
    return known.get("outcome") == "limited" and values["outcome"] == "interrupted" and is_same


def _works(seen: Look, part: Part | None) -> bool:
    """Whether a job works on this part, or on any part."""
    return part in live_parts(seen.folder) if part else bool(seen.live)


def _launch_of(seen: Look, known: Mapping[str, Any], *, is_running: bool) -> Launch:
    """The last launch, or the one that runs."""
    launch = summary.last_launch(known, seen.record)
    if is_running:
        launch = launch if launch.id in seen.live else Launch("", 0)  # it only begins
        launch.seconds = round(time.time() - launch.started, 3) if launch.id else None
    return launch


def _states(seen: Look) -> tuple[bytearray, str, int]:
    """How each image stands, what a run would be refused for, or "", and how many it would move."""
    if seen.live:
        return seen.states(), "", 0
    found = _survey(seen)
    return found.states, _refusal(seen.folder, found), len(found.moves)


def _never_run(seen: Look) -> dict[str, Any]:
    """No run has begun the folder, or its manifest.yaml is gone. Raises FolderError for what a run
    would refuse, whichever seed and revision it settles."""
    folder, images = seen.folder, len(seen.plan)
    finished, words = 0, "never run"
    if folder.dir.is_dir():
        found = _survey(seen)
        if finished := found.finished + len(found.changed):
            words = f"{folder.manifest.name} is gone, run the same command again to go on"
        found.changed.clear()
        found.reasons = [f"{first_few([path.name for path in found.beyond])}: not in the list"]
        refuse(folder, found, regenerate=False)
    return {
        "outcome": "interrupted",
        "exit_code": int(ExitCode.INCOMPLETE),
        "images": images,
        "sentence": f"{words}: {finished} of {counted(images, 'image')} in {folder.dir}",
    }


def _survey(seen: Look) -> Survey:
    """How the images stand, and those that a run would adopt put into the record.

    An unclean end is taken on trust: only a run reads all of its files.
    """
    found, record = seen.survey(trusts_journals=True), seen.record
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
