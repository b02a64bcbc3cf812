"""The JSON files of a model: one reader, and one line for every way in which a file can be wrong.

A model folder comes from somebody else. A pipe in the place of a file would wait for ever, and a
file of many gigabytes would fill the memory.
"""

import json
import os
import stat
from pathlib import Path
from typing import Any

from runner.errors import ModelError

__all__ = ["AGAIN", "MAX_BYTES", "fault", "parse_json", "read_bytes", "read_json"]

AGAIN = "download the model again"
MAX_BYTES = 64 << 20  # of a config; the largest tokenizer.json known has 35 MB


def fault(path: Path, error: Exception) -> ModelError:
    """The error of a file that cannot be read."""
    if isinstance(error, RecursionError):
        return ModelError(f"{path}: cannot be read: nested too deep; {AGAIN}")
    reason = getattr(error, "strerror", None) or str(error)
    return ModelError(f"{path}: cannot be read: {reason}; {AGAIN}")


def read_bytes(path: Path) -> bytes:
    """A config as it is. Raises ModelError: no plain file, or too large to be a config."""
    try:
        # Without O_NONBLOCK the open of a pipe waits for somebody who writes.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise ModelError(f"{path}: is not a plain file; {AGAIN}")
            if about.st_size > MAX_BYTES:
                raise ModelError(
                    f"{path}: has {about.st_size >> 20:,} MiB, and a config has "
                    f"{MAX_BYTES >> 20} at most; {AGAIN}"
                )
            return file.read(MAX_BYTES)
    except OSError as error:
        raise fault(path, error) from None


def parse_json(data: bytes, path: Path) -> dict[str, Any]:
    """The JSON object in `data`, which was read from `path`. Raises ModelError."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise fault(path, error) from None
    if not isinstance(values, dict):
        raise ModelError(f"{path}: must be a JSON object, {{…}}; {AGAIN}")
    return values


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ModelError."""
    return parse_json(read_bytes(path), path)
