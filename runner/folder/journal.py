"""The append-only record of what is done: one file per process, merged by reading.

`.runner/journal/000003-00001-5f3a90c2.jsonl`: generation (the how manieth launch on this folder),
rank, launch. A line is one JSON object, written by one `write`, so that a crash can only
tear the last line of a file, which nobody writes to again. Order is by generation, never by clocks.

Once there are many, a launch packs those of launches that ended into one more file, and removes
them. The lines of `000012-packed-….jsonl` name their generations, so that a merge says the same
whichever of the old files are still there, and in whatever order it reads.
"""

import binascii
import contextlib
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic_core

from runner.errors import DiskError
from runner.folder import files
from runner.folder.merged_record import Done, Failed, Record, Work

__all__ = ["Journal", "launch_of", "merge", "pack"]

# 000003-00001-5f3a90c2.jsonl, 000012-packed-5f3a90c2.jsonl
OURS = re.compile(r"\d{6,}-(\d{5,}|packed)-[0-9a-z]+\.jsonl", re.ASCII)
# What `Journal.done` writes, where the seconds are the last that a pipeline tells of an image.
USUAL = re.compile(
    rb'\{"done":(0|[1-9]\d*),"fingerprint":"([0-9a-f]{32})","size":(0|[1-9]\d*),"crc":(0|[1-9]\d*),'
    rb'"made":(\{.*)"seconds":((?:0|[1-9]\d*)\.\d+)\}\}\n'
)
MANY_JOURNALS = 1000  # more are packed
MANY_LINES = 10_000  # so many that hold no more, and more of them than of those that do, are packed


class Journal:
    """One process's own journal, opened at its first line."""

    def __init__(self, folder: Path, generation: int, rank: int, launch: str) -> None:
        self.path = folder / f"{generation:06d}-{rank:05d}-{launch}.jsonl"
        self._descriptor: int | None = None
        self._lock = threading.Lock()  # the writer's thread appends, and the main thread

    def done(self, index: int, fingerprint: str, size: int, crc: int, made: Any) -> None:
        self._append(done=index, fingerprint=fingerprint, size=size, crc=crc, made=made)

    def failed(self, index: int, fingerprint: str, kind: str, error: str, trace: str) -> None:
        self._append(failed=index, fingerprint=fingerprint, kind=kind, error=error, trace=trace)

    def verified(self, journals: list[str]) -> None:
        """Files named by these unclean journals were read whole: no need to do it again."""
        self._append(verified=journals)

    def worked(self, work: Work) -> None:
        """What this process's replica did, at its end."""
        self._append(worked=work._asdict())

    def error(self, error: str, trace: str) -> None:
        """What ends this process."""
        self._append(error=error, trace=trace)

    def gave_up(self, error: str) -> None:
        """This process makes no more images, since others of this launch would fare no better."""
        self._append(gave_up=error)

    def close(self) -> None:
        """The last line, which says that this process ended in order. Raises DiskError: some file
        systems tell only now that they lost what was written."""
        if self._descriptor is not None:
            self._append(end=True)
            with self._told():
                descriptor, self._descriptor = self._descriptor, None
                os.close(descriptor)

    def _append(self, **values: Any) -> None:
        """A whole line, or none. Raises DiskError."""
        with self._told(), self._lock:
            self._write(_line(**values))

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DiskError(error.errno, f"{self.path}: {error.strerror}") from error

    def _write(self, data: bytes) -> None:
        if self._descriptor is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL
            self._descriptor = os.open(self.path, flags, 0o666)
        start = os.fstat(self._descriptor).st_size
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            os.ftruncate(self._descriptor, start)  # the disk took a part of the line
            raise


def launch_of(journal: str) -> str:
    """The launch in a journal's name."""
    return journal.removesuffix(".jsonl").rpartition("-")[2]


def merge(folder: Path, total: int) -> Record:
    """What all journals in `folder` say together of the images below `total`. Torn lines count as
    never written."""
    while True:
        try:
            return _merge(folder, total)
        except FileNotFoundError:
            continue  # a sibling shard packed it since we listed it: its lines are elsewhere


