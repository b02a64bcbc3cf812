"""A folder of text files, one prompt each."""

import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from runner.errors import ManifestError, Problem
from runner.manifest.sources.lines import clean_text
from runner.manifest.sources.records import Fields, Records

__all__ = ["TextFolder"]


class TextFolder(Records):
    """A record is a file, by its name; the name without .txt is the id. Other files are ignored:
    captions often lie beside their images."""

    def __init__(self, path: Path, shown: str) -> None:
        super().__init__(shown)
        self.path = path
        try:
            found = sorted(child.name for child in path.iterdir() if child.suffix == ".txt")
        except OSError as error:
            raise ManifestError([Problem(shown, f"{error.strerror}: {path}")]) from None
        self._names = [name for name in found if not name.startswith(".")]

    def stream(self) -> Iterator[tuple[int, tuple[str, bytes]]]:
        return zip(range(len(self._names)), self.at(range(len(self._names))), strict=True)

    def at(self, places: Iterable[int]) -> Iterator[tuple[str, bytes]]:
        for place in places:
            name = self._names[place]
            yield name.removesuffix(".txt"), (self.path / name).read_bytes()

    def fields(self, record: tuple[str, bytes]) -> Fields:
        name, data = record
        text = data.decode("utf-8-sig").replace("\r\n", "\n").rstrip("\n")
        return {"id": name, "prompt": clean_text(text)}

    def where(self, place: int) -> str:
        return f"{self.shown}/{self._names[place]}"

    def sum(self, record: tuple[str, bytes]) -> int:
        return zlib.crc32(record[1], zlib.crc32(record[0].encode(errors="surrogateescape")))
