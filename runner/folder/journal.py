"""The append-only record of what is done: one file per process, merged by reading.

The name `000003-00001-5f3a90c2.jsonl` holds generation, rank and launch. The generation says which
launch on this folder it is, counted from 1 (a launch takes one for its survey and one for its
work). It alone orders the journals, never a clock. A line is one JSON object, written by one
`write`: a crash can tear only the last line of a file, and nobody writes to that file again.

`000003-launch-5f3a90c2.jsonl` holds what rank 0 alone knows of the launch.
`000012-packed-5f3a90c2.jsonl` holds the lines of older journals, each with its own generation: see
pack.py.
"""

import errno
import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import msgspec

from runner.folder import files
from runner.folder.accounting import Spent
from runner.folder.merged_record import Account, Failed, Fault, MergedRecord
from runner.launch.pulse import Pulse

__all__ = ["Journal", "journal_launch", "merge", "to_line"]

# 000003-00001-5f3a90c2.jsonl, 000003-launch-5f3a90c2.jsonl, 000012-packed-5f3a90c2.jsonl
JOURNAL_NAME = re.compile(r"\d{6,}-(\d{5,}|packed|launch)-[0-9a-z]+\.jsonl", re.ASCII)


class Journal:
    """The journal that one process writes. The file is made with its first line."""

    def __init__(self, folder: Path, generation: int, rank: int | None, launch: str) -> None:
        """Without a rank it is that of the launch as a whole."""
        writer = "launch" if rank is None else f"{rank:05d}"
        self.path = folder / f"{generation:06d}-{writer}-{launch}.jsonl"
        self._descriptor: int | None = None
        self._lock = threading.Lock()  # the main thread appends, and the writer's

    def done(self, index: int, fingerprint: str, size: int, crc: int, made: Any) -> None:
        self._append(done=index, fingerprint=fingerprint, size=size, crc=crc, made=made)

    def failed(
        self, index: int, fingerprint: str, kind: str, error: str, trace: str, fault: int = 0
    ) -> None:
        """`fault`: which error with a traceback of its launch it is, from 1."""
        why = {"kind": kind, "error": error, "trace": trace, "fault": fault}
        self._append(failed=index, fingerprint=fingerprint, **why)

    def moving(self, *indices: int) -> None:
        """The files of these places are about to change: what journals said about them is void."""
        self._append(moving=indices)

    def verified(self, journals: list[str]) -> None:
        """The files that these unclean journals name were read whole: once is enough."""
        self._append(verified=journals)

    def worked(self, pulse: Pulse) -> None:
        """How this process spent the launch, recorded at its end."""
        self._append(worked=msgspec.structs.asdict(pulse))

    def spent(self, spent: Spent) -> None:
        """What the launch has cost and made so far; a later line replaces it."""
        self._append(spent=msgspec.to_builtins(spent))

    def error(self, error: str, trace: str, fault: int = 0) -> None:
        """The error that ends this process; `fault` as for `failed`."""
        self._append(error=error, trace=trace, fault=fault)

    def gave_up(self, error: str) -> None:
        """This process makes no more images, and another one of this launch could not either."""
        self._append(gave_up=error)

    def close(self) -> None:
        """Write the last line, which says that this process ended in order. Raises DiskError: some
        file systems report only now that they lost what was written."""
        if self._descriptor is not None:
            self._append(end=True)
            with files.disk_errors(self.path):
                descriptor, self._descriptor = self._descriptor, None
                os.close(descriptor)

    def _append(self, **values: Any) -> None:
        """Write a whole line, or none. Raises DiskError."""
        with files.disk_errors(self.path), self._lock:
            self._write(to_line(**values))

    def _write(self, data: bytes) -> None:
        if self._descriptor is None:
            files.make_folder(self.path.parent)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL
            self._descriptor = os.open(self.path, flags, 0o666)
        start = os.fstat(self._descriptor).st_size
        try:
            files.again(lambda: self._write_from(start, data))
        except OSError:
            os.ftruncate(self._descriptor, start)  # the disk took only a part of the line
            raise

    def _write_from(self, start: int, data: bytes) -> None:
        """Write the line at this place of the file, also where a first try left a part of it. Opens
        the file anew where the server forgot it."""
        assert self._descriptor is not None
        try:
            if os.fstat(self._descriptor).st_size > start:
                os.ftruncate(self._descriptor, start)
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            if error.errno == errno.ESTALE:
                opened = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
                os.close(self._descriptor)
                self._descriptor = opened
            raise


