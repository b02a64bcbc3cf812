"""Prompts as one sequence, which need not fit in memory."""

from __future__ import annotations  # array[int] is no type at run time before 3.12

import contextlib
import itertools
import random
import zlib
from abc import abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from runner.errors import InterruptedRunError, ManifestError, Problem
from runner.manifest.input_images import from_folder, names_input
from runner.manifest.prompts import Prompt, repeated, text_sums
from runner.manifest.sources.columns import Columns, faults
from runner.manifest.sources.records import Fields, Records
from runner.manifest.sources.spec import Select, Source
from runner.manifest.yaml_tree import Node
from runner.units import counted

__all__ = ["FromSource", "Inline", "Joined", "Overrides", "PromptList"]

MAX_FAULTS = 100  # different ones per source: the rest would only hide the first
UNDO = "put it back, or leave it as it is, and run the same command again"


class Overrides(NamedTuple):
    """What a prompt has itself, besides its text."""

    seed: int | None = None
    parameters: Mapping[str, Any] = {}
    seeds: tuple[int, ...] = ()

    @staticmethod
    def of(prompt: Prompt) -> Overrides:
        return Overrides(prompt.seed, prompt.parameters, prompt.seeds)


NONE = Overrides()


class PromptList(Sequence[Prompt]):
    """All prompts of a manifest, or those of one source."""

    @abstractmethod
    def where(self, place: int) -> str:
        """File and line of a prompt, for messages."""

    @abstractmethod
    def checksum(self) -> int:
        """Equal for equal prompts."""

    @abstractmethod
    def text_sums(self) -> Iterable[int]:
        """Checksums of the texts of all prompts: see prompts.text_sums."""

    @abstractmethod
    def id_sums(self) -> Iterable[int]:
        """Hashes of the ids that may not be there twice, by this process's own hash function."""

    @property
    @abstractmethod
    def names_input(self) -> bool:
        """Whether any prompt has an input image."""

    @abstractmethod
    def overrides(self) -> Iterator[Overrides]:
        """Of each prompt, without reading those that have none."""

    def repeated_texts(self) -> frozenset[int]:
        """Checksums of the texts that more than one prompt has. Two texts may share a checksum."""
        return repeated(self.text_sums())

    def refuse_repeated_ids(self) -> None:
        """Raises ManifestError. Where nothing is repeated, no prompt is read."""
        twice = repeated(self.id_sums())
        first: dict[str, int] = {}
        problems: list[Problem] = []
        for place, prompt in enumerate(self) if twice else ():
            if prompt.id is None or hash(prompt.id) not in twice:
                continue
            before = first.setdefault(prompt.id, place)
            if before != place and len(problems) < MAX_FAULTS:
                words = f"id: {prompt.id}: also at {self.where(before)}; give each prompt its own"
                more = "; in a file they may repeat with repeat_ids: true"
                problems.append(Problem(self.where(place), words + more))
        if problems:
            raise ManifestError(problems)


class Inline(PromptList):
    """Prompts that stand in the manifest; `places` are theirs in its list of prompts."""

    def __init__(self, prompts: Sequence[Prompt], root: Node, places: Sequence[int] = ()) -> None:
        self.prompts = tuple(prompts)
        self._root = root
        self._places = places or range(len(self.prompts))

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, index: Any) -> Any:
        return self.prompts[index]

    def where(self, place: int) -> str:
        number = self._places[place]
        return f"{self._root.walk(('prompts', number)).place}: prompts[{number}]"

    def checksum(self) -> int:
        return zlib.crc32("".join(map(repr, self.prompts)).encode())

    def text_sums(self) -> Iterator[int]:
        return (sum for item in self.prompts for sum in text_sums(item.prompt, item.parameters))

    def id_sums(self) -> Iterator[int]:
        return (hash(item.id) for item in self.prompts if item.id is not None)

    @property
    def names_input(self) -> bool:
        return any(names_input(item.parameters) for item in self.prompts)

    def overrides(self) -> Iterator[Overrides]:
        return map(Overrides.of, self.prompts)


