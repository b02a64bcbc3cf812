"""The base of everything that is read from a manifest: strict, frozen, no unknown keys; and the
words for what is wrong with a value."""

import contextlib
import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from runner.manifest.yaml_tree import Odd
from runner.say import cut

__all__ = ["MAX_VALUE", "explain", "nearest", "place_of"]


NEAR = 0.62  # of difflib's ratio: below that, `id` is like `width`
# What people write, and our word for it.
SYNONYMS = {
    "text": "prompt",
    "caption": "prompt",
    "steps": "parameters.num_inference_steps",
    "num_steps": "parameters.num_inference_steps",
    "cfg": "parameters.guidance_scale",
    "guidance": "parameters.guidance_scale",
    "negative": "parameters.negative_prompt",
    "num_images": "parameters.num_images_per_prompt",
    "output_dir": "output",
    "precision": "dtype",
    "model_id": "model",
    "prompts_file": "prompts: {file: …}",
    "device_map": "strategy: {kind: device_map}",
}
# In a prompt these are data of its author's, not keys of ours in a wrong place.
THEIR_OWN = ("id", "file", "dir", "kind")
# Well-known arguments of pipeline calls: at the wrong level they are told where they belong.
CALL_ARGUMENTS = (
    "height",
    "width",
    "num_inference_steps",
    "guidance_scale",
    "true_cfg_scale",
    "negative_prompt",
    "num_images_per_prompt",
    "max_sequence_length",
)


def nearest(name: str, known: Mapping[str, str], likeness: float = NEAR) -> str:
    """ "; did you mean …?" with the value of the nearest key, or nothing."""
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=likeness)
    return f"; did you mean {known[close[0]]}?" if close else ""


def place_of(name: str, model: type[BaseModel]) -> str:
    """ "; its place is …" for a key that belongs elsewhere in the model, or nothing."""
    place = dict(_places(model)).get(name.lower())
    return f"; its place is {place}" if place else ""


# pydantic's error types in our words; {…} are its own values.
WORDS = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping of keys to values",
    "tuple_type": "must be a list of prompts, or {{file: prompts.txt}}",
    "too_short": "must have at least one prompt",
    "model_type": "must be a mapping of keys to values",
    "literal_error": "must be {expected}",
    "greater_than": "must be over {gt}",
    "greater_than_equal": "must be from {ge} up",
    "less_than_equal": "must be {le} at most",
    "invalid-json-value": "must be text, a number, true, false, null, or a list or mapping of them",
}


NUMBERS = ("int_type", "float_type")
MAX_VALUE = 80  # characters that are told of one


def explain(
    model: type[BaseModel],
    fault: Mapping[str, Any],
    path: Sequence[int | str] | None = None,
    text: str = "",
) -> str:
    """A pydantic error in our words. `path` is its place as the file has it, `text` the value as it
    is written there."""
    loc, kind, value = fault["loc"], fault["type"], fault["input"]
    name = cut(dotted(loc if path is None else path), MAX_VALUE)
    if kind == "extra_forbidden":
        return f"{name}: unknown key{_suggestion(model, loc)}"
    if kind == "missing":
        what = f"{name}: " if name and name != loc[-1] else ""
        return f"{what}{loc[-1]} is required, but not there"
    if kind.startswith("union_tag"):
        return f"{name}: {_kind(model, loc, fault)}"
    if isinstance(value, dict | list | tuple) or (value is None and not text):
        given = "" if value is not None else " nothing:"
    else:
        given = f" {cut(text or repr(value), MAX_VALUE)}:"
    if kind == "string_type":
        return f"{name}:{given} {_as_text(value, text)}"
    if kind == "value_error":
        return f"{name}:{given} {fault['ctx']['error']}"
    if isinstance(value, Odd) and kind == "invalid-json-value":
        number = f"write {value.plain}, or " if value.plain else ""
        quoted = f'quote it: "{cut(str(value), MAX_VALUE)}"'
        return f"{name}:{given} YAML reads it as {value.reading}; {number}{quoted}"
    words = WORDS.get(kind)
    if words is None:
        return f"{name}:{given} {fault['msg']}"
    words = words.format(**fault.get("ctx", {}))
    if kind == "literal_error":
        names = re.findall("'([^']*)'", words)
        return f"{name}:{given} {words}{nearest(str(value), {name: name for name in names})}"
    if kind in NUMBERS and isinstance(value, str) and re.fullmatch(r"-?[0-9.]+", value):
        return f'{name}: "{cut(value, MAX_VALUE)}" {words}; leave the quotes out'
    plain = _plain(value) if kind in NUMBERS else ""
    is_right = plain and ("." not in plain or kind == "float_type")
    return f"{name}:{given} {words}" + (f"; write {plain}" if is_right else "")


