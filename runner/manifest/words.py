"""A fault that pydantic found → one line: the key, its value, what is wrong and what to do."""

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from runner.manifest.suggestions import models_at, nearest, suggestion
from runner.manifest.yaml_tree import NOT_FINITE, Odd
from runner.say import cut

__all__ = ["MAX_VALUE", "dotted", "explain"]

MAX_VALUE = 80  # characters of a value or a key in a message

# pydantic's types of faults → what is wrong; {…} are pydantic's own values. Types that need more
# than a sentence have a function below, and what is in neither keeps pydantic's words.
WORDS = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "tuple_type": "must be a list of prompts, or {{file: prompts.txt}}",
    "list_type": "must be a list",
    "too_short": "must not be empty",
    "literal_error": "must be {expected}",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be {ge} or more",
    "less_than_equal": "must be {le} or less",
    "string_pattern_mismatch": "the size must be written as 1024x768, or default",
    "invalid-json-value": "must be text, a number, true, false, null, or a list or mapping of them",
}
NUMBERS = ("int_type", "float_type")

# What YAML read in place of a text, by type. Numbers are all the other types.
READINGS = {bool: "true or false", type(None): "nothing"}


def explain(
    model: type[BaseModel],
    fault: Mapping[str, Any],
    path: Sequence[int | str] | None = None,
    text: str = "",
) -> str:
    """A fault of a value for `model`, in one line. `path` is the fault's place as far as the file
    has it, `text` the value as it is written there; a line of JSON has neither."""
    loc, kind, value = fault["loc"], fault["type"], fault["input"]
    if kind == "missing":
        return _missing(loc[:-1] if path is None else path, loc[-1])
    name = _shown(dotted(loc if path is None else path))
    if kind == "extra_forbidden":
        return f"{name}: unknown key{suggestion(model, loc)}"
    if kind.startswith("union_tag"):
        return f"{name}: {_wrong_kind(model, loc, fault)}"
    if kind in NUMBERS and isinstance(value, str) and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value):
        return f'{name}: "{_shown(value)}" {WORDS[kind]}; leave the quotes out'
    return f"{name}:{_given(value, text)} {_reason(fault, text)}"


def dotted(path: Sequence[int | str]) -> str:
    """`prompts[3].parameters.height`."""
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).removeprefix(".")


def _shown(text: str) -> str:
    return cut(text, MAX_VALUE)


def _missing(path: Sequence[int | str], key: str) -> str:
    place = f"{_shown(dotted(path))}: " if path else ""
    return f"{place}{key} is missing"


def _given(value: Any, text: str) -> str:
    """The value as it is written, but for a list or a mapping, which may be long."""
    if isinstance(value, dict | list | tuple):
        return ""
    if value is None and not text:
        return " nothing:"
    return f" {_shown(text if text.strip() else repr(value))}:"


def _reason(fault: Mapping[str, Any], text: str) -> str:
    """What is wrong with the value, and what to do about it."""
    kind, value = fault["type"], fault["input"]
    if kind == "value_error":
        return str(fault["ctx"]["error"])
    if kind == "string_type":
        return _no_text(value, text)
    if kind == "invalid-json-value" and isinstance(value, Odd):
        if value.reading == NOT_FINITE:
            return f"{NOT_FINITE}; write a finite one"
        number = f"write {value.plain}, or " if value.plain else ""
        return f'YAML reads it as {value.reading}; {number}quote it: "{_shown(str(value))}"'
    if kind not in WORDS:
        return str(fault["msg"])
    words = WORDS[kind].format(**fault.get("ctx", {}))
    if kind == "literal_error":
        return words + nearest(str(value), {name: name for name in re.findall("'([^']*)'", words)})
    if fault["loc"][-1] == "<number>":  # of what is a number or `auto`
        words += ", or auto"
    if kind in NUMBERS:
        return words + _plain_number(value, is_whole=kind == "int_type")
    return words


def _no_text(value: Any, text: str) -> str:
    if isinstance(value, dict) and value and not any(value.values()):  # {id}, not in quotes
        return f'YAML reads it as a mapping, not as text; quote it: "{{{", ".join(value)}}}"'
    if isinstance(value, dict | list | tuple):
        return "must be text, not a list or a mapping"
    if not text:
        return "must be text"
    reading = value.reading if isinstance(value, Odd) else READINGS.get(type(value), "a number")
    return f'YAML reads it as {reading}, not as text; quote it: "{_shown(text)}"'


def _plain_number(value: Any, *, is_whole: bool) -> str:
    """ "; write 1000" for a value that means a number in a form that YAML 1.1 does not read as one,
    such as 1e3; empty for any other."""
    plain = ""
    if isinstance(value, Odd):
        plain = value.plain
    elif isinstance(value, str):
        with contextlib.suppress(ValueError):
            number = float(value)
            if math.isfinite(number):
                plain = str(int(number) if number.is_integer() else number)
    return f"; write {plain}" if plain and not (is_whole and "." in plain) else ""


def _wrong_kind(model: type[BaseModel], loc: Sequence[int | str], fault: Mapping[str, Any]) -> str:
    """For a mapping whose `kind` is missing or unknown."""
    value = fault["input"]
    kinds = {str(found.model_fields["kind"].default): found for found in models_at(model, loc)}
    if fault["type"] == "union_tag_not_found":
        keys = set(value) if isinstance(value, dict) else set()
        named = [kind for kind in kinds if kind in keys]
        able = [kind for kind, found in kinds.items() if keys <= set(found.model_fields)]
        return f"must name its kind, as in {{kind: {[*named, *able, *kinds][0]}, …}}"
    tag = "nothing" if value == {"kind": None} else _shown(str(fault["ctx"]["tag"]))
    return f"{tag}: must be one of {', '.join(kinds)}{nearest(tag, {kind: kind for kind in kinds})}"
