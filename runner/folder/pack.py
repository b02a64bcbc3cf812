"""Pack many journals into one, so that a merge does not get slower with every launch.

Packed lines keep their generations, so a merge gives the same result whichever of the old files are
still there.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from runner.folder import files
from runner.folder.journal import journal_launch, to_line
from runner.folder.merged_record import MergedRecord

__all__ = ["pack"]

MANY_JOURNALS = 1000  # more are packed
MANY_LINES = 10_000  # so many outdated lines, and more of them than of valid ones, are packed


def pack(
    folder: Path,
    record: MergedRecord,
    live: Callable[[], set[str]],
    launch: str,
    check: Callable[[], None] = files.no_check,
) -> None:
    """Put what the clean journals of ended launches say into one file and remove them, where there
    are many or most of their lines are outdated.

    `live` returns the launches that may still write; it is asked after the merge. Nothing is lost
    in a crash, or where a sibling shard reads or packs at the same time. `check` is called before
    the new file gets its name. Raises DiskError.
    """
    valid = len(record.done) + len(record.failed)
    if len(record.journals) <= MANY_JOURNALS and record.lines <= 2 * valid + MANY_LINES:
        return
    writing = live()
    ended = [
        name
        for name in record.journals
        if journal_launch(name) not in writing and name not in record.unclean
    ]
    path = folder / f"{record.generation:06d}-packed-{launch}.jsonl"
    files.replace(path, _packed(record, set(ended)), launch, check)
    _sync(folder)
    for name in ended:
        with contextlib.suppress(FileNotFoundError):  # a sibling shard removed it
            # A process that is slow to die may have written since.
            if (folder / name).stat().st_size == record.journals[name]:
                (folder / name).unlink()


def _packed(record: MergedRecord, ended: set[str]) -> Iterator[bytes]:
    for index, done in record.done.items():
        if done.journal in ended:
            file = {"fingerprint": done.fingerprint, "size": done.size, "crc": done.crc}
            yield to_line(done=index, **file, made=done.made, generation=done.generation)
    for index, failed in record.failed.items():
        yield to_line(failed=index, **failed._asdict())
    for index, generation in record.moved.items():
        yield to_line(moving=[index], generation=generation)
    for spent in record.spent.values():
        yield to_line(spent=msgspec.to_builtins(spent))
    yield to_line(end=True)


def _sync(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
