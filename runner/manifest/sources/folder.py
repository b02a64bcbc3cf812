"""A folder of text files, one prompt each."""

import contextlib
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from runner.errors import ManifestError, Problem
from runner.manifest.sources.lines import clean_text
from runner.manifest.sources.records import Fields, Records
from runner.say import is_utf8

__all__ = ["TextFolder", "inner_folders"]


def inner_folders(path: Path) -> list[str]:
    """The names of folders in this one that have such files, too: they are left out."""
    with contextlib.suppress(OSError):
        return sorted(
            child.name
            for child in path.iterdir()
            if child.is_dir() and next(child.glob("*.txt"), None) is not None
        )
    return []


class TextFolder(Records):
    """A record is a file, by its name; the name without .txt is the id. Other files are ignored:
    captions often lie beside their images."""

    def __init__(self, path: Path, shown: str) -> None:
        super().__init__(shown)
        self.path = path
        try:
            children = [child for child in path.iterdir() if child.suffix == ".txt"]
        except OSError as error:
            raise ManifestError([Problem(shown, f"{error.strerror}: {path}")]) from None
        names = sorted(child.name for child in children if not child.is_dir())
        self._names = [name for name in names if not name.startswith(".")]

    def stream(self) -> Iterator[tuple[int, Any]]:
        for place, name in enumerate(self._names):
            try:
                _check(self.path / name)
                yield place, next(self.at([place]))
            except OSError as error:
                yield place, ValueError(error.strerror)
            except ValueError as error:
                yield place, error

    def at(self, places: Iterable[int]) -> Iterator[tuple[str, bytes]]:
        for place in places:
            name = self._names[place]
            yield name.removesuffix(".txt"), (self.path / name).read_bytes()

    def fields(self, record: Any) -> Fields:
        if isinstance(record, ValueError):
            raise record
        name, data = record
        text = data.decode("utf-8-sig").replace("\r\n", "\n").rstrip("\n")
        return {"id": name, "prompt": clean_text(text)}

    def where(self, place: int) -> str:
        return f"{self.shown}/{self._names[place]}"

    def sum(self, record: tuple[str, bytes]) -> int:
        return zlib.crc32(record[1], zlib.crc32(record[0].encode(errors="surrogateescape")))


def _check(path: Path) -> None:
    """Raises ValueError for what is no prompt: reading a FIFO would block."""
    if path.exists() and not path.is_file():
        raise ValueError("not a file; remove it")
    if not is_utf8(path.name):
        raise ValueError("its name is not UTF-8; rename it")
