"""What the journals of a folder say together, in a few arrays of numbers for a million images."""

from __future__ import annotations  # array[int] is no type at run time before 3.12

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from runner.plan import Fingerprints, Plan

__all__ = [
    "DONE",
    "FAILED",
    "LEFT",
    "LOST",
    "SKIPPED",
    "Account",
    "Done",
    "DoneImages",
    "Failed",
    "Record",
    "Work",
]

LEFT, DONE, FAILED, SKIPPED = range(4)  # how an image stands; skipped: left out on purpose
# Of an image that is done: fingerprint, size, CRC-32, seconds (NaN where they are not known), and
# the numbers of what it has in common with others and of its source.
Row = tuple[bytes, int, int, float, int, int]
LOST = "replica-lost"  # the kind of failure of an image that ended its replica
PRINT_BYTES = 16  # of a fingerprint


class Done(NamedTuple):
    """An image that is there: what its file must be, and how it was made."""

    fingerprint: str
    size: int
    crc: int
    made: dict[str, Any]
    journal: str
    generation: int


class Failed(NamedTuple):
    """An image that could not be made: `kind` is a word for machines, `error` a line."""

    fingerprint: str
    kind: str
    error: str
    generation: int


class Work(NamedTuple):
    """What a replica did in a launch, in seconds: when it began, from the launch's begin, and for
    how long it was busy with batches."""

    replica: int
    images: int
    start_s: float
    busy_s: float


@dataclass(slots=True)
class Account:
    """What the ranks of one launch say of themselves."""

    errors: list[str] = field(default_factory=list)  # what ended them
    gave_up: bool = False  # one made no more images, and a new one would not
    work: list[Work] = field(default_factory=list)


class DoneImages(Mapping[int, Done]):
    """Index → Done, for indices below `total`, in 44 bytes an image: a million are no more than
    that. What is equal for many images, all but the seconds of `made`, is kept once."""

    def __init__(self, total: int) -> None:
        self._prints = bytearray(PRINT_BYTES * total)
        self._sizes = array("Q", bytes(8 * total))
        self._crcs = array("I", bytes(4 * total))
        self._seconds = array("d", bytes(8 * total))
        self._made = array("I", bytes(4 * total))
        self._sources = array("I", bytes(4 * total))  # 0: not done
        self._made_known: dict[str, int] = {}
        self._made_values: list[dict[str, Any]] = []
        self._source_known: dict[tuple[str, int], int] = {}
        self._source_values: list[tuple[str, int]] = [("", -1)]

    def __getitem__(self, index: int) -> Done:
        source = self._sources[index] if 0 <= index < len(self._sources) else 0
        if not source:
            raise KeyError(index)
        start = PRINT_BYTES * index
        made = dict(self._made_values[self._made[index]])
        if not math.isnan(self._seconds[index]):
            made["seconds"] = self._seconds[index]
        return Done(
            self._prints[start : start + PRINT_BYTES].hex(),
            self._sizes[index],
            self._crcs[index],
            made,
            *self._source_values[source],
        )

    def __iter__(self) -> Iterator[int]:
        return (index for index, source in enumerate(self._sources) if source)

    def __len__(self) -> int:
        return len(self._sources) - self._sources.count(0)

    def generation(self, index: int) -> int:
        """-1 for an image that is not done."""
        return self._source_values[self._sources[index]][1]

    def source(self, index: int) -> tuple[str, int]:
        """The journal and the generation of an image that is done."""
        return self._source_values[self._sources[index]]

    def is_truncated(self, index: int) -> bool:
        """Whether a tokenizer cut a text of an image that is done."""
        return "truncated" in self._made_values[self._made[index]]

    def holds(self, index: int, fingerprint: bytes, size: int) -> bool:
        """Whether an image is done, is the one that is asked for, and has the size of its file."""
        start = PRINT_BYTES * index
        return (
            self._sizes[index] == size
            and self._sources[index] != 0
            and self._prints[start : start + PRINT_BYTES] == fingerprint
        )

    def common_number(self, made: Mapping[str, Any]) -> int:
        """For a row: `made` is without the seconds."""
        return self._number(self._made_known, self._made_values, repr(made), made)

    def source_number(self, journal: str, generation: int) -> int:
        """For a row: the journal that tells of the image, and the generation that the line has."""
        source = (journal, generation)
        return self._number(self._source_known, self._source_values, source, source)

    def put(self, index: int, row: Row) -> bool:
        """Whether it is the latest word, and so was taken. Raises ValueError for what is no image
        of ours."""
        fingerprint, size, crc, seconds, common, source = row
        if len(fingerprint) != PRINT_BYTES or not (0 <= size < 2**63 and 0 <= crc < 2**32):
            raise ValueError(row)
        if self._source_values[source][1] < self.generation(index):
            return False
        self._prints[PRINT_BYTES * index : PRINT_BYTES * (index + 1)] = fingerprint
        self._sizes[index], self._crcs[index], self._seconds[index] = size, crc, seconds
        self._made[index], self._sources[index] = common, source
        return True

    @staticmethod
    def _number(known: dict[Any, int], values: list[Any], key: Any, value: Any) -> int:
        number = known.get(key)
        if number is None:
            number = known[key] = len(values)
            values.append(value)
        return number