def _merge(folder: Path, total: int) -> Record:
    record = Record(total)
    verified: set[str] = set()
    numbers: dict[bytes, int] = {}
    for name in _names(folder):
        generation = int(name.partition("-")[0])
        if generation >= record.generation:
            record.generation, record.launch = generation, launch_of(name)
        record.unclean.add(name)
        record.journals[name] = 0
        source = record.done.source_number(name, generation)
        with (folder / name).open("rb") as file:
            for line in file:
                record.journals[name] += len(line)
                if not line.endswith(b"\n"):
                    continue  # torn
                try:
                    if not _take_usual(record, numbers, source, line):
                        _take(record, verified, name, generation, pydantic_core.from_json(line))
                except (KeyError, TypeError, ValueError, OverflowError):
                    continue  # not a line of ours
    record.unclean -= verified
    return record


def _names(folder: Path) -> list[str]:
    """Files of ours alone: a link is none, and a pipe would keep us."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(
            entry.name
            for entry in entries
            if OURS.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
        )


def _take_usual(record: Record, numbers: dict[bytes, int], source: int, line: bytes) -> bool:
    """A line as nearly all are, at half the cost of JSON: what its image has in common with others
    is parsed once, and its number kept. False for any other line."""
    found = USUAL.fullmatch(line)
    if found is None:
        return False
    index, fingerprint, size, crc, made, seconds = found.groups()
    number = numbers.get(made)
    if number is None:
        try:
            values = pydantic_core.from_json(made + b'"seconds":0}')
        except ValueError:
            return False
        del values["seconds"]
        number = numbers[made] = record.done.common_number(values)
    file = (binascii.unhexlify(fingerprint), int(size), int(crc))
    record.put_done(int(index), (*file, float(seconds), number, source))
    return True


def _take(
    record: Record, verified: set[str], name: str, generation: int, values: dict[str, Any]
) -> None:
    if "done" in values:
        done = Done(
            values["fingerprint"],
            int(values["size"]),
            int(values["crc"]),
            values["made"],
            name,
            _generation(values, generation),
        )
        record.add_done(int(values["done"]), done)
    elif "failed" in values:
        failed = Failed(
            str(values["fingerprint"]),
            str(values["kind"]),
            str(values["error"]),
            _generation(values, generation),
        )
        record.add_failed(int(values["failed"]), failed)
    elif "verified" in values:
        verified.update(map(str, values["verified"]))
    elif "worked" in values:
        record.account(launch_of(name)).work.append(_work(values["worked"]))
    elif "error" in values:
        record.account(launch_of(name)).errors.append(str(values["error"]))
    elif "gave_up" in values:
        account = record.account(launch_of(name))
        account.errors.append(str(values["gave_up"]))
        account.gave_up = True
    elif "end" in values:
        record.unclean.discard(name)


def _generation(values: dict[str, Any], of_file: int) -> int:
    """A line's own, where it was packed: never a later one than that of the file."""
    return min(int(values.get("generation", of_file)), of_file)


def _work(values: dict[str, Any]) -> Work:
    seconds = (round(float(values[key]), 3) for key in ("start_s", "busy_s"))
    return Work(int(values["replica"]), int(values["images"]), *seconds)


def pack(folder: Path, record: Record, live: set[str], launch: str) -> None:
    """Put what clean journals of ended launches say into one file, and remove them, where there are
    many or where most of their lines hold no more: so a merge takes no longer with every launch.

    `live` are launches that may still write, found out after the merge. A crash loses nothing, and
    neither does a sibling shard that does the same or reads meanwhile. Raises DiskError.
    """
    held = len(record.done) + len(record.failed)
    if len(record.journals) <= MANY_JOURNALS and record.lines <= 2 * held + MANY_LINES:
        return
    ended = [
        name
        for name in record.journals
        if launch_of(name) not in live and name not in record.unclean
    ]
    path = folder / f"{record.generation:06d}-packed-{launch}.jsonl"
    files.replace(path, _packed(record, set(ended)), launch)
    _sync(folder)
    for name in ended:
        with contextlib.suppress(FileNotFoundError):  # a sibling shard did it
            # Whoever is slow to die may have written since.
            if (folder / name).stat().st_size == record.journals[name]:
                (folder / name).unlink()


def _packed(record: Record, ended: set[str]) -> Iterator[bytes]:
    for index, done in record.done.items():
        if done.journal in ended:
            about = {"fingerprint": done.fingerprint, "size": done.size, "crc": done.crc}
            yield _line(done=index, **about, made=done.made, generation=done.generation)
    for index, failed in record.failed.items():
        yield _line(failed=index, **failed._asdict())
    yield _line(end=True)


def _sync(folder: Path) -> None:
    """Names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _line(**values: Any) -> bytes:
    return (json.dumps(values, ensure_ascii=False, separators=(",", ":")) + "\n").encode()