class FromSource(PromptList):
    """The prompts of a file, a folder or a data set. Kept in memory, per prompt: the place of its
    record, checksums of the record and of the texts, whether it has a seed or parameters, and a
    hash of its id (17 to 25 bytes).

    Raises ManifestError with all bad records, equal faults once; later, where a record has changed,
    InterruptedRunError. Records that are added at the end are ignored.
    """

    def __init__(self, records: Records, spec: Source, folder: str = "") -> None:
        """`folder` is where the paths of input images start, seen from the manifest's."""
        self._records = records
        self._spec = spec
        self._folder = folder
        self._names_input = False
        self._columns = Columns(spec, is_text=records.is_text, names=records.names())
        self._places, self._sums = array("Q"), array("I")
        self._text_sums, self._id_sums = array("I"), array("q")
        self._has_overrides = bytearray()
        self._read_all()

    def _read_all(self) -> None:
        if self._columns.names is not None:
            self._refuse_absent(self._columns.absent())
        found = _Faults(self._records)
        for place, record, fields in self._chosen(found):
            try:
                prompt = self._checked(fields)
            except (ValueError, RecursionError) as error:
                found.add(place, error)
                if found.are_many:
                    break
            else:
                self._add(place, record, prompt)
        found.refuse()
        if self._columns.names is None:
            self._refuse_absent(self._columns.absent())
        if not self._places:
            self._refuse(self._why_empty())
        if self._spec.select.sample is not None:
            self._sample(self._spec.select.sample)

    def _refuse(self, messages: Iterable[str]) -> None:
        if problems := [Problem(self._records.shown, message) for message in messages]:
            raise ManifestError(problems)

    def _refuse_absent(self, messages: Iterable[str]) -> None:
        left_out = ", ".join(self._records.left_out)
        more = f"; columns of bytes cannot be read: {left_out}" if left_out else ""
        self._refuse(message + more for message in messages)

    def _why_empty(self) -> list[str]:
        """What is wrong where no record is chosen."""
        names: dict[str, None] = {}
        for _, record in self._records.stream():
            with contextlib.suppress(ValueError, RecursionError):  # of rows that nobody asked for
                names |= dict.fromkeys(self._records.fields(record) or ())
        if not names or self._spec.select == Select():
            return ["no prompts in it"]
        absent = self._columns.absent_in_where(list(names))
        return absent or ["select chooses none of its rows"]

    def _chosen(self, found: _Faults) -> Iterator[tuple[int, Any, Fields]]:
        """The records that `select` chooses, but for a sample."""
        select, number = self._spec.select, 0
        first, last = select.bounds
        for place, record in self._records.stream():
            if len(self._places) == select.first or number == last or found.are_many:
                return
            try:
                fields = self._records.fields(record)
            except (ValueError, RecursionError) as error:
                number += 1
                if number >= first:
                    found.add(place, error)
                continue
            if fields is None:
                continue
            number += 1
            if number >= first and (not select.where or _fits(fields, select.where)):
                yield place, record, fields

    def _add(self, place: int, record: Any, prompt: Prompt) -> None:
        self._places.append(place)
        self._sums.append(self._records.sum(record))
        self._text_sums.extend(text_sums(prompt.prompt, prompt.parameters))
        self._has_overrides.append(Overrides.of(prompt) != NONE)
        self._names_input |= bool(prompt.parameters) and names_input(prompt.parameters)
        if prompt.id is not None and not self._spec.repeat_ids:
            self._id_sums.append(hash(prompt.id))

    def _sample(self, count: int) -> None:
        """Keep so many of the prompts, in their order."""
        total = len(self._places)
        if count > total:
            self._refuse([f"select.sample: {count}: there are {counted(total, 'prompt')}"])
        kept = sorted(random.Random(self._spec.select.seed or 0).sample(range(total), count))
        records = zip(kept, self._records.at([self._places[one] for one in kept]), strict=True)
        chosen = [(self._places[one], record) for one, record in records]
        for kept_array in (self._places, self._sums, self._text_sums, self._id_sums):
            del kept_array[:]
        self._has_overrides.clear()
        for place, record in chosen:
            self._add(place, record, self._prompt(record))

    def _prompt(self, record: Any) -> Prompt:
        return self._checked(self._records.fields(record) or {})

    def _checked(self, fields: Fields) -> Prompt:
        prompt = self._columns.prompt(fields)
        if prompt.parameters and self._folder:
            return prompt._replace(parameters=from_folder(prompt.parameters, self._folder))
        return prompt

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Prompt]:
        return self._at(range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return next(self._at([range(len(self))[index]]))

    def where(self, place: int) -> str:
        return self._records.where(self._places[place])

    def checksum(self) -> int:
        return zlib.crc32(self._text_sums.tobytes(), zlib.crc32(self._sums.tobytes()))

    def text_sums(self) -> Iterable[int]:
        return self._text_sums

    def id_sums(self) -> Iterable[int]:
        return self._id_sums

    @property
    def names_input(self) -> bool:
        return self._names_input

    def overrides(self) -> Iterator[Overrides]:
        places = itertools.compress(itertools.count(), self._has_overrides)
        prompts = self._at(places)
        for has_overrides in self._has_overrides:
            yield Overrides.of(next(prompts)) if has_overrides else NONE

    def _at(self, numbers: Iterable[int]) -> Iterator[Prompt]:
        """Prompts by their numbers, in that order."""
        for_places, for_sums = itertools.tee(numbers)
        records = self._records.at(self._places[number] for number in for_places)
        try:
            for number, record in zip(for_sums, records, strict=True):
                if self._records.sum(record) != self._sums[number]:
                    where = self.where(number)
                    raise InterruptedRunError(
                        f"{where}: not what it was when the job began; {UNDO}"
                    )
                yield self._prompt(record)
        except OSError as error:
            raise InterruptedRunError(f"{self._records.shown}: {error.strerror}; {UNDO}") from None


class Joined(PromptList):
    """Several lists in a row."""

    def __init__(self, lists: Sequence[PromptList]) -> None:
        self._lists = lists
        self._ends = list(itertools.accumulate(map(len, lists)))

    def __len__(self) -> int:
        return self._ends[-1]

    def __iter__(self) -> Iterator[Prompt]:
        return itertools.chain.from_iterable(self._lists)

    def _part(self, index: int) -> tuple[PromptList, int]:
        number = next(i for i, end in enumerate(self._ends) if index < end)
        return self._lists[number], index - (self._ends[number - 1] if number else 0)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        found, place = self._part(range(len(self))[index])
        return found[place]

    def where(self, place: int) -> str:
        found, inner = self._part(place)
        return found.where(inner)

    def checksum(self) -> int:
        return zlib.crc32(repr([found.checksum() for found in self._lists]).encode())

    def text_sums(self) -> Iterable[int]:
        return array("I", itertools.chain.from_iterable(found.text_sums() for found in self._lists))

    def id_sums(self) -> Iterable[int]:
        return array("q", itertools.chain.from_iterable(found.id_sums() for found in self._lists))

    @property
    def names_input(self) -> bool:
        return any(found.names_input for found in self._lists)

    def overrides(self) -> Iterator[Overrides]:
        return itertools.chain.from_iterable(found.overrides() for found in self._lists)


class _Faults:
    """The faults of a source's records: equal ones are counted."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._found: dict[str, list[int]] = {}  # message → its first place, and how many have it

    def add(self, place: int, error: ValueError | RecursionError) -> None:
        for message in "\n".join(faults(error)).split("\n"):
            self._found.setdefault(message, [place, 0])[1] += 1

    @property
    def are_many(self) -> bool:
        return len(self._found) >= MAX_FAULTS

    def refuse(self) -> None:
        """Raises ManifestError where there are any."""
        problems = []
        for message, (place, count) in self._found.items():
            more = f" (and {counted(count - 1, 'more line')})" if count > 1 else ""
            problems.append(Problem(self._records.where(place), message + more))
        if problems:
            raise ManifestError(problems)


def _fits(fields: Fields, wanted: Mapping[str, Any]) -> bool:
    """Whether a record has these values; numbers of a CSV file are text."""
    return all(
        fields.get(name) == value or (value is not None and str(fields.get(name)) == _text(value))
        for name, value in wanted.items()
    )


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
