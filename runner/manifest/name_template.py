"""`output.name`: how images are named, as in `{id}/samples/{variation:04}`."""

import re
import string
from typing import NamedTuple

__all__ = ["NameTemplate", "Part", "is_reserved", "parse"]

UNSAFE = re.compile(r'[\\:*?"<>|\x00-\x1f\x7f]')  # on some file system, or for a terminal
SPEC = re.compile(r"(0?[1-9]|\.[1-9][0-9]?)?", re.ASCII)  # :04 of a number, :.30 of a text
RESERVED = re.compile(r"(con|prn|aux|nul|con(in|out)\$|(com|lpt)[0-9¹²³]) *(\..*)?")  # by Windows
OWN_NAMES = {"manifest.yaml", "metadata.jsonl", "failures.jsonl", "summary.json", "report.html"}
OWN_NAMES |= {"manifest-prompts.jsonl", "manifest-prompts.jsonl.gz"}


class Part(NamedTuple):
    """Text, and the value that follows it."""

    text: str
    field: str = ""  # "" for no value
    spec: str = ""


class NameTemplate(NamedTuple):
    """A checked template, without `.png`."""

    parts: tuple[Part, ...]

    @property
    def depth(self) -> int:
        """How many folders an image lies in."""
        return sum(part.text.count("/") for part in self.parts)


def parse(text: str) -> NameTemplate:
    """Raises ValueError for what is no name, wherever its values lead."""
    try:
        found = [*string.Formatter().parse(text)]
    except ValueError as error:
        raise ValueError(f"{error}; write a brace itself as {{{{") from None
    parts = []
    for before, field, spec, conversion in found:
        if conversion or not SPEC.fullmatch(spec or ""):
            raise ValueError(f"{{{field}}}: only :04 (digits) or :.30 (cut) may follow")
        if field is not None and not field.strip():
            raise ValueError("{} has no name; write one, as in {id}")
        parts.append(Part(before, field or "", spec or ""))
    template = NameTemplate(tuple(parts))
    _check(template)
    return template


def _check(template: NameTemplate) -> None:
    literal = "".join(f"{part.text}{'x' if part.field else ''}" for part in template.parts)
    if found := UNSAFE.search(literal):
        raise ValueError(f"{found[0]!r} cannot stand in a name; leave it out")
    if literal.endswith(".png"):
        raise ValueError("leave .png out, which is added")
    for name in literal.split("/"):
        if not name or name.startswith(".") or name != name.strip() or name.endswith("."):
            raise ValueError(f"{name!r} is no name of a file or folder")
    if not any(part.field for part in template.parts):
        raise ValueError("has no value, so all images would have one name; add {index}")


def is_reserved(path: str) -> bool:
    """Whether a name, or a folder before it, has a meaning of its own: for Windows, or here."""
    names = path.casefold().split("/")
    return any(map(RESERVED.fullmatch, names)) or (len(names) > 1 and names[0] in OWN_NAMES)