class Line(msgspec.Struct, gc=False):
    """A line of a journal. Each method of `Journal` writes some of these keys."""

    done: int | None = None
    failed: int | None = None
    fingerprint: str = ""
    size: int = -1
    crc: int = -1
    made: msgspec.Raw = msgspec.Raw()
    kind: str = ""
    error: str | None = None
    trace: str = ""
    fault: int = 0
    generation: int | None = None  # of a packed line
    moving: tuple[int, ...] = ()
    verified: tuple[str, ...] = ()
    worked: Pulse | None = None
    spent: Spent | None = None
    gave_up: str | None = None
    end: bool = False


LINE = msgspec.json.Decoder(Line)


def journal_launch(name: str) -> str:
    """The launch in a journal's name."""
    return name.removesuffix(".jsonl").rpartition("-")[2]


def merge(folder: Path, total: int) -> MergedRecord:
    """What all journals in `folder` say together, for a plan of `total` images. Torn lines count as
    never written."""
    while True:
        try:
            record = MergedRecord(total)
            for name in _names(folder):
                _add_journal(folder / name, record)
            record.unclean -= record.verified
            return record
        except FileNotFoundError:
            continue  # a sibling shard has packed it by now: its lines are in another file


def _names(folder: Path) -> list[str]:
    """Plain files alone: a link may lead anywhere, and reading a FIFO would block."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(
            entry.name
            for entry in entries
            if JOURNAL_NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
        )


def _add_journal(path: Path, record: MergedRecord) -> None:
    """Add one journal to the record; again from its start where a network disk failed: what a line
    says twice counts once."""
    try:
        _read(path, record)
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        _read(path, record)


def _read(path: Path, record: MergedRecord) -> None:
    name, generation = path.name, int(path.name.partition("-")[0])
    if generation >= record.generation:
        record.generation, record.launch = generation, journal_launch(name)
    record.unclean.add(name)
    size = 0
    with path.open("rb") as file:
        for data in file:
            size += len(data)
            if not data.endswith(b"\n"):
                continue  # torn
            try:
                _add(LINE.decode(data), name, generation, record)
            except (ValueError, RecursionError):
                continue  # not a line of a journal
    record.journals[name] = size


def _add(line: Line, name: str, generation: int, record: MergedRecord) -> None:
    """Raises ValueError where there can be no such image."""
    if line.fault:
        _add_fault(line, name, record.account(journal_launch(name)))
    if line.generation is not None:
        generation = min(line.generation, generation)
    if line.done is not None:
        source = record.done.source_number(name, generation)
        made = bytes(line.made)
        record.put_done(line.done, line.fingerprint, line.size, line.crc, made, source)
    elif line.failed is not None:
        failed = Failed(line.fingerprint, line.kind, line.error or "", generation)
        record.add_failed(line.failed, failed)
    elif line.moving:
        record.void(line.moving, generation)
    else:
        _add_account(line, name, record)


def _add_fault(line: Line, name: str, account: Account) -> None:
    """Keep the first error of a launch."""
    if account.first is None or line.fault < account.first.number:
        rank = int(name.split("-")[1])
        account.first = Fault(line.fault, rank, line.error or "", line.trace)


def _add_account(line: Line, name: str, record: MergedRecord) -> None:
    """Add what a rank recorded about itself, not about an image."""
    account = record.account(journal_launch(name))
    if line.spent is not None:
        record.add_spent(line.spent)
    if line.worked is not None:
        account.pulses.append(line.worked)
    if line.error is not None:
        account.errors.append(line.error)
    if line.gave_up is not None:
        account.errors.append(line.gave_up)
        account.gave_up = True
    if line.end:
        record.unclean.discard(name)
    record.verified.update(line.verified)


def to_line(**values: Any) -> bytes:
    return (json.dumps(values, ensure_ascii=False, separators=(",", ":")) + "\n").encode()
