"""The records of a source: a line, a row, an element of a list, a small file."""

import codecs
import io
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from runner.errors import ManifestError, Problem

__all__ = ["Fields", "FileRecords", "Records", "repeated_name"]

Fields = Mapping[str, Any]  # name → value


def repeated_name(names: Sequence[str]) -> str:
    """What is wrong where two columns have one name; "" where each has its own."""
    twice = next((name for name in names if name and names.count(name) > 1), "")
    return f"two columns are named {twice}; rename one" if twice else ""


class Records(ABC):
    """Records in order. A record is found again by its place, a number of the source's own.

    `shown` is the source's name in messages. Raises ManifestError where it cannot be read at all.
    """

    is_text: ClassVar[bool] = False  # values are text, so numbers must be read from it
    left_out: Sequence[str] = ()  # columns that cannot be read

    def __init__(self, shown: str) -> None:
        self.shown = shown

    @abstractmethod
    def stream(self) -> Iterator[tuple[int, Any]]:
        """Place and record; a ValueError in place of one that cannot be told from the others."""

    @abstractmethod
    def at(self, places: Iterable[int]) -> Iterator[Any]:
        """The records at these places. Raises OSError."""

    @abstractmethod
    def fields(self, record: Any) -> Fields | None:
        """A record's values by name; None for a blank one. Raises ValueError, RecursionError."""

    @abstractmethod
    def where(self, place: int) -> str:
        """File and line of a record, for messages."""

    @abstractmethod
    def sum(self, record: Any) -> int:
        """A checksum of a record."""

    def names(self) -> list[str] | None:
        """The names of all columns, where they are known before the records are read."""
        return None


class FileRecords(Records):
    """Records that are parts of one file; a place is an offset."""

    def __init__(self, path: Path, shown: str) -> None:
        super().__init__(shown)
        self.path = path

    def open(self) -> io.BufferedReader:
        """Raises ManifestError for a file that is no UTF-8 text."""
        try:
            file = self.path.open("rb")
        except OSError as error:
            reason = f"{error.strerror}: {self.path}"
            raise ManifestError([Problem(self.shown, reason)]) from None
        if file.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            file.close()
            raise ManifestError([Problem(f"{self.shown}:1", "UTF-16 text; save it as UTF-8")])
        return file

    def where(self, place: int) -> str:
        """`list.jsonl:5`. Lines are counted only here."""
        number, left = 1, place
        with self.path.open("rb") as file:
            while left and (part := file.read(min(left, 1 << 20))):
                number += part.count(b"\n")
                left -= len(part)
        return f"{self.shown}:{number}"

    def sum(self, record: bytes) -> int:
        """Without the line's ending: the last line gets one when another is added."""
        return zlib.crc32(record.rstrip(b"\r\n"))
