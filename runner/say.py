"""The one voice: every line that reaches a terminal passes through here.

`say` prints messages on stderr; `answer` prints what a command was asked for, on stdout. Both
replace characters that could control a terminal. Imports nothing from the runner.
"""

import json
import logging
import sys
from typing import Any

__all__ = ["Handler", "answer", "cut", "is_utf8", "printable", "say", "speak_as", "to_json"]

MAX_LINE = 1000  # characters; a name or a value in a line may be of any length

_rank = 0  # of this process: rank 0 prints for all processes of a launch


def speak_as(rank: int) -> None:
    """Set the rank of this process."""
    global _rank
    _rank = rank


def say(words: str, *, every_rank: bool = False) -> None:
    """Print lines on stderr, on rank 0 only. With `every_rank` each rank prints them, and all but
    rank 0 add their number."""
    if _rank and not every_rank:
        return
    who = f"runner: rank {_rank}: " if _rank else "runner: "
    lines = [f"{who}{cut(line, MAX_LINE)}\n" for line in printable(words).split("\n")]
    print("".join(lines), end="", file=sys.stderr, flush=True)


def answer(words: str) -> None:
    """Print a result on stdout: lines of any length, without a prefix."""
    print(printable(words))


class Handler(logging.Handler):
    """Print log records as `say` does."""

    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage(), every_rank=True)


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON in ASCII, which `answer` prints unchanged."""
    return json.dumps(value, indent=indent).replace("\x7f", "\\u007f")


def printable(text: str) -> str:
    """The text with its control characters replaced, except line ends: they may control a terminal,
    or reverse the order of the characters in a line."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def cut(text: str, most: int) -> str:
    """The text in at most `most` characters, shortened by cutting out the middle."""
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return f"{text[: most - 1 - end]}…{text[-end:]}"


def is_utf8(text: str) -> bool:
    """Whether a word from the system is UTF-8. Python reads bytes that are not as lone surrogates,
    which cannot be written anywhere."""
    return not any("\ud800" <= c <= "\udfff" for c in text)
