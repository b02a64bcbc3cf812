"""One line of a prompt file → a prompt, for each format that has a prompt per line.

A new format is one `LineFormat`, listed in `FORMATS`.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pydantic_core
from pydantic import ValidationError

from runner.manifest.prompts import SHORT_PROMPT, Prompt, PromptItem
from runner.manifest.words import explain
from runner.manifest.yaml_tree import MAX_DEPTH, TOO_DEEP

__all__ = ["FORMATS", "LineFormat", "faults"]

CARRIAGE_RETURN = "a carriage return within the line; save the file with \\n line ends"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but the tab: no text has them


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How to read a line of bytes.

    `read` checks everything. It returns None for a blank line, and raises ValueError or
    RecursionError, which `faults` puts into words. `reread` takes a line of which `read` made a
    prompt before, and checks nothing.
    """

    read: Callable[[bytes], Prompt | None]
    reread: Callable[[bytes], Prompt]


def faults(error: ValueError | RecursionError) -> list[str]:
    """What is wrong with a line that `read` refused; one message per fault."""
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


def _text(line: bytes) -> Prompt | None:
    text = line.decode().rstrip("\r\n")
    if "\r" in text:
        raise ValueError(CARRIAGE_RETURN)
    if found := CONTROL.search(text):
        what = f"the control character {found[0]!r} at column {found.start() + 1}"
        raise ValueError(f"{what}; remove it, or save the file as UTF-8 text")
    return Prompt(text) if text.strip() else None


def _text_again(line: bytes) -> Prompt:
    return Prompt(line.decode().rstrip("\r\n"))


def _json(line: bytes) -> Prompt | None:
    return _json_text_alone(line) or _json_checked(line)


def _json_again(line: bytes) -> Prompt:
    if prompt := _json_text_alone(line):
        return prompt
    return PromptItem.model_validate(SHORT_PROMPT.lift(json.loads(line))).to_prompt()


def _json_text_alone(line: bytes) -> Prompt | None:
    """A prompt with neither seed nor parameters, as most lines have it; None for any other line.
    This takes a fifth of the time of all checks."""
    if line.count(b'"') > 4:  # more than a key and its text, so a key may be there twice
        return None
    try:
        value = pydantic_core.from_json(line)
    except ValueError:
        return None
    text = value.get("prompt") if isinstance(value, dict) and len(value) == 1 else value
    return Prompt(text) if isinstance(text, str) and text.strip() else None


def _json_checked(line: bytes) -> Prompt | None:
    text = line.decode().rstrip("\r\n")
    if not text.strip():
        return None
    value = _DECODER.decode(text)
    if _depth(value) > MAX_DEPTH:
        raise RecursionError
    return PromptItem.model_validate(SHORT_PROMPT.lift(value)).to_prompt()


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

# By the end of the file's name.
FORMATS = {
    ".txt": LineFormat(_text, _text_again),
    ".jsonl": LineFormat(_json, _json_again),
}
