"""Faults of a manifest that its model's configs show, before weights load and without torch."""

import contextlib
import importlib.metadata
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.errors import ModelError, Problem
from runner.manifest.schema import Manifest
from runner.manifest.suggestions import nearest, place_of
from runner.model.configs import ModelConfigs
from runner.model.files import index_of
from runner.model.signature import PipelineCall, pipeline_call
from runner.model.spec import ModelSpec
from runner.plan import Plan

__all__ = ["check"]

MAX_PROBLEMS = 100  # the rest would only hide the first

# What a type of the call's is in YAML.
IN_YAML = {
    "int": "a number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text in quotes",
    "list": "a list",
    "tuple": "a list",
    "sequence": "a list",
    "dict": "a mapping of keys to values",
}


def check(plan: Plan, folder: Path) -> None:
    """Raises ModelError for a pipeline that diffusers does not have or that takes no prompt; for
    parameters that its call does not take; for values that have another type than the call's or
    that the pipeline's own check refuses; for sizes that it would round."""
    spec = plan.manifest.model
    name = index_of(folder, spec.id)["_class_name"]
    call = _call_of(spec, name) if isinstance(name, str) else None  # else the model's own code
    if call is not None:
        _refuse(_unknown(plan, call, name))
        _refuse(_type_faults(plan, call, name))
    _check_sizes(plan, ModelConfigs.read(folder).size_multiple)
    if call is not None:
        _refuse(_objections(plan, call, name))


def _refuse(problems: Iterator[Problem]) -> None:
    if first := [*itertools.islice(problems, MAX_PROBLEMS)]:
        raise ModelError("\n".join(map(str, first)))


def _call_of(spec: ModelSpec, class_name: str) -> PipelineCall:
    call = pipeline_call(class_name)
    if call is None:
        version = importlib.metadata.version("diffusers")
        raise ModelError(f"{spec.id}: diffusers {version} has no {class_name}")
    if not {"prompt", "generator"} <= call.arguments.keys():
        raise ModelError(f"{spec.id}: {class_name} makes no images from prompts")
    return call


def _check_sizes(plan: Plan, multiple: int) -> None:
    for size, prompt in plan.sizes.items():
        for name, value in zip(("height", "width"), size, strict=True):
            if value is not None and value % multiple:
                low = value // multiple * multiple
                valid = " or ".join(str(v) for v in (low, low + multiple) if v)
                raise ModelError(
                    f"{plan.where(prompt, name)}: {name} {value}: {plan.manifest.model.id} needs a "
                    f"multiple of {multiple}; use {valid}"
                )


def _unknown(plan: Plan, call: PipelineCall, class_name: str) -> Iterator[Problem]:
    known = {name: name for name in call.arguments if name not in ("self", "prompt")}
    for name, prompt in plan.names.items():
        if name not in known and not call.takes_any:
            message = f"{class_name} takes no {name}{_hint(name, known)}"
            yield Problem(plan.where(prompt, name), message)


def _hint(name: str, known: Mapping[str, str]) -> str:
    place = place_of(name, Manifest)
    is_elsewhere = place and not place.endswith(f"parameters.{name}")
    return place if is_elsewhere else nearest(name, known)


def _type_faults(plan: Plan, call: PipelineCall, class_name: str) -> Iterator[Problem]:
    """Values that have another type than the call's, each value once."""
    seen = set[str]()
    for prompt, parameters in plan.parameter_sets.values():
        for name, value in parameters.items():
            if call.takes(name, value):
                continue
            wanted, given = call.wants(name), json.dumps(value, ensure_ascii=False)[:60]
            fault = f"{name}: {class_name} takes {wanted}, not {given}"
            if fault not in seen:
                seen.add(fault)
                remedy = f"write {_instead(wanted, value)}"
                yield Problem(plan.where(prompt, name), f"{fault}; {remedy}")


def _instead(wanted: str, value: Any) -> str:
    """`4.0 for "4e0"`, which YAML 1.1 reads as text; for other values what the type is in YAML."""
    values = value if isinstance(value, list) else [value]
    if re.search("int|float", wanted):
        for text in values:
            if number := _finite_number(text):
                return f"{number} for {json.dumps(text)}"
    return next(IN_YAML[word] for word in re.findall(r"\w+", wanted.lower()) if word in IN_YAML)


def _finite_number(text: Any) -> str:
    """The number that a text means, in a form that every YAML reads as one; empty if none."""
    with contextlib.suppress(ValueError):
        if isinstance(text, str) and math.isfinite(float(text)):
            return str(int(text) if text.isdecimal() else float(text))
    return ""


def _objections(plan: Plan, call: PipelineCall, class_name: str) -> Iterator[Problem]:
    """What the pipeline's own check of its arguments refuses, each reason once."""
    seen = set[str]()
    for prompt, parameters in plan.parameter_sets.values():
        reason = call.objection(parameters)
        named = [name for name in parameters if re.search(rf"\b{re.escape(name)}\b", reason)]
        if reason and named and reason not in seen:
            seen.add(reason)
            remedy = _allowed(call, parameters, named, reason) or f"change {' or '.join(named)}"
            message = f"{class_name}: {reason.rstrip('.')}; {remedy}"
            yield Problem(plan.where(prompt, *named), message)


def _allowed(
    call: PipelineCall, parameters: Mapping[str, Any], named: Iterable[str], reason: str
) -> str:
    """`use max_sequence_length 512`: with a number from the reason that the check accepts."""
    for name in named:
        for number in re.findall(r"\b\d+(?:\.\d+)?\b", reason):
            value = float(number) if "." in number else int(number)
            if not call.objection({**parameters, name: value}):
                return f"use {name} {number}"
    return ""
