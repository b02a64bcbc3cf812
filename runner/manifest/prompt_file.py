"""The prompts of a file as one sequence, which need not fit in memory."""

from __future__ import annotations  # array[int] is no type at run time before 3.12

import codecs
import io
import itertools
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from runner.errors import InterruptedRunError, ManifestError, Problem
from runner.manifest.prompt_lines import FORMATS, LineFormat, faults
from runner.manifest.prompts import Prompt, text_sums

__all__ = ["FilePrompts", "Overrides", "overrides_of", "repeated_sums"]

MAX_PROBLEMS = 100  # per file: the rest would only hide the first
UNDO = "put it back, or leave it as it is, and run the same command again"


class Overrides(NamedTuple):
    """What a prompt has itself, besides its text."""

    seed: int | None = None
    parameters: Mapping[str, Any] = {}
    seeds: tuple[int, ...] = ()


NONE = Overrides()


class FilePrompts(Sequence[Prompt]):
    """The prompts of a file with one per line. Kept in memory, per prompt: where its line begins,
    checksums of the line and of the texts, and whether it has a seed or parameters (17 bytes).

    `shown` is the file's name in messages. Raises ManifestError with all bad lines; later, where a
    line has changed, InterruptedRunError. Lines that are added at the end are ignored.
    """

    def __init__(self, path: Path, shown: str) -> None:
        self.path = path
        self.shown = shown
        self._format = self._known_format()
        self.starts, self._line_sums = array("Q"), array("I")
        self.text_sums = array("I")  # of all prompts
        self._has_overrides = bytearray()
        self._read_all()

    def _known_format(self) -> LineFormat:
        form = FORMATS.get(self.path.suffix.lower())
        if form is None:
            message = f"prompt files end in {' or '.join(FORMATS)}"
            raise ManifestError([Problem(self.shown, message)])
        return form

    def _read_all(self) -> None:
        problems: list[Problem] = []
        for number, start, line in self._lines():
            try:
                prompt = self._format.read(line)
            except (ValueError, RecursionError) as error:
                problems += [Problem(f"{self.shown}:{number}", text) for text in faults(error)]
                if len(problems) >= MAX_PROBLEMS:
                    break
            else:
                if prompt is not None:
                    self._add(start, line, prompt)
        if problems:
            raise ManifestError(problems)
        if not self.starts:
            raise ManifestError([Problem(self.shown, f"no prompts in {self.path}")])

    def _add(self, start: int, line: bytes, prompt: Prompt) -> None:
        self.starts.append(start)
        self._line_sums.append(_sum(line))
        self.text_sums.extend(text_sums(prompt.prompt, prompt.parameters))
        self._has_overrides.append(_overrides(prompt) != NONE)

    def _lines(self) -> Iterator[tuple[int, int, bytes]]:
        """Number from 1, offset and bytes of each line, without a byte order mark: files that were
        joined have one in the middle, too."""
        with self._open() as file:
            if file.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                raise ManifestError([Problem(f"{self.shown}:1", "UTF-16 text; save it as UTF-8")])
            start = 0
            for number, line in enumerate(file, 1):
                yield number, start, line.removeprefix(codecs.BOM_UTF8)
                start += len(line)

    def _open(self) -> io.BufferedReader:
        try:
            return self.path.open("rb")
        except OSError as error:
            reason = f"{error.strerror}: {self.path}"
            raise ManifestError([Problem(self.shown, reason)]) from None

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[Prompt]:
        return self._at(range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return next(self._at([range(len(self))[index]]))

    def where(self, place: int) -> str:
        """`list.jsonl:5`, the line of a prompt. Lines are counted only here, for a message."""
        number, left = 1, self.starts[place]
        with self.path.open("rb") as file:
            while left and (part := file.read(min(left, 1 << 20))):
                number += part.count(b"\n")
                left -= len(part)
        return f"{self.shown}:{number}"

    def checksum(self) -> int:
        """Equal for equal prompts."""
        return zlib.crc32(self._line_sums.tobytes())

    def overrides(self) -> Iterator[Overrides]:
        """Of each prompt; lines without any are not read."""
        places = itertools.compress(itertools.count(), self._has_overrides)
        prompts = self._at(places)
        for has_overrides in self._has_overrides:
            yield _overrides(next(prompts)) if has_overrides else NONE

    def _at(self, places: Iterable[int]) -> Iterator[Prompt]:
        """Prompts by their places, in that order."""
        try:
            yield from self._read_at(places)
        except OSError as error:
            raise InterruptedRunError(f"{self.shown}: {error.strerror}; {UNDO}") from None

    def _read_at(self, places: Iterable[int]) -> Iterator[Prompt]:
        with self.path.open("rb") as file:
            position = 0
            for place in places:
                start = self.starts[place]
                if position != start:
                    file.seek(start)
                line = file.readline()
                position = start + len(line)
                yield self._reread(place, line.removeprefix(codecs.BOM_UTF8))

    def _reread(self, place: int, line: bytes) -> Prompt:
        if _sum(line) != self._line_sums[place]:
            raise InterruptedRunError(
                f"{self.where(place)}: not what it was when the job began; {UNDO}"
            )
        return self._format.reread(line)


def _overrides(prompt: Prompt) -> Overrides:
    return Overrides(prompt.seed, prompt.parameters, prompt.seeds)


def _sum(line: bytes) -> int:
    """Of a line without its ending: the last line gets one when another is added."""
    return zlib.crc32(line.rstrip(b"\r\n"))


def overrides_of(prompts: Sequence[Prompt]) -> Iterator[Overrides]:
    """What each prompt has itself, besides its text."""
    if isinstance(prompts, FilePrompts):
        return prompts.overrides()
    return map(_overrides, prompts)


def repeated_sums(prompts: Sequence[Prompt]) -> frozenset[int]:
    """Checksums of the texts that more than one prompt has. Two texts may share a checksum."""
    if isinstance(prompts, FilePrompts):
        sums = sorted(prompts.text_sums)
    else:
        sums = sorted(sum for item in prompts for sum in text_sums(item.prompt, item.parameters))
    return frozenset(sum for sum, next_sum in itertools.pairwise(sums) if sum == next_sum)
