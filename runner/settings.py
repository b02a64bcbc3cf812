"""The base of everything that is read from a manifest: strict, frozen, no unknown keys; and the
words for what is wrong with a value."""

import difflib
from collections.abc import Iterator, Mapping
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


def explain(model: type[BaseModel], fault: Mapping[str, Any], text: str = "") -> str:
    """A pydantic error in our words; `text` is the value as it stands in the file."""
    path = [str(part) for part in fault["loc"] if not isinstance(part, int)]
    key = path[-1] if path else ""
    given = text or repr(fault["input"])
    if len(given) > 60:
        given = given[:57] + "…"
    kind = fault["type"]
    if kind == "extra_forbidden":
        return f"{key}: unknown key{_suggestion(model, tuple(fault['loc']), key)}"
    if kind == "missing":
        return f"{key}: required, but not there"
    if kind == "string_type":
        reading = {bool: "true or false", type(None): "nothing"}.get(type(fault["input"]))
        reading = reading or getattr(fault["input"], "reading", None) or "a number"
        if isinstance(fault["input"], dict | list):
            return f"{key}: must be text, not a list or a mapping"
        if fault["input"] is None and not text:
            return f"{key}: is empty; write a text"
        return f'{key}: {given} is read by YAML as {reading}, not text; quote it: "{given}"'
    message = fault["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if kind == "value_error" and len(message) > 40:
        return f"{key}: {message}"
    return f"{key}: {given}: {message}" if key else message


def _suggestion(model: type[BaseModel], path: tuple[int | str, ...], key: str) -> str:
    fields = {name: name for found in _models_at(model, path[:-1]) for name in found.model_fields}
    if "parameters" in fields:
        fields |= {name: f"parameters.{name}" for name in CALL_ARGUMENTS}
    fields |= {
        word: ours for word, ours in SYNONYMS.items() if ours.split(".")[0].split(":")[0] in fields
    }
    return nearest(key, fields) or f"; known keys: {', '.join(sorted(set(fields) - set(SYNONYMS)))}"


def _models_at(model: type[BaseModel], path: tuple[int | str, ...]) -> list[type[BaseModel]]:
    """The models that a path through `model` can lead to."""
    found = [model]
    for part in path:
        below = [
            inner
            for outer in found
            if part in outer.model_fields
            for inner in _models_in(outer.model_fields[str(part)].annotation)
        ]
        # Not a field: an index, or the tag of a union member, which names its `kind`.
        tagged = [
            outer
            for outer in found
            if "kind" in outer.model_fields and outer.model_fields["kind"].default == part
        ]
        found = below or tagged or found
    return found


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
