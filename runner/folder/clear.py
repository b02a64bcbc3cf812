"""Make the folder ready for the work: remove what is in the way, record what the survey learned."""

from collections.abc import Callable

from runner.folder import files
from runner.folder.journal import Journal, journal_launch
from runner.folder.merged_record import MergedRecord
from runner.folder.owners import live_launches
from runner.folder.paths import OutputFolder
from runner.folder.survey import Survey
from runner.plan import Plan

__all__ = ["clear", "remove_unfinished_reports"]


def remove_unfinished_reports(folder: OutputFolder) -> None:
    """Remove what a process that was killed in the middle of the reports left behind."""
    paths = (folder.metadata, folder.failures, folder.summary, folder.report)
    reports = tuple(f".{path.name}." for path in paths)
    found = [path for path in folder.dir.iterdir() if path.name.startswith(reports)]
    writers = {launch for path in found if (launch := files.temporary_launch(path.name))}
    live = live_launches(folder, writers, sure=True) if writers else set()
    for path in found:
        if files.temporary_launch(path.name) in writers - live:
            path.unlink(missing_ok=True)


def clear(
    folder: OutputFolder,
    found: Survey,
    journal: Journal,
    record: MergedRecord,
    live: set[str],
    wanted: bytearray,
    plan: Plan,
    check: Callable[[], None],
) -> None:
    """Remove images beyond the end of the list, damaged images that are wanted, and temporary files
    of launches that ended; record the adopted images. Changed images stay until their new ones
    replace them. `check` is called before anything is removed; it raises TakenOverError."""
    # A launch takes its lock before it writes. So look who lives after the files were listed.
    writers = {launch for _, launch in found.temporaries} | set(map(journal_launch, record.unclean))
    if writers - live:
        live = live | live_launches(folder, writers - live, sure=True)
    check()
    for path in found.beyond:
        path.unlink(missing_ok=True)
    for index in filter(wanted.__getitem__, found.damaged):
        folder.image(plan.task(index)).unlink(missing_ok=True)
    for index, done in found.adopted.items():
        journal.done(index, done.fingerprint, done.size, done.crc, done.made)
    for index, failed in found.skipped.items():
        journal.failed(index, failed.fingerprint, failed.kind, failed.error, "")
    for path, launch in found.temporaries:
        if launch not in live:
            path.unlink(missing_ok=True)
    verified = {name for name in record.unclean if journal_launch(name) not in live}
    if verified and all(map(wanted.__getitem__, found.damaged)):
        journal.verified(sorted(verified))
        record.unclean -= verified