def _plain(value: Any) -> str:
    """The number that a value means, such as YAML 1.1 has it; nothing where it means none."""
    if isinstance(value, Odd):
        return value.plain
    with contextlib.suppress(ValueError):
        if isinstance(value, str) and math.isfinite(number := float(value)):
            return str(int(number) if number.is_integer() else number)
    return ""


def dotted(path: Sequence[int | str]) -> str:
    """`prompts[3].parameters.height`."""
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).removeprefix(".")


def _as_text(value: Any, text: str) -> str:
    if isinstance(value, dict | list | tuple):
        return "must be text, not a list or a mapping"
    if not text:
        return "must be text"
    readings = {bool: "true or false", type(None): "nothing"}
    reading = getattr(value, "reading", None) or readings.get(type(value), "a number")
    return f'YAML reads it as {reading}, not as text; quote it: "{cut(text, MAX_VALUE)}"'


def _kind(model: type[BaseModel], loc: Sequence[int | str], fault: Mapping[str, Any]) -> str:
    """For a union whose `kind` is missing or unknown."""
    value = fault["input"]
    kinds = {str(m.model_fields["kind"].default): m for m in _models_at(model, loc)}
    if fault["type"] == "union_tag_not_found":
        keys = set(value) if isinstance(value, dict) else set()
        named = [name for name in kinds if name in keys]
        able = [name for name, inner in kinds.items() if keys <= set(inner.model_fields)]
        return f"must name its kind, as in {{kind: {[*named, *able, *kinds][0]}, …}}"
    tag = "nothing" if value == {"kind": None} else str(fault["ctx"]["tag"])
    near = nearest(tag, {name: name for name in kinds})
    return f"{tag[:60]}: must be one of {', '.join(kinds)}{near}"


def _suggestion(model: type[BaseModel], loc: Sequence[int | str]) -> str:
    fields = {name: name for found in _models_at(model, loc[:-1]) for name in found.model_fields}
    known = dict(fields)
    if "parameters" in fields:
        known |= {name: f"parameters.{name}" for name in CALL_ARGUMENTS}
    words = {word: ours for word, ours in SYNONYMS.items() if re.split("[.:]", ours)[0] in fields}
    name = str(loc[-1])
    is_their_own = "prompt" in fields and name in THEIR_OWN
    near = (
        ("" if is_their_own or name.lower() in known | words else place_of(name, model))
        or nearest(name, known)
        or nearest(name, {} if is_their_own else words | dict(_places(model)), likeness=0.8)
    )
    if near:
        return near
    hint = "; if the line is a prompt, quote it" if "prompt" in fields and len(loc) > 1 else ""
    return f"; known keys: {', '.join(sorted(fields))}{hint}"


def _places(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Every key and where it stands in the file; of equal keys the last one counts."""
    fields = model.model_fields
    if "parameters" in fields:
        yield from ((name, f"parameters.{name}") for name in CALL_ARGUMENTS)
        yield from ((w, ours) for w, ours in SYNONYMS.items() if ours.startswith("parameters."))
    for outer, field in fields.items():
        for inner in reversed(list(_models_in(field.annotation, with_items=False))):
            kind = inner.model_fields.get("kind")
            for name in inner.model_fields:
                is_own = kind is not None and name != "kind"
                setting = f"{outer}: {{kind: {kind.default}, {name}: …}}" if is_own and kind else ""
                yield name, setting or f"{outer}.{name}"
    yield from ((name, f"{name}, at the top level") for name in fields)


def _models_at(model: type[BaseModel], path: Sequence[int | str]) -> list[type[BaseModel]]:
    """The models that a path through `model` can lead to."""
    found = [model]
    for part in path:
        fields = [outer.model_fields.get(str(part)) for outer in found]
        below = [inner for field in fields if field for inner in _models_in(field.annotation)]
        found = below or [outer for outer in found if _is_tagged(outer, str(part))] or found
    return found


def _is_tagged(model: type[BaseModel], tag: str) -> bool:
    """Whether a union's tag chooses this model: its kind, or its main key as `<key>`."""
    kind = model.model_fields.get("kind")
    return (kind is not None and kind.default == tag) or tag.strip("<>") in model.model_fields


def _models_in(annotation: Any, *, with_items: bool = True) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    if with_items or get_origin(annotation) is not tuple:
        for argument in get_args(annotation):
            yield from _models_in(argument, with_items=with_items)
