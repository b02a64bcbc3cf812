"""Files that gzip has compressed."""

import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from runner.errors import ManifestError, Problem
from runner.manifest.sources.records import Fields, Records

__all__ = ["Unpacked"]


class Unpacked(Records):
    """The records of a compressed file, which is unpacked once into a temporary one: single records
    cannot be found in the middle of it."""

    def __init__(self, path: Path, shown: str, read: Callable[[Path], Records]) -> None:
        super().__init__(shown)
        import gzip
        import tempfile

        self._folder = tempfile.TemporaryDirectory(prefix="runner-")
        inner = Path(self._folder.name) / path.stem
        try:
            with gzip.open(path) as packed, inner.open("wb") as plain:
                shutil.copyfileobj(packed, plain, 1 << 20)
        except (OSError, EOFError, zlib.error) as error:
            words = f"cannot be unpacked: {error}"
            raise ManifestError([Problem(shown, words)]) from None
        self._records = read(inner)
        self.is_text = self._records.is_text  # type: ignore[misc]

    def stream(self) -> Iterator[tuple[int, Any]]:
        return self._records.stream()

    def at(self, places: Iterable[int]) -> Iterator[Any]:
        return self._records.at(places)

    def fields(self, record: Any) -> Fields | None:
        return self._records.fields(record)

    def where(self, place: int) -> str:
        return self._records.where(place)

    def sum(self, record: Any) -> int:
        return self._records.sum(record)

    def names(self) -> list[str] | None:
        return self._records.names()
