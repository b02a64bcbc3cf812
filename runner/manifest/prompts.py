"""Prompts, inline or from a .txt or .jsonl file, as one sequence that need not fit in memory."""

from __future__ import annotations  # array[int] is no type at run time before 3.12

import codecs
import itertools
import json
import re
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pydantic_core
from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, ValidationError

from runner.errors import InterruptedRunError, ManifestError, Problem
from runner.manifest.words import MAX_VALUE, explain
from runner.manifest.yaml_tree import MAX_DEPTH, TOO_DEEP
from runner.say import cut
from runner.settings import Settings, Text

__all__ = [
    "MAX_SEED",
    "FilePrompts",
    "Parameters",
    "Prompt",
    "PromptFile",
    "PromptItem",
    "Seed",
    "is_text",
    "repeated_sums",
    "settings_of",
    "text_sums",
]

MAX_SEED = 2**63 - 1  # what torch.Generator.manual_seed takes on every platform
MAX_PROBLEMS = 100  # per file: the rest would only hide the first

# The runner itself passes these to the pipeline call, or they would break one image per task.
RESERVED = {
    "prompt": "prompts",
    "seed": "the prompt's seed",
    "generator": "seed",
    "output_type": None,
    "return_dict": None,
    "latents": None,
    "callback_on_step_end": None,
    "callback_on_step_end_tensor_inputs": None,
}
TENSORS = re.compile(r".*prompt_embeds(?!_scale).*|.*prompt.*_mask(_2)?")  # made from the texts
MAX_IMAGES = 100_000  # of one prompt
COUNTS = ("height", "width", "num_inference_steps", "num_images_per_prompt", "max_sequence_length")


CARRIAGE_RETURN = "a carriage return within the line; save the file with \\n line ends"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but the tab: no text has them


def is_text(name: str) -> bool:
    """Whether a parameter is a text per image, which a batch takes as a list."""
    return re.fullmatch("negative_prompt(_[2-4])?|prompt_[2-4]", name) is not None


