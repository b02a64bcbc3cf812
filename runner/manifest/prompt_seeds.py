"""`seed: {per: prompt}`: a seed from what a prompt is, not from its place in the list."""

from __future__ import annotations  # array[int] is no type at run time before 3.12

import collections
import hashlib
import json
from array import array
from collections.abc import Iterable

from runner.manifest.prompts import Prompt, repeated

__all__ = ["seeds_of"]

SEEDS = 2**32  # derived seeds are below, so that they are short enough to type


def seeds_of(prompts: Iterable[Prompt]) -> array[int]:
    """The first seed of each prompt: from its id, or its text where it has none. Prompts that are
    equal in all they have get different ones, else they would be one picture several times. They
    are interchangeable, so their order does not matter."""
    names, contents = array("Q"), array("q")
    for prompt in prompts:
        names.append(_hash(*_name(prompt)))
        contents.append(hash((prompt.prompt, _own(prompt), names[-1])))  # for this process alone
    counts = collections.Counter[int]()
    twice = repeated(contents)
    for place, content in enumerate(contents):
        if content in twice:
            names[place] = _hash(names[place], counts[content]) if counts[content] else names[place]
            counts[content] += 1
    return array("Q", (name % SEEDS for name in names))


def _name(prompt: Prompt) -> tuple[str, str]:
    return ("text", prompt.prompt) if prompt.id is None else ("id", prompt.id)


def _own(prompt: Prompt) -> str:
    return json.dumps(prompt.parameters, sort_keys=True) if prompt.parameters else ""


def _hash(*values: object) -> int:
    text = "\0".join(map(str, values))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