class Record:
    """All journals of a folder, merged, for a plan of `total` images. A later launch's word holds;
    within a launch, done holds over failed. In whatever order it is told."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = DoneImages(total)
        self.failed: dict[int, Failed] = {}
        self.unclean: set[str] = set()  # journals without their last line
        self.accounts: dict[str, Account] = {}  # of launches
        self.journals: dict[str, int] = {}  # name → bytes read
        self.lines = 0  # of images
        self.generation = 0
        self.launch = ""  # one of the last generation

    def account(self, launch: str) -> Account:
        return self.accounts.setdefault(launch, Account())

    def add_done(self, index: int, done: Done) -> None:
        """Raises ValueError, TypeError, OverflowError for what is no image of ours."""
        made = dict(done.made)
        seconds = made.pop("seconds") if type(made.get("seconds")) is float else math.nan
        file = (bytes.fromhex(done.fingerprint), done.size, done.crc)
        source = self.done.source_number(done.journal, done.generation)
        self.put_done(index, (*file, seconds, self.done.common_number(made), source))

    def put_done(self, index: int, row: Row) -> None:
        """As `add_done`."""
        self._check(index)
        failed, is_latest = self.failed.get(index), self.done.put(index, row)
        if is_latest and failed is not None and failed.generation <= self.done.generation(index):
            del self.failed[index]

    def add_failed(self, index: int, failed: Failed) -> None:
        self._check(index)
        known = self.failed.get(index)
        if self.done.generation(index) >= failed.generation:
            return
        if known is None or known.generation <= failed.generation:
            self.failed[index] = failed

    def states(self, plan: Plan, fingerprints: Fingerprints, sizes: Sequence[int]) -> bytearray:
        """How each image of the plan stands. It is done where a journal says so with the plan's
        fingerprint and its file has the size recorded; `sizes` are below 0 where there is none."""
        found = bytearray(len(plan))
        for task in plan.tasks():
            size, failed = sizes[task.index], self.failed.get(task.index)
            if size < 0 and failed is None:
                continue
            fingerprint = fingerprints.digest(task)
            if self.done.holds(task.index, fingerprint, size):
                found[task.index] = DONE
            elif failed is not None and failed.fingerprint == fingerprint.hex():
                is_skip = failed.kind == "skipped" and plan.manifest.on_flagged == "skip"
                found[task.index] = SKIPPED if is_skip else FAILED
        return found

    def told(self) -> bytearray:
        """The same as far as the journals alone tell."""
        found = bytearray(self.total)
        for index in self.failed:
            found[index] = FAILED
        for index in self.done:
            found[index] = DONE
        return found

    def _check(self, index: int) -> None:
        """An image beyond the plan is none of this record."""
        self.lines += 1
        if not 0 <= index < self.total:
            raise ValueError(index)
