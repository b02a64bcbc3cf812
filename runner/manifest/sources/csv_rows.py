"""CSV and TSV files: a row of cells per prompt, below the names of the columns."""

import csv
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from runner.errors import ManifestError, Problem
from runner.manifest.sources.columns import faults
from runner.manifest.sources.lines import clean_text
from runner.manifest.sources.records import Fields, FileRecords, repeated_name

__all__ = ["CsvRows"]

QUOTE = "; put the cell in quotes, and double the quotes in it"
WORDS = {  # of Python's csv → ours
    "unexpected end of data": "a quote is not closed",
    "field larger than": "a cell of more than 131,072 characters; is a quote not closed?",
    "new-line character seen": "a carriage return within the row; save the file with \\n line ends",
    "expected after": f"text after the closing quote of a cell{QUOTE}",
}


class CsvRows(FileRecords):
    """A record is a list of cells; quotes may hold delimiters and line ends. Empty cells are not
    given. The delimiter is the one that the first line has most of."""

    is_text = True

    def __init__(self, path: Path, shown: str, delimiter: str = "") -> None:
        super().__init__(path, shown)
        self.delimiter = delimiter
        self._names: list[str] = []

    def names(self) -> list[str]:
        """Raises ManifestError for a header that is none."""
        if not self._names:
            _, names = next(self._rows(with_header=True), (0, []))
            self._names = self._checked(names)
        return [name for name in self._names if name]

    def _checked(self, names: Any) -> list[str]:
        place = f"{self.shown}:1"
        if isinstance(names, ValueError):
            raise ManifestError([Problem(place, message) for message in _explained(names)])
        found = [str(name).strip() for name in names]
        if twice := repeated_name(found):
            raise ManifestError([Problem(place, twice)])
        if found[:1] == ["sep="]:
            words = "sep= is a line for Excel alone; remove it"
            raise ManifestError([Problem(place, words)])
        try:
            clean_text("".join(found))
        except ValueError as error:
            raise ManifestError([Problem(place, str(error))]) from None
        if not any(found):
            words = "no names of columns; the first row must have them"
            raise ManifestError([Problem(place, words)])
        return found

    def stream(self) -> Iterator[tuple[int, Any]]:
        self.names()
        yield from self._rows()

    def _rows(self, *, with_header: bool = False) -> Iterator[tuple[int, Any]]:
        """Offset and cells; a ValueError for what is no row, after which nothing can be trusted."""
        with self.open() as file:
            lines = _Lines(file)
            reader = self._reader(lines)
            is_header = not with_header
            while True:
                start = lines.position
                try:
                    row = next(reader, None)
                except UnicodeDecodeError as error:
                    reader = self._reader(lines)
                    yield start, error
                    continue
                except csv.Error as error:
                    yield start, ValueError(_words(error))
                    return
                if row is None:
                    return
                if not is_header:
                    yield start, row
                is_header = False

    def _reader(self, lines: "_Lines") -> Any:
        if not self.delimiter:
            self.delimiter = _delimiter(self.path)
        return csv.reader(lines, delimiter=self.delimiter, strict=True)

    def at(self, places: Iterable[int]) -> Iterator[list[str]]:
        with self.path.open("rb") as file:
            lines = _Lines(file)
            reader = self._reader(lines)
            for place in places:
                lines.move(place)
                yield next(reader, [])

    def fields(self, record: Any) -> Fields | None:
        if isinstance(record, ValueError):
            raise ValueError("\n".join(_explained(record)))
        found = {name: cell for name, cell in zip(self._names, record, strict=False) if cell}
        if len(record) > len(self._names) and any(record[len(self._names) :]):
            counts = f"{len(record)} cells, and the first row has {len(self._names)}"
            raise ValueError(f"{counts}; put cells that have a {self.delimiter!r} in quotes")
        for name, cell in found.items():
            if not cell.isprintable():
                _check(name, cell)
        found.pop("", None)  # a column without a name, as pandas writes it
        return found or None

    def sum(self, record: Any) -> int:
        return zlib.crc32("\x1f".join(record).encode())


class _Lines(Iterator[str]):
    """The lines of a file as text, and where the next one begins. Line ends stay."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.position = 0

    def __next__(self) -> str:
        line: bytes = self.file.readline()
        if not line:
            raise StopIteration
        is_start = not self.position
        self.position += len(line)
        return line.decode("utf-8-sig" if is_start else "utf-8")

    def move(self, place: int) -> None:
        if place != self.position:
            self.file.seek(place)
            self.position = place


def _explained(error: ValueError) -> list[str]:
    in_excel = ", in Excel as CSV UTF-8" if isinstance(error, UnicodeDecodeError) else ""
    return [message + in_excel for message in faults(error)]


def _check(name: str, cell: str) -> None:
    try:
        clean_text(cell.replace("\r\n", "\n"))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _delimiter(path: Path) -> str:
    """Excel writes semicolons where the comma is the decimal point."""
    with path.open("rb") as file:
        line = file.readline(1 << 16).decode(errors="replace")
    outside = "".join(line.split('"')[::2])
    return max(",", ";", "\t", "|", key=outside.count)


def _words(error: csv.Error) -> str:
    return next((words for part, words in WORDS.items() if part in str(error)), str(error))
