"""The append-only record of what is done: one file per process, merged by reading.

`.runner/journal/000003-00001-5f3a90c2.jsonl`: generation (the how manieth launch on this folder),
rank, launch. A line is one JSON object, written by one `write`, so that a crash can only
tear the last line of a file, which nobody writes to again. Order is by generation, never by clocks.
"""

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from runner.errors import DiskError

__all__ = ["LOST", "Done", "Failed", "Journal", "Record", "is_skip", "merge"]

LOST = "replica-lost"  # the kind of failure of an image that ended its replica


class Done(NamedTuple):
    """An image that is there: what its file must be, and how it was made."""

    fingerprint: str
    size: int
    crc: int
    made: dict[str, Any]
    journal: str


class Failed(NamedTuple):
    """An image that could not be made: `kind` is a word for machines, `error` a line."""

    fingerprint: str
    kind: str
    error: str


@dataclass(slots=True)
class Record:
    """All journals of a folder, merged."""

    done: dict[int, Done] = field(default_factory=dict)
    failed: dict[int, Failed] = field(default_factory=dict)
    unclean: set[str] = field(default_factory=set)  # journals without their last line
    errors: list[str] = field(default_factory=list)  # what ended ranks of the last launch
    gave_up: bool = False  # a rank of the last launch made no more images, and a new one would not
    generation: int = 0


def is_skip(failed: Failed, on_flagged: str) -> bool:
    """Whether an image was left out on purpose, and the manifest still says so."""
    return failed.kind == "skipped" and on_flagged == "skip"


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

    def error(self, error: str, trace: str) -> None:
        """What ends this process."""
        self._append(error=error, trace=trace)

    def gave_up(self, error: str) -> None:
        """This process makes no more images, since others of this launch would fare no better."""
        self._append(gave_up=error)

    def close(self) -> None:
        """The last line, which says that this process ended in order."""
        if self._descriptor is not None:
            self._append(end=True)
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, **values: Any) -> None:
        """A whole line, or none. Raises DiskError."""
        line = json.dumps(values, ensure_ascii=False, separators=(",", ":")) + "\n"
        try:
            with self._lock:
                self._write(line.encode())
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


def merge(folder: Path) -> Record:
    """What all journals in `folder` say together: a later launch's word holds; within a launch,
    done holds over failed. Torn lines count as never written."""
    record = Record()
    verified: set[str] = set()
    for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else []:
        if path.is_symlink() or not path.is_file():
            continue  # none of ours, and a pipe would keep us
        generation = int(path.name[:6]) if path.name[:6].isdecimal() else 0
        if generation > record.generation:
            record.generation, record.errors, record.gave_up = generation, [], False
        record.unclean.add(path.name)
        for values in _lines(path):
            try:
                _take(record, verified, path.name, values)
            except (KeyError, TypeError, ValueError, OverflowError):
                continue  # not a line of ours
    record.unclean -= verified
    return record


def _take(record: Record, verified: set[str], name: str, values: dict[str, Any]) -> None:
    if "done" in values:
        index = int(values["done"])
        record.done[index] = Done(
            str(values["fingerprint"]),
            int(values["size"]),
            int(values["crc"]),
            dict(values["made"]),
            name,
        )
        record.failed.pop(index, None)
    elif "failed" in values:
        index = int(values["failed"])
        done = record.done.get(index)
        if done is None or done.journal[:6] != name[:6]:
            failed = Failed(*(str(values[key]) for key in ("fingerprint", "kind", "error")))
            record.failed[index] = failed
    elif "verified" in values:
        verified.update(map(str, values["verified"]))
    elif "error" in values:
        record.errors.append(values["error"])
    elif "gave_up" in values:
        record.errors.append(values["gave_up"])
        record.gave_up = True
    elif "end" in values:
        record.unclean.discard(name)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            try:
                values = json.loads(line) if line.endswith(b"\n") else None
            except (ValueError, RecursionError):
                continue
            if isinstance(values, dict):
                yield values
