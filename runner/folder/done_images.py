"""What the journals say about finished images, in a few arrays of numbers for a million of them."""

from __future__ import annotations  # before Python 3.12, array[int] works in annotations alone

import math
from array import array
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

__all__ = ["Done", "DoneImages"]

FINGERPRINT_BYTES = 16
# In JSON this is a key, since strings escape their quotes; with a number and the last brace after
# it, a key of the outermost object.
SECONDS = b',"seconds":'
MADE = msgspec.json.Decoder(dict[str, Any])


class Done(NamedTuple):
    """A finished image: what its file must be, and how it was made."""

    fingerprint: str
    size: int  # bytes
    crc: int
    made: dict[str, Any]
    journal: str
    generation: int


class DoneImages(Mapping[int, Done]):
    """Index → Done, in 44 bytes an image whether it is done or not, for at least `total` images.
    What many images have in common, all of `made` but its seconds, is kept once."""

    def __init__(self, total: int) -> None:
        self._fingerprints = bytearray(FINGERPRINT_BYTES * total)
        self._sizes = array("Q", bytes(8 * total))
        self._crcs = array("I", bytes(4 * total))
        self._seconds = array("d", bytes(8 * total))  # NaN: not known
        self._made = array("I", bytes(4 * total))  # places in _made_values
        self._sources = array("I", bytes(4 * total))  # places in _source_values; 0: not done
        self._made_numbers: dict[bytes, int] = {}
        self._made_values: list[dict[str, Any]] = []
        self._source_numbers: dict[tuple[str, int], int] = {}
        self._source_values: list[tuple[str, int]] = [("", -1)]

    def __getitem__(self, index: int) -> Done:
        source = self._sources[index] if 0 <= index < len(self._sources) else 0
        if not source:
            raise KeyError(index)
        start = FINGERPRINT_BYTES * index
        made = dict(self._made_values[self._made[index]])
        if not math.isnan(self._seconds[index]):
            made["seconds"] = self._seconds[index]
        return Done(
            self._fingerprints[start : start + FINGERPRINT_BYTES].hex(),
            self._sizes[index],
            self._crcs[index],
            made,
            *self._source_values[source],
        )

    def __iter__(self) -> Iterator[int]:
        return (index for index, source in enumerate(self._sources) if source)

    def __len__(self) -> int:
        return len(self._sources) - self._sources.count(0)

    def by_fingerprint(self) -> dict[bytes, int]:
        """Fingerprint → an image that is done with it; -1 where such images differ in their
        bytes."""
        found: dict[bytes, int] = {}
        for index in self:
            start = FINGERPRINT_BYTES * index
            key = bytes(self._fingerprints[start : start + FINGERPRINT_BYTES])
            other = found.setdefault(key, index)
            if other >= 0 and self._bytes_of(other) != self._bytes_of(index):
                found[key] = -1
        return found

    def _bytes_of(self, index: int) -> tuple[int, int]:
        return self._sizes[index], self._crcs[index]

    def generation(self, index: int) -> int:
        """-1 for an image that is not done."""
        return self._source_values[self._sources[index]][1] if index < len(self._sources) else -1

    def remove(self, index: int) -> None:
        if index < len(self._sources):
            self._sources[index] = 0

    def source_generation(self, source: int) -> int:
        return self._source_values[source][1]

    def source(self, index: int) -> tuple[str, int]:
        """The journal and the generation of an image that is done."""
        return self._source_values[self._sources[index]]

    def is_truncated(self, index: int) -> bool:
        """Whether a tokenizer cut a text of an image that is done."""
        return "truncated" in self._made_values[self._made[index]]

    def flag(self, index: int) -> str:
        """Why an image that is done was flagged (`black`, `safety checker`); "" if it was not."""
        return str(self._made_values[self._made[index]].get("flagged", ""))

    def matches(self, index: int, fingerprint: bytes, size: int) -> bool:
        """Whether an image is done with this fingerprint and this size of its file."""
        start = FINGERPRINT_BYTES * index
        return (
            self._sizes[index] == size
            and self._sources[index] != 0
            and self._fingerprints[start : start + FINGERPRINT_BYTES] == fingerprint
        )

    def put(
        self, index: int, fingerprint: bytes, size: int, crc: int, made: bytes, source: int
    ) -> bool:
        """Whether no later generation was there, so that this one is kept. `made` is JSON, `source`
        is of `source_number`. Raises ValueError for what no image can have."""
        if len(fingerprint) != FINGERPRINT_BYTES or not (0 <= size < 2**63 and 0 <= crc < 2**32):
            raise ValueError((fingerprint, size, crc))
        common, seconds = _split(made)
        number = self._number(common)
        if self._source_values[source][1] < self.generation(index):
            return False
        self._make_room(index)
        start = FINGERPRINT_BYTES * index
        self._fingerprints[start : start + FINGERPRINT_BYTES] = fingerprint
        self._sizes[index], self._crcs[index], self._seconds[index] = size, crc, seconds
        self._made[index], self._sources[index] = number, source
        return True

    def _make_room(self, index: int) -> None:
        """For an image past the end of the plan: a quarter more room, so that this is rare."""
        if index < len(self._sources):
            return
        more = index + index // 4 + 1 - len(self._sources)
        self._fingerprints.extend(bytes(FINGERPRINT_BYTES * more))
        for column in (self._sizes, self._crcs, self._seconds, self._made, self._sources):
            column.frombytes(bytes(column.itemsize * more))

    def source_number(self, journal: str, generation: int) -> int:
        """The number of the place that a line comes from, for `put`."""
        source = (journal, generation)
        number = self._source_numbers.setdefault(source, len(self._source_values))
        if number == len(self._source_values):
            self._source_values.append(source)
        return number

    def _number(self, common: bytes) -> int:
        number = self._made_numbers.get(common)
        if number is None:
            self._made_values.append(MADE.decode(common))
            number = self._made_numbers[common] = len(self._made_values) - 1
        return number


def _split(made: bytes) -> tuple[bytes, float]:
    """What an image has in common with others, as JSON, and its seconds, where they come last."""
    common, _, last = made.rpartition(SECONDS)
    whole, point, decimals = last[:-1].partition(b".")
    if point and (whole + decimals).isdigit():
        return common + b"}", float(last[:-1])
    return made, math.nan
