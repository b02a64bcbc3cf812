"""Fields by name → a prompt: which column is which key, and what becomes of all others."""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from runner.manifest.prompts import COUNTS, PROMPT_INPUTS, Prompt, PromptItem, is_text
from runner.manifest.sources.records import Fields
from runner.manifest.sources.spec import OWN_KEYS, Source
from runner.manifest.suggestions import CALL_ARGUMENTS, SYNONYMS
from runner.manifest.words import explain
from runner.manifest.yaml_tree import TOO_DEEP
from runner.say import cut

__all__ = ["Columns", "faults"]

NEAR = 0.85  # by difflib's ratio: a name as near as this is a slip of the pen
EXTRA = ""  # in place of a key
DIGITS = re.compile(r"[0-9]{1,1000}", re.ASCII)
NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,18})?([eE][-+]?[0-9]{1,3})?", re.ASCII)
JSON_KEYS = {
    "parameters": '{"width": 512}',
    "meta": '{"series": 3}',
    "seeds": "[7, 21]",
    "loras": '{"sepia": 0.5}',
    **dict.fromkeys(PROMPT_INPUTS, '["a.png", "b.png"]'),
}
SCHEDULER = '{"name": "DDIMScheduler", "clip_sample": false}'  # or its name alone
WHOLE_KEYS = ("id", "seed", "variations", *COUNTS)
MAX_NAMES = 12  # of columns in a message


def faults(error: ValueError | RecursionError) -> list[str]:
    """What is wrong with a record; one message per fault."""
    if isinstance(error, ValidationError):
        return [explain(PromptItem, fault) for fault in error.errors()]
    if isinstance(error, UnicodeDecodeError):
        byte = f"byte {error.start + 1} is {error.object[error.start]:#04x}"
        return [f"not UTF-8 ({byte}); save the file as UTF-8"]
    if isinstance(error, json.JSONDecodeError):
        what = error.msg.removesuffix(" at")
        return [f"not JSON: {what} at column {error.pos + 1}{_json_hint(error)}"]
    if isinstance(error, RecursionError):
        return [TOO_DEEP]
    if str(error).startswith("Exceeds the limit"):  # of Python
        return ["a number of more than 4,300 digits; put it in quotes"]
    return [str(error)]


def _json_hint(error: json.JSONDecodeError) -> str:
    if "\r" in error.doc:
        return "; save the file with \\n line ends"
    return "; write one value on each line, and nothing after it" if "Extra" in error.msg else ""


