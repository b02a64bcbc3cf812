"""Numbers, sizes and durations as people write and read them.

Only ASCII digits are read, and no size is larger than any machine has.
"""

import re
import shlex
from collections.abc import Sequence

__all__ = [
    "DTYPE_BYTES",
    "GIB",
    "MAX_BYTES",
    "bytes_in",
    "counted",
    "duration",
    "first_few",
    "gib",
    "install_line",
    "one_line",
    "whole_number",
]

GIB = 2**30
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}  # of a number, by a manifest's dtype
UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": GIB}
MAX_BYTES = 2**50


def one_line(text: str) -> str:
    """The text with its line ends shown as \\n, as a path or a value may have them."""
    return text.replace("\n", "\\n")


def whole_number(text: str, most: int) -> int:
    """A decimal number from 1 to `most`. Raises ValueError."""
    if not re.fullmatch(r"[1-9][0-9]*", text) or len(text) > len(str(most)) or int(text) > most:
        raise ValueError(f"not a whole number from 1 to {most}")
    return int(text)


def bytes_in(text: str) -> int:
    """The bytes of 40GiB or 500MB. Raises ValueError."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([KMG]i?B)", text, re.IGNORECASE)
    size = int(float(found[1]) * UNITS[found[2].upper()]) if found else 0
    if not 0 < size <= MAX_BYTES:
        raise ValueError(f"not a size up to {MAX_BYTES // GIB}GiB; write it as 40GiB or 500MB")
    return size


def gib(size: int, places: int = 1) -> str:
    """`1.5 GiB`."""
    return f"{size / GIB:.{places}f} GiB"


def counted(number: int, word: str) -> str:
    """`1 batch`, `2 batches`."""
    plural = f"{word}es" if word.endswith(("s", "x", "ch")) else f"{word}s"
    return f"{number} {word if number == 1 else plural}"


def install_line(*packages: str) -> str:
    """`pip install pyarrow`: by their own names, since nothing else is right in any folder."""
    return f"pip install {shlex.join(packages)}"


def first_few(items: Sequence[object], most: int = 8) -> str:
    """`3, 5, 8 … 4 more`."""
    more = f" … {len(items) - most} more" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + more


def duration(seconds: float) -> str:
    """`15 s`, `4 min`, `3 h 10 min`."""
    if seconds < 59.5:
        return f"{max(1, round(seconds))} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
