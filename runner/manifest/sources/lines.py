"""Files with one prompt per line: text, and JSON."""

import codecs
import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pydantic_core

from runner.errors import ManifestError, Problem
from runner.manifest.sources.foreign import (
    AS_TEXT,
    other_format,
    refuse_flags,
    sd_scripts_fields,
)
from runner.manifest.sources.records import Fields, FileRecords
from runner.manifest.yaml_tree import MAX_DEPTH

__all__ = ["JsonLines", "SdScriptsLines", "TextLines", "clean_text", "json_fields"]

CARRIAGE_RETURN = "a carriage return within the line; save the file with \\n line ends"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line end: no text has them


def clean_text(text: str) -> str:
    """The text. Raises ValueError for control characters."""
    if found := CONTROL.search(text):
        what = f"the control character {found[0]!r} at column {found.start() + 1}"
        raise ValueError(f"{what}; remove it, or save the file as UTF-8 text")
    return text


class Lines(FileRecords):
    """A record is a line of bytes, without a byte order mark: files that were joined have one in
    the middle, too."""

    def stream(self) -> Iterator[tuple[int, bytes]]:
        with self.open() as file:
            start, is_first = 0, True
            for line in file:
                if is_first and line.strip():
                    self.refuse_start(start, line.removeprefix(codecs.BOM_UTF8).strip())
                    is_first = False
                yield start, line.removeprefix(codecs.BOM_UTF8)
                start += len(line)

    def refuse_start(self, place: int, line: bytes) -> None:
        """Raises ManifestError where the first line shows that the file is of another format."""

    def at(self, places: Iterable[int]) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            position = 0
            for place in places:
                if position != place:
                    file.seek(place)
                line = file.readline()
                position = place + len(line)
                yield line.removeprefix(codecs.BOM_UTF8)


class TextLines(Lines):
    """Each line is the text of a prompt. `is_certain`: the manifest says so, so lines that look as
    if they were of another tool are texts, too."""

    def __init__(self, *given: Any, is_certain: bool = False) -> None:
        super().__init__(*given)
        self.is_certain = is_certain

    def refuse_start(self, place: int, line: bytes) -> None:
        found = other_format(line.decode(errors="replace"))
        if found and not self.is_certain:
            words = f"looks like {found}, not like text; name the file .{found}, or add format: "
            raise ManifestError([Problem(self.where(place), f"{words}{found}; {AS_TEXT}")])

    def fields(self, record: bytes) -> Fields | None:
        text = record.decode().rstrip("\r\n")
        if "\r" in text:
            raise ValueError(CARRIAGE_RETURN)
        clean_text(text)
        if not text.strip():
            return None
        if not self.is_certain:
            refuse_flags(text)
        return {"prompt": text}


class SdScriptsLines(Lines):
    """Each line is a prompt with the flags of sd-scripts; `#` begins a comment."""

    def fields(self, record: bytes) -> Fields | None:
        text = clean_text(record.decode().strip())
        return sd_scripts_fields(text) if text and not text.startswith("#") else None


class JsonLines(Lines):
    """Each line is a JSON object, or the text of a prompt as a JSON string."""

    def refuse_start(self, place: int, line: bytes) -> None:
        if line == b"{":
            words = "an object over several lines; write each on one line, or a list in a .json"
            raise ManifestError([Problem(self.where(place), words)])
        if line == b"[" or re.match(rb'\[\s*[{"]', line):
            words = "a JSON list, not an object per line; name the file .json, or add format: json"
            raise ManifestError([Problem(self.where(place), words)])

    def fields(self, record: bytes) -> Fields | None:
        if record.count(b'"') <= 4:  # a key and its text at most, so no key is there twice
            try:  # a fifth of the time
                value = pydantic_core.from_json(record)
            except ValueError:
                pass
            else:
                if isinstance(value, str) or (isinstance(value, dict) and len(value) == 1):
                    return value if isinstance(value, dict) else {"prompt": value}
        text = record.decode().rstrip("\r\n")
        return json_fields(text) if text.strip() else None


def json_fields(text: str) -> Fields:
    """The fields of a JSON object, or of a prompt's text as a JSON string. Raises ValueError,
    RecursionError."""
    value = _DECODER.decode(text)
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise RecursionError
    if "\\u" in text:
        _refuse_surrogates(value)
    if isinstance(value, dict):
        return value
    if isinstance(value, str):
        return {"prompt": value}
    raise ValueError(f"must be an object or a text, not {json.dumps(value)[:40]}")


def _refuse_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("not valid Unicode (a lone surrogate)") from None


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


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is a number that is not finite")
    return number


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_constant, parse_float=_finite
)
