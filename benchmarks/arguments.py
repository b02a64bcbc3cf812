"""What the benchmarks take on their command lines: a bad value is one line and exit code 2, before
anything runs."""

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any


def whole(least: int, most: int = 10**6) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch("[0-9]{1,18}", text) or not least <= int(text) <= most:
            raise _refused(text, f"not a whole number from {least} to {most}")
        return int(text)

    return parse


def real(least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not least <= number <= most:
            raise _refused(text, f"not a number from {least:g} to {most:g}")
        return number

    return parse


def batch_size(text: str) -> int | str:
    return text if text == "auto" else whole(1)(text)


def folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise _refused(text, "no folder")
    return Path(text)


def file(text: str) -> Path:
    if not Path(text).is_file():
        raise _refused(text, "no file")
    return Path(text)


def new_file(text: str) -> Path:
    if Path(text).is_dir():
        raise _refused(text, "a folder")
    return Path(text)


def write_json(path: Path | None, values: Any) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values, indent=2) + "\n")


def _refused(text: str, reason: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{text[:80]}: {reason}")
