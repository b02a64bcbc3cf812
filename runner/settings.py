"""The base of everything that is read from a manifest: strict, frozen, no unknown keys; and the
words for what is wrong with a value."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict

__all__ = ["Settings", "explain", "nearest"]


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


# What people write, and our word for it.
SYNONYMS = {
    "text": "prompt",
    "caption": "prompt",
    "steps": "parameters.num_inference_steps",
    "cfg": "parameters.guidance_scale",
    "guidance": "parameters.guidance_scale",
    "negative": "parameters.negative_prompt",
    "num_images": "parameters.num_images_per_prompt",
    "output_dir": "output",
    "model_id": "model",
    "prompts_file": "prompts: {file: …}",
    "device_map": "strategy: {kind: device_map}",
}
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


def nearest(name: str, known: Mapping[str, str]) -> str:
    """ "; did you mean …?" with the value of the nearest key, or nothing."""
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.55)
    return f"; did you mean {known[close[0]]}?" if close else ""


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
    "union_tag_invalid": "must be one of {expected_tags}",
    "union_tag_not_found": "must name its kind",
    "greater_than": "must be over {gt}",
    "greater_than_equal": "must be from {ge} up",
    "less_than_equal": "must be {le} at most",
    "invalid-json-value": "must be text, a number, true, false, null, or a list or mapping of them",
}


def explain(
    model: type[BaseModel],
    fault: Mapping[str, Any],
    path: Sequence[int | str] | None = None,
    text: str = "",
) -> str:
    """A pydantic error in our words. `path` is its place as the file has it, `text` the value as it
    is written there."""
    loc, kind, value = fault["loc"], fault["type"], fault["input"]
    name = dotted(loc if path is None else path)
    if kind == "extra_forbidden":
        return f"{name}: unknown key{_suggestion(model, loc)}"
    if kind == "missing":
        what = f"{name}: " if name and name != loc[-1] else ""
        return f"{what}{loc[-1]} is required, but not there"
    if isinstance(value, dict | list | tuple) or (value is None and not text):
        given = "" if value is not None else " nothing:"
    else:
        given = f" {text or repr(value)}:"[:80]
    if kind == "string_type":
        return f"{name}:{given} {_as_text(value, text)}"
    if kind == "value_error":
        return f"{name}:{given} {fault['ctx']['error']}"
    words = WORDS.get(kind)
    if words is None:
        return f"{name}:{given} {fault['msg']}"
    return f"{name}:{given} {words.format(**fault.get('ctx', {}))}"


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
    return f'YAML reads it as {reading}, not as text; quote it: "{text}"'


def _suggestion(model: type[BaseModel], loc: Sequence[int | str]) -> str:
    fields = {name: name for found in _models_at(model, loc[:-1]) for name in found.model_fields}
    known = dict(fields)
    if "parameters" in fields:
        known |= {name: f"parameters.{name}" for name in CALL_ARGUMENTS}
    known |= {word: ours for word, ours in SYNONYMS.items() if re.split("[.:]", ours)[0] in fields}
    near = nearest(str(loc[-1]), known)
    if near:
        return near
    hint = "; if the line is a prompt, quote it" if "prompt" in fields else ""
    return f"; known keys: {', '.join(sorted(fields))}{hint}"


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


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