def _parameters(values: dict[str, JsonValue]) -> dict[str, JsonValue]:
    for name, value in values.items():
        if name in RESERVED:
            instead = RESERVED[name]
            hint = f"; write {instead} instead" if instead else ""
            raise ValueError(f"{name} is set by the runner{hint}")
        if TENSORS.fullmatch(name):
            raise ValueError(f"{name} is set by the runner, from the texts; leave it out")
        if is_text(name) and not isinstance(value, str | None):
            raise ValueError(f"{name} must be one text, in quotes, not {_shown(value)}")
        is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if name in COUNTS and value is not None and not is_count:
            raise ValueError(f"{name} must be a whole number from 1, not {_shown(value)}")
        if name == "num_images_per_prompt" and isinstance(value, int) and value > MAX_IMAGES:
            raise ValueError(f"{name} must be {MAX_IMAGES} at most, not {_shown(value)}")
        try:
            json.dumps({name: value}, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError:
            raise ValueError(f"{name!r} is not valid Unicode (a lone surrogate)") from None
        except ValueError:
            raise ValueError(f"{name} has a number that is not finite") from None
    return values


def _shown(value: JsonValue) -> str:
    return cut(json.dumps(value), MAX_VALUE)


Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
Parameters = Annotated[dict[str, JsonValue], AfterValidator(_parameters)]


class Prompt(NamedTuple):
    """One prompt, found good; its parameters go over the manifest's, key by key."""

    prompt: str
    seed: int | None = None
    parameters: Mapping[str, Any] = {}


class PromptItem(Settings):
    """A prompt as it is written."""

    prompt: Text
    seed: Seed | None = None
    parameters: Parameters = Field(default_factory=dict)

    @staticmethod
    def lift(value: Any) -> Any:
        """`- a cat` is short for `- prompt: a cat`."""
        return value if isinstance(value, dict | PromptItem) else {"prompt": value}

    def found_good(self) -> Prompt:
        return Prompt(self.prompt, self.seed, self.parameters)


class PromptFile(Settings):
    file: Text


InlinePrompts = tuple[Annotated[PromptItem, BeforeValidator(PromptItem.lift)], ...]


class FilePrompts(Sequence[Prompt]):
    """The prompts of a file: where each line begins and checksums of it are kept, 17 bytes.

    A .txt file has a prompt a line, blank lines are skipped. A .jsonl file has an object (keys as
    in the manifest) or a string a line. Raises ManifestError with every bad line; and later, where
    a line is no longer what it was, InterruptedRunError. What is added at the end is not seen.
    """

    def __init__(self, path: Path, shown: str) -> None:
        self.path = path
        self.shown = shown
        read = {".txt": _text_prompt, ".jsonl": _json_prompt}.get(path.suffix.lower())
        if read is None:
            raise ManifestError([Problem(shown, "prompt files end in .txt or .jsonl")])
        self.read = read
        self.starts, self._sums = array("Q"), array("I")
        self.text_sums = array("I")  # of all prompts
        self._is_plain = bytearray()  # whether a prompt has neither a seed nor parameters
        problems: list[Problem] = []
        for number, start, line in self._lines():
            try:
                item = self.read(line)
                if item is not None:
                    self.starts.append(start)
                    self._sums.append(_sum(line))
                    self.text_sums.extend(text_sums(item.prompt, item.parameters))
                    self._is_plain.append(item.seed is None and not item.parameters)
            except (ValueError, RecursionError) as error:
                problems += [Problem(f"{shown}:{number}", text) for text in _reasons(error)]
                if len(problems) >= MAX_PROBLEMS:
                    break
        if problems:
            raise ManifestError(problems)
        if not self.starts:
            raise ManifestError([Problem(shown, f"no prompts in {path}")])

    def _open(self) -> Any:
        try:
            return self.path.open("rb")
        except OSError as error:
            reason = f"{error.strerror}: {self.path}"
            raise ManifestError([Problem(self.shown, reason)]) from None

    def _lines(self) -> Iterator[tuple[int, int, bytes]]:
        """Number from 1, offset and bytes of each line, without a byte order mark."""
        with self._open() as file:
            start = 0
            try:
                for number, line in enumerate(file, 1):
                    length = len(line)
                    if number == 1:
                        if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                            message = "UTF-16 text; save it as UTF-8"
                            raise ManifestError([Problem(f"{self.shown}:1", message)])
                        line = line.removeprefix(codecs.BOM_UTF8)
                    yield number, start, line
                    start += length
            except IsADirectoryError:
                raise ManifestError([Problem(self.shown, f"a folder: {self.path}")]) from None

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[Prompt]:
        return self._read(range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return next(self._read([range(len(self))[index]]))

    def where(self, place: int) -> str:
        """`list.jsonl:5`: the lines are counted only for what is wrong with one."""
        number, left = 1, self.starts[place]
        with self.path.open("rb") as file:
            while left and (part := file.read(min(left, 1 << 20))):
                number += part.count(b"\n")
                left -= len(part)
        return f"{self.shown}:{number}"

    def checksum(self) -> int:
        """Equal for equal prompts."""
        return zlib.crc32(self._sums.tobytes())

    def settings(self) -> Iterator[tuple[int | None, Mapping[str, Any]]]:
        """The seed and the parameters of each prompt; lines without them are not read."""
        others = self._read(place for place, is_plain in enumerate(self._is_plain) if not is_plain)
        for is_plain in self._is_plain:
            if is_plain:
                yield None, {}
            else:
                item = next(others)
                yield item.seed, item.parameters

    def _read(self, places: Iterable[int]) -> Iterator[Prompt]:
        """Prompts by their places, in order."""
        try:
            with self.path.open("rb") as file:
                position = 0
                for place in places:
                    start = self.starts[place]
                    if position != start:
                        file.seek(start)
                    line = file.readline()
                    position = start + len(line)
                    yield self._item(place, line)
        except OSError as error:
            raise InterruptedRunError(f"{self.shown}: {error.strerror}; {_CHANGED}") from None

    def _item(self, place: int, line: bytes) -> Prompt:
        if not self.starts[place]:
            line = line.removeprefix(codecs.BOM_UTF8)
        if _sum(line) != self._sums[place]:
            raise InterruptedRunError(
                f"{self.where(place)}: not what it was when the job began; {_CHANGED}"
            )
        if self.read is _json_prompt:  # known to be good: nothing is checked again
            value = (pydantic_core.from_json if self._is_plain[place] else json.loads)(line)
            return Prompt(value) if isinstance(value, str) else Prompt(**value)
        prompt = self.read(line)
        assert prompt is not None
        return prompt


_CHANGED = "put it back, or leave it as it is, and run the same command again"


def _sum(line: bytes) -> int:
    """Of a line without its ending, which comes when a line is added."""
    return zlib.crc32(line.rstrip(b"\r\n"))


def settings_of(
    prompts: Sequence[Prompt],
) -> Iterator[tuple[int | None, Mapping[str, Any]]]:
    """The seed and the parameters of each prompt."""
    if isinstance(prompts, FilePrompts):
        return prompts.settings()
    return ((item.seed, item.parameters) for item in prompts)


def text_sums(prompt: str, parameters: Mapping[str, Any]) -> list[int]:
    """A checksum for each text: the prompt and those among the parameters."""
    sums = [zlib.crc32(prompt.encode())]
    for name, value in parameters.items():
        if value and is_text(name):
            sums.append(zlib.crc32(value.encode()))
    return sums


def repeated_sums(prompts: Sequence[Prompt]) -> frozenset[int]:
    """Those that more than one prompt has; by chance perhaps that of another text."""
    if isinstance(prompts, FilePrompts):
        sums = sorted(prompts.text_sums)
    else:
        sums = sorted(sum for item in prompts for sum in text_sums(item.prompt, item.parameters))
    return frozenset(sum for sum, next_sum in itertools.pairwise(sums) if sum == next_sum)


def _text_prompt(line: bytes) -> Prompt | None:
    text = line.decode().rstrip("\r\n")
    if "\r" in text:
        raise ValueError(CARRIAGE_RETURN)
    if found := CONTROL.search(text):
        what = f"the control character {found[0]!r} at column {found.start() + 1}"
        raise ValueError(f"{what}; remove it, or save the file as UTF-8 text")
    return Prompt(text) if text.strip() else None


def _json_prompt(line: bytes) -> Prompt | None:
    return _plain_prompt(line) or _any_prompt(line)


def _plain_prompt(line: bytes) -> Prompt | None:
    """A good prompt without more, as most lines have, at a fifth of the cost of all checks; None
    for any other line."""
    if line.count(b'"') > 4:  # more than a key and its text, so that a key may be there twice
        return None
    try:
        value = pydantic_core.from_json(line)
    except ValueError:
        return None
    text = value.get("prompt") if isinstance(value, dict) and len(value) == 1 else value
    return Prompt(text) if isinstance(text, str) and text.strip() else None


def _any_prompt(line: bytes) -> Prompt | None:
    text = line.decode().rstrip("\r\n")
    if not text.strip():
        return None
    value = _DECODER.decode(text)
    if _depth(value) > MAX_DEPTH:
        raise RecursionError
    return PromptItem.model_validate(PromptItem.lift(value)).found_good()


def _depth(value: Any) -> int:
    """Levels below a value of JSON."""
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max((1 + _depth(inner) for inner in below), default=0)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice}: given twice; keep one")
    return values


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)


def _reasons(error: ValueError | RecursionError) -> list[str]:
    """One line a fault of a bad line of a prompt file."""
    if isinstance(error, ValidationError):
        return [explain(PromptItem, fault) for fault in error.errors()]
    if isinstance(error, UnicodeDecodeError):
        return [f"not UTF-8 (byte {error.start + 1} is {error.object[error.start]:#04x})"]
    if isinstance(error, json.JSONDecodeError):
        hint = f": {CARRIAGE_RETURN}" if "\r" in error.doc else ""
        what = error.msg.removesuffix(" at")
        return [f"not JSON: {what} at column {error.pos + 1}{hint}"]
    if isinstance(error, RecursionError):
        return [TOO_DEEP]
    return [str(error)]
