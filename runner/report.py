"""The report at the end of a launch: the files in the folder that say how it went, and the last
line."""

import contextlib
import logging
import time

from runner.errors import DiskError, ExitCode, FolderError, InterruptedRunError
from runner.folder import summary
from runner.folder.counts import Launch, count, exit_code
from runner.folder.journal import merge
from runner.folder.lock import guard
from runner.folder.metrics import write_metrics
from runner.folder.reports import rebuild
from runner.folder.scan import scan
from runner.gallery.page import Shown, write_page
from runner.launch.broken import broken
from runner.plan import wanted_images
from runner.prepare.assignment import Assignment
from runner.prepare.rank import Rank
from runner.say import RESULT, say

__all__ = ["report"]

PATIENCE_S = 600.0  # for a sibling shard that writes the reports of a million images


def report(
    rank: Rank, assignment: Assignment, launch: Launch, *, is_refused: bool = False
) -> ExitCode:
    """Rebuild the reports from all journals, and say in one line how it went, except where the
    launch was refused: that has a line already.

    Raises InterruptedRunError where the prompts are no longer there: then summary.json alone is
    written. Raises TakenOverError where the folder is another job's by now: then nothing is.
    """
    folder, job, plan = rank.folder, rank.job, assignment.plan
    check = rank.owned(assignment.launch).check
    check()
    launch.seconds = round(time.monotonic() - assignment.begun, 3)
    wanted = wanted_images(plan, job.limit, job.part)
    with contextlib.ExitStack() as stack:
        # Of sibling shards that end together, the last to write must have seen all journals whole.
        with contextlib.suppress(FolderError):  # do not wait for one that hangs
            stack.enter_context(guard(folder.locks / "report", PATIENCE_S))
        record = merge(folder.journals, len(plan))
        known = summary.read_summary(folder.live_summary(job.part))
        if not assignment.pending:  # the figures of the last launch say more than those of this one
            known = summary.read_summary(folder.summary)
            launch = summary.last_launch(known, record)
        account = record.account(launch.id)
        try:
            states = record.states(plan, assignment.fingerprints, scan(folder, plan).sizes)
        except InterruptedRunError:
            counts = count(record.states_by_journals(), record, wanted, launch)
            values = summary.summarize("interrupted", counts, launch, record, known)
            summary.write_summary(folder.summary, values, assignment.launch, check)
            raise
        counts = count(states, record, wanted, launch)
        most = assignment.manifest.max_failures
        values = summary.conclude(counts, launch, record, most, known)
        rebuild(folder, plan, record, states, assignment.launch, check)
        summary.write_summary(folder.summary, values, assignment.launch, check)
        with contextlib.suppress(DiskError):
            write_metrics(folder, job.part, values, assignment.launch, check)
        if job.part:
            folder.live_summary(job.part).unlink(missing_ok=True)
        if assignment.manifest.report:
            shown = Shown(folder, job.loaded.path.stem, plan, record, states, values)
            write_page(shown, assignment.launch, check, is_hurried=rank.stop.requested)
        if not counts.left:  # whatever stopped a rank, another one made its images
            folder.forget_refusal(job.part)
    if is_refused:
        return ExitCode.REFUSED
    made = values["made"] if assignment.pending else 0
    if counts.truncated:
        say(summary.truncation_notice(counts), level=logging.WARNING)
    say(summary.sentence({**values, "made": made}, folder, counts), level=RESULT)
    for words in broken(rank.store, launch.replicas):
        say(f"{words}; check it, or leave it out with CUDA_VISIBLE_DEVICES", level=logging.WARNING)
    if account.gave_up and not made:
        say(account.errors[-1], level=logging.ERROR)
    return exit_code(values["outcome"])
