"""What a wrong key or a wrong name in a manifest may have meant."""

import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel

__all__ = ["models_at", "nearest", "place_of", "suggestion"]

# Likeness by difflib's ratio, 0 to 1. With less than NEAR, `id` would be taken for `width`. Words
# that belong elsewhere in the manifest must be nearer than the keys that may stand here.
NEAR = 0.62
NEARER = 0.8

# What people write → the key for it.
SYNONYMS = {
    "text": "prompt",
    "caption": "prompt",
    "steps": "parameters.num_inference_steps",
    "num_steps": "parameters.num_inference_steps",
    "cfg": "parameters.guidance_scale",
    "guidance": "parameters.guidance_scale",
    "negative": "parameters.negative_prompt",
    "num_images": "parameters.num_images_per_prompt",
    "sampler": "scheduler",
    "sampler_name": "scheduler",
    "output_dir": "output",
    "precision": "dtype",
    "model_id": "model",
    "prompts_file": "prompts: {file: …}",
    "device_map": "strategy: {kind: device_map}",
}

# Well-known arguments of pipeline calls, which belong under `parameters`.
CALL_ARGUMENTS = {
    name: f"parameters.{name}"
    for name in (
        "height",
        "width",
        "num_inference_steps",
        "guidance_scale",
        "true_cfg_scale",
        "negative_prompt",
        "num_images_per_prompt",
        "max_sequence_length",
    )
}

# Keys of the manifest that in a prompt are more likely data of the author's own.
OWN_DATA = ("file", "dir", "kind")

Model = type[BaseModel]


def nearest(name: str, known: Mapping[str, str], likeness: float = NEAR) -> str:
    """ "; did you mean …?" with the value of the nearest key; empty if none is near."""
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=likeness)
    return f"; did you mean {known[close[0]]}?" if close else ""


def place_of(name: str, model: Model) -> str:
    """ "; its place is …" for a key that belongs elsewhere in the model; empty for any other."""
    place = _places(model).get(name.lower())
    return f"; its place is {place}" if place else ""


def suggestion(model: Model, loc: Sequence[int | str]) -> str:
    """What to write in place of an unknown key: its place, a near key, or the known keys."""
    name = str(loc[-1])
    fields = {field for found in models_at(model, loc[:-1]) for field in found.model_fields}
    here = {field: field for field in fields}
    if "parameters" in fields:
        here |= CALL_ARGUMENTS
    synonyms = {word: key for word, key in SYNONYMS.items() if _first_key(key) in fields}
    elsewhere = synonyms | _places(model)
    if "prompt" in fields and name in OWN_DATA:
        elsewhere = {}
    is_known_here = name.lower() in here | synonyms
    return (
        (place_of(name, model) if elsewhere and not is_known_here else "")
        or nearest(name, here)
        or nearest(name, elsewhere, NEARER)
        or _known_keys(fields, in_prompt="prompt" in fields and len(loc) > 1)
    )


def _first_key(key: str) -> str:
    """`parameters` of `parameters.height`, `strategy` of `strategy: {kind: …}`."""
    return re.split("[.:]", key)[0]


def _known_keys(fields: Iterable[str], *, in_prompt: bool) -> str:
    hint = "; if the line is a prompt, quote it" if in_prompt else ""
    return f"; known keys: {', '.join(sorted(fields))}{hint}"


@functools.cache
def _places(model: Model) -> dict[str, str]:
    """Every key below a model → how to write it in the file. A key of several places has the one
    nearest to the top level, then the one of the first field."""
    places: dict[str, str] = {}
    if "parameters" in model.model_fields:
        places |= CALL_ARGUMENTS
        places |= {w: key for w, key in SYNONYMS.items() if _first_key(key) == "parameters"}
    for outer, field in reversed(model.model_fields.items()):
        for inner in reversed([*_models_in(field.annotation, with_items=False)]):
            places |= {name: _written(outer, inner, name) for name in inner.model_fields}
    return places | {name: f"{name}, at the top level" for name in model.model_fields}


def _written(outer: str, inner: Model, name: str) -> str:
    """`model.revision`, or `strategy: {kind: device_map, max_memory: …}` for a key of one kind."""
    kind = inner.model_fields.get("kind")
    if kind is None or name == "kind":
        return f"{outer}.{name}"
    return f"{outer}: {{kind: {kind.default}, {name}: …}}"


def models_at(model: Model, path: Sequence[int | str]) -> list[Model]:
    """The models that a path of pydantic's through `model` can lead to."""
    found = [model]
    for part in path:
        fields = [outer.model_fields.get(str(part)) for outer in found]
        below = [inner for field in fields if field for inner in _models_in(field.annotation)]
        found = below or [outer for outer in found if _is_tagged(outer, str(part))] or found
    return found


def _is_tagged(model: Model, tag: str) -> bool:
    """Whether a union's tag chooses this model: its kind, or its main key as `<key>`."""
    kind = model.model_fields.get("kind")
    return (kind is not None and kind.default == tag) or tag.strip("<>") in model.model_fields


def _models_in(annotation: Any, *, with_items: bool = True) -> Iterator[Model]:
    """The models that an annotation names; with those of a tuple's items or without."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    if with_items or get_origin(annotation) is not tuple:
        for argument in get_args(annotation):
            yield from _models_in(argument, with_items=with_items)
