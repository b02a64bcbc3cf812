"""A file with one JSON list of prompts."""

from __future__ import annotations  # array[int] is no type at run time before 3.12

import bisect
import codecs
import re
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from runner.errors import ManifestError, Problem
from runner.manifest.sources.lines import json_fields
from runner.manifest.sources.records import Fields, FileRecords
from runner.manifest.yaml_tree import TOO_DEEP

if TYPE_CHECKING:
    import msgspec

__all__ = ["JsonList"]

BETWEEN = re.compile(rb"[\s,]*")


class JsonList(FileRecords):
    """A record is an element's JSON. Kept in memory: where each begins and how long it is."""

    def __init__(self, path: Path, shown: str) -> None:
        super().__init__(path, shown)
        self._starts, self._sizes = array("Q"), array("Q")

    def stream(self) -> Iterator[tuple[int, bytes]]:
        del self._starts[:], self._sizes[:]
        with self.open() as file:
            data = file.read()
        position = len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
        elements = self._elements(memoryview(data)[position:])
        position = data.index(b"[") + 1 if elements else position
        for element in elements:
            found = BETWEEN.match(data, position)
            position = found.end() if found else position
            self._starts.append(position)
            self._sizes.append(len(bytes(element)))
            yield position, bytes(element)
            position += self._sizes[-1]

    def _elements(self, data: memoryview) -> list[msgspec.Raw]:
        import msgspec

        try:
            return msgspec.json.decode(data, type=list[msgspec.Raw])
        except msgspec.ValidationError:
            words = 'not a list; write [{"prompt": …}, …], or an object per line in a .jsonl'
            raise ManifestError([Problem(self.shown, words)]) from None
        except RecursionError:
            raise ManifestError([Problem(self.shown, TOO_DEEP)]) from None
        except ValueError as error:
            found = re.search(r"byte (\d+)", str(error))
            place = super().where(int(found[1])) if found else self.shown
            words = f"not JSON: {str(error).removeprefix('JSON is malformed: ')}"
            raise ManifestError([Problem(place, words)]) from None

    def where(self, place: int) -> str:
        """`list.json:1: element 5`: the whole list may stand on one line."""
        return f"{super().where(place)}: element {bisect.bisect_left(self._starts, place) + 1}"

    def at(self, places: Iterable[int]) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            for place in places:
                file.seek(place)
                yield file.read(self._sizes[bisect.bisect_left(self._starts, place)])

    def fields(self, record: bytes) -> Fields | None:
        return json_fields(record.decode())
