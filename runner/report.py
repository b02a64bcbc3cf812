"""The report at the end of a launch: three files in the folder, and the last line."""

import contextlib
import time

from runner.errors import ExitCode, FolderError, InterruptedRunError
from runner.folder import reports
from runner.folder.journal import merge
from runner.folder.lock import guard
from runner.folder.reports import Launch
from runner.folder.survey import asked_images
from runner.prepare.assignment import Assignment
from runner.prepare.rank import Rank
from runner.say import say

__all__ = ["report"]

PATIENCE_S = 600.0  # for a sibling shard that writes the reports of a million images


def report(rank: Rank, assignment: Assignment, launch: Launch) -> ExitCode:
    """Rebuild the reports from all journals, and say in one line how it went. Raises
    InterruptedRunError where the prompts are no longer there: then summary.json alone is written.
    """
    folder, job, plan = rank.folder, rank.job, assignment.plan
    launch.seconds = round(time.monotonic() - assignment.begun, 3)
    wanted = asked_images(plan, job.limit, job.part)
    with contextlib.ExitStack() as stack:
        # Of sibling shards that end together, who writes last must have seen all journals whole.
        with contextlib.suppress(FolderError):  # one that hangs must not keep us
            stack.enter_context(guard(folder.locks / "report", PATIENCE_S))
        record = merge(folder.journals, len(plan))
        if not assignment.pending:  # the figures of the last launch say more than those of this one
            launch = reports.last_launch(reports.read_summary(folder), record)
        account = record.account(launch.id)
        try:
            states = record.states(plan, assignment.fingerprints, folder.scan(len(plan)).sizes)
        except InterruptedRunError:
            counts = reports.count(record.told(), record, wanted, launch)
            summary = reports.summarize("interrupted", counts, launch, account)
            reports.write_summary(folder, summary, launch.id)
            raise
        counts = reports.count(states, record, wanted, launch)
        is_over = reports.is_over(counts, account, assignment.manifest.max_failures)
        outcome = reports.outcome(counts, gave_up=is_over)
        summary = reports.summarize(outcome, counts, launch, account)
        reports.rebuild(folder, plan, record, states, launch.id)
        reports.write_summary(folder, summary, launch.id)
    now = summary if assignment.pending else {**summary, "made": 0}
    if counts.truncated:
        say(reports.truncation_notice(counts))
    say(reports.sentence(now, counts, folder))
    return reports.exit_code(outcome)
