"""The one voice: every line that reaches a terminal or a log file passes through here.

`say` prints messages on stderr and adds them to the rank's log file (folder/logs.py); `answer`
prints what a command was asked for, on stdout. Both replace characters that could control a
terminal. Imports nothing from the runner.
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "RESULT",
    "Handler",
    "answer",
    "cut",
    "has_bars",
    "is_utf8",
    "note",
    "printable",
    "route_libraries",
    "say",
    "speak_as",
    "to_json",
    "write_also",
    "writes_json",
]

LIBRARIES = ("transformers", "diffusers", "torch", "huggingface_hub")
MAX_LINE = 1000  # characters; a name or a value in a line may be of any length
MAX_OBJECT = 4000  # bytes of a JSON line: below what a pipe takes from several ranks at a time
MOST_EARLY = 1000  # lines that wait for the log file
RESULT = logging.INFO + 5  # the level of the last line, which `-q` prints, too


@dataclass(slots=True)
class _Voice:
    """How this process speaks."""

    rank: int = 0  # rank 0 prints for all processes of a launch
    least: int = logging.INFO  # the level of what is printed
    is_json: bool = False
    write: Callable[[str], None] | None = None  # to the log file, once there is one
    early: list[str] = field(default_factory=list)  # what was said before
    is_logging: bool = False  # whether there will be a log file


_voice = _Voice()


def speak_as(
    rank: int, *, least: int = logging.INFO, as_json: bool = False, is_logging: bool = False
) -> None:
    """Set how this process speaks. With `is_logging` lines are kept until `write_also`."""
    _voice.rank, _voice.least, _voice.is_json = rank, least, as_json
    _voice.is_logging = is_logging


def has_bars() -> bool:
    """Whether a bar on the terminal is wanted."""
    return not _voice.is_json and _voice.least <= logging.INFO


def writes_json() -> bool:
    return _voice.is_json


def write_also(write: Callable[[str], None]) -> None:
    """Give every line to `write`, from now on and those before. It must raise nothing."""
    for line in _voice.early:
        write(line)
    _voice.early.clear()
    _voice.write = write


def say(
    words: str,
    *,
    every_rank: bool = False,
    level: int = logging.INFO,
    fields: Mapping[str, Any] = {},
) -> None:
    """Print lines on stderr, on rank 0 only. With `every_rank` each rank prints them, and all but
    rank 0 add their number. `fields` are more keys of the JSON line."""
    _log(words, level, fields)
    if (_voice.rank and not every_rank) or level < _voice.least:
        return
    if _voice.is_json:
        text = _short_object(words, level, fields)
    else:
        who = f"runner: rank {_voice.rank}: " if _voice.rank else "runner: "
        text = "\n".join(f"{who}{cut(line, MAX_LINE)}" for line in printable(words).split("\n"))
    print(f"{text}\n", end="", file=sys.stderr, flush=True)


class _OfLibrary(logging.Logger):
    """The logger of a library that would print by itself: its records come to our handler."""

    def addHandler(self, handler: logging.Handler) -> None:
        """The library's own is not taken."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, True if name == "propagate" else value)


def route_libraries() -> None:
    """Call it before they are imported: what they say meanwhile goes to the terminal."""
    kind = logging.getLoggerClass()
    logging.setLoggerClass(_OfLibrary)
    for name in LIBRARIES:
        logger = logging.getLogger(name)
        logger.handlers.clear()  # its own, where it is imported already
        logger.propagate = True
    logging.setLoggerClass(kind)


def note(words: str, level: int = logging.INFO) -> None:
    """Only for the log file, unless everything is asked for on the terminal."""
    if _voice.least <= logging.DEBUG:
        say(words, every_rank=True, level=level)
    else:
        _log(words, level, {})


def answer(words: str) -> None:
    """Print a result on stdout: lines of any length, without a prefix."""
    print(printable(words))


class Handler(logging.Handler):
    """Say log records: those of libraries on the terminal only where they are errors, or where
    everything is asked for."""

    def emit(self, record: logging.LogRecord) -> None:
        is_ours = record.name.partition(".")[0] == "runner"
        least = logging.WARNING if is_ours and not _voice.rank else logging.ERROR
        is_shown = record.levelno >= least
        if is_shown:
            say(record.getMessage(), every_rank=True, level=record.levelno)
        else:
            note(record.getMessage(), record.levelno)


def _log(words: str, level: int, fields: Mapping[str, Any]) -> None:
    """Into the log file, or kept for it."""
    if not _voice.is_logging:
        return
    is_json = _voice.is_json
    text = _object(words, level, fields) if is_json else f"{_time()} {_level(level)} {words}"
    if _voice.write is not None:
        _voice.write(text)
    elif len(_voice.early) < MOST_EARLY:
        _voice.early.append(text)


def _object(words: str, level: int, fields: Mapping[str, Any]) -> str:
    """One JSON object on one line."""
    about = {"time": _time(), "level": _level(level), "rank": _voice.rank}
    return to_json({**about, "message": printable(words), **fields})


def _short_object(words: str, level: int, fields: Mapping[str, Any]) -> str:
    """The same in at most MAX_OBJECT bytes. A letter may take twelve of them."""
    words = cut(words, MAX_OBJECT)
    while len(text := _object(words, level, fields)) > MAX_OBJECT:
        words = cut(words, len(words) * MAX_OBJECT // len(text))
    return text


def _level(level: int) -> str:
    names = {logging.ERROR: "error", logging.WARNING: "warning", logging.INFO: "info"}
    return next((name for least, name in names.items() if level >= least), "debug")


def _time() -> str:
    """UTC, as RFC 3339 has it, with milliseconds."""
    now = time.time()
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d}Z"


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