class Columns:
    """`columns` and `extra` of a source. A column that has the name of a key, or of a well-known
    parameter, is that; `columns` names others, or with null takes the name from a column. All other
    columns are the author's data, and go into `meta`."""

    def __init__(self, spec: Source, *, is_text: bool, names: Sequence[str] | None = None) -> None:
        self.spec = spec
        self.is_text = is_text  # numbers are written as text
        self.names = names  # of all columns, where they are known before the records are read
        self._named = {column: key for key, column in spec.columns.items() if column is not None}
        free = [key for key in (*OWN_KEYS, *CALL_ARGUMENTS) if key not in spec.columns]
        self._free = dict.fromkeys(free, "")
        self._keys: dict[str, str] = {}  # of every column that was seen
        self._text_column = spec.columns.get("prompt", "prompt")

    def absent(self) -> list[str]:
        """What is wrong with the names of all columns, or with those that were seen; one message
        per fault."""
        known = list(self._keys if self.names is None else self.names)
        there = f"there are {_listed(known)}"
        found = [
            f"columns.{key}: no column {column}; {there}"
            for key, column in self.spec.columns.items()
            if column is not None and column not in known
        ]
        if self.names is not None:
            found += self.absent_in_where(known)
            if not found and self._text_column not in known:
                found.append(f"no column is the prompt; {there}; {self._hint(known)}")
        return found

    def absent_in_where(self, known: Sequence[str]) -> list[str]:
        """The same for the columns of `select.where`, where these are known."""
        there = f"there are {_listed(known)}"
        return [
            f"select.where: no column {cut(name, 80)}; {there}"
            for name in self.spec.select.where
            if name not in known
        ]

    def guess(self, names: list[str]) -> dict[str, str]:
        """What `columns` should say for these names."""
        found = {}
        if "prompt" not in names and not self._free.keys() >= set(names):
            found["prompt"] = self._likely(names)
        for name in names:
            key = "" if name in self._free or name in found.values() else self._near(name)
            if key and key not in names and key not in found:
                found[key] = name
        return found

    def prompt(self, fields: Fields) -> Prompt:
        """Raises ValueError."""
        if len(fields) == 1 and self._text_column is not None:
            text = fields.get(self._text_column)
            if type(text) is str and text.strip():
                self._keys[self._text_column] = "prompt"
                return Prompt(text)
        own, parameters, meta = self._sorted(fields)
        text, name = own.get("prompt"), own.get("id")
        is_named = name is None or (type(name) is str and name.strip())
        is_plain = is_named and not parameters and len(own) == 1 + ("id" in own)
        if is_plain and type(text) is str and text.strip():
            return Prompt(text, id=name, meta=meta)
        return self._checked(fields, own, parameters, meta)

    def _sorted(self, fields: Fields) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """A record's own keys of a prompt, its parameters, and its author's data."""
        own: dict[str, Any] = {}
        parameters: dict[str, Any] = {}
        meta: dict[str, Any] = {}
        for name, value in fields.items():
            key = self._keys.get(name)
            if key is None:
                key = self._keys[name] = self._key(name)
            if key == EXTRA:
                if value is not None:
                    meta[name] = value
            elif key in OWN_KEYS:
                own[key] = self._value(key, value)
            elif value is not None:
                parameters[key] = self._value(key, value)
        return own, parameters, meta

    def _checked(
        self, fields: Fields, own: dict[str, Any], parameters: Fields, meta: Fields
    ) -> Prompt:
        if "prompt" not in own:
            has_another = self.names is None and any(map(_may_be_prompt, fields))
            was_there = self._text_column in (*(self.names or ()), *self._keys)
            is_there = was_there and not has_another
            hint = "fill it in, or remove the row" if is_there else self._hint(list(fields))
            raise ValueError(f"prompt is missing; {hint}")
        for key, more in (("parameters", parameters), ("meta", meta)):
            if more and isinstance(own.get(key, {}), Mapping):
                own[key] = _joined(key, own.get(key, {}), more)
        try:
            return PromptItem.model_validate(own).to_prompt()
        except ValidationError as error:
            raise ValueError("\n".join(map(self._with_column, faults(error)))) from None

    def _key(self, name: str) -> str:
        """What a column is. Raises ValueError for one that may be a key with a slip."""
        if name in self._named:
            return self._named[name]
        if name in self._free:
            return name
        if near := self._near(name):
            raise ValueError(
                f"{cut(name, 80)}: unknown; did you mean {near}? Rename it, or write columns: "
                f"{{{near}: {cut(name, 80)}}}; for data of your own columns: {{{near}: null}}"
            )
        if self.spec.extra == "refuse":
            raise ValueError(f"{cut(name, 80)}: unknown, and extra: refuse; remove one of them")
        return EXTRA

    def _near(self, name: str) -> str:
        """The key that a name is nearly, or that other tools call so; "" for any other name."""
        synonym = SYNONYMS.get(name.lower(), "").removeprefix("parameters.")
        if synonym in self._free and synonym != "prompt":
            return synonym
        close = difflib.get_close_matches(name.lower(), self._free, n=1, cutoff=NEAR)
        return close[0] if close else ""

    def _hint(self, names: list[str]) -> str:
        """Which column may be the prompt."""
        hint = f"write columns: {{prompt: {cut(self._likely(names), 80)}}}"
        is_one = self.is_text and len(names) == 1
        return hint + ("; if each line is a prompt, add format: text" if is_one else "")

    def _likely(self, names: list[str]) -> str:
        """The name that may be the prompt's: none that is a key of its own."""
        names = [name for name in names if name not in self._free]
        likely = [*filter(_may_be_prompt, names)]
        close = [name for name in names if name.lower().rstrip("s") == "prompt"]
        return [*close, *likely, *names, "NAME"][0]

    def _with_column(self, message: str) -> str:
        for key, column in self.spec.columns.items():
            if column not in (None, key) and re.search(rf"\b{re.escape(key)}\b", message):
                return f"column {column}: {message}"
        return message

    def _value(self, key: str, value: Any) -> Any:
        if self.is_text:
            value = _read(key, value)
        # A table has 7.0 for 7 where other cells of the column are empty.
        is_whole = type(value) is float and value.is_integer() and key in WHOLE_KEYS
        return int(value) if is_whole else value


def _may_be_prompt(name: str) -> bool:
    return SYNONYMS.get(name.lower().rstrip("s")) == "prompt"


def _read(key: str, text: str) -> Any:
    """The value that a text stands for."""
    if key in PROMPT_INPUTS and not text.startswith("["):
        return text
    if key in JSON_KEYS or (key == "scheduler" and text.startswith("{")):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            words = f"must be JSON, as in {JSON_KEYS.get(key, SCHEDULER)}"
            raise ValueError(f"{key}: {cut(text, 80)}: {words}") from None
    if key in ("prompt", "id", "scheduler") or is_text(key):
        return text
    if key in WHOLE_KEYS and DIGITS.fullmatch(text):
        return int(text)
    return _number(text)


def _listed(names: Sequence[str]) -> str:
    return cut(", ".join(names[:MAX_NAMES]), 300) + (", …" if len(names) > MAX_NAMES else "")


def _joined(key: str, values: Mapping[str, Any], more: Fields) -> dict[str, Any]:
    twice = values.keys() & more.keys()
    if twice:
        raise ValueError(f"{min(twice)}: given twice, also in {key}; keep one")
    return {**values, **more}


def _number(text: str) -> Any:
    """A number, true or false as it is written; any other text stays one."""
    if NUMBER.fullmatch(text):
        return json.loads(text)
    return {"true": True, "false": False}.get(text.lower(), text)
