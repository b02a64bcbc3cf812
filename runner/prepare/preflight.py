"""Faults of a manifest that its model's configs show, before weights load and without torch."""

import contextlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from runner.errors import ModelError, Problem
from runner.manifest.schema import Manifest
from runner.manifest.suggestions import nearest, place_of
from runner.model.configs import ModelConfigs
from runner.model.input_names import is_input
from runner.model.kinds import kind_of, needed_parameters
from runner.model.packages import check_packages
from runner.model.pipeline_index import components_of
from runner.model.requirements import required_components
from runner.model.signature import SETUP, PipelineCall, pipeline_call
from runner.model.source import class_of, installed
from runner.model.spec import ModelSpec
from runner.plan import Plan
from runner.prepare.inputs import check_input_images, missing_inputs, other_task, unfit_sizes
from runner.prepare.loras import lora_faults
from runner.prepare.schedulers import scheduler_faults
from runner.prepare.sizes import replaced_sizes, rounded_sizes
from runner.prepare.values import value_faults

__all__ = ["check"]

MAX_PROBLEMS = 100  # the rest would only hide the first

# Arguments for inputs that a manifest has no keys for: videos, LoRAs, adapters, another model's
# output.
IMAGES = re.compile(
    r"(.*_)?(image|images|mask|masks|video)|strength|(negative_)?ip_adapter_image_embeds"
)
UNUSABLE = re.compile(r"(.*_)?attention_kwargs|text_model_output")

# Arguments of other pipelines → those of the same meaning, the likeliest first.
SAME = {
    "guidance_scale": ("true_cfg_scale", "distilled_guidance_scale", "decoder_guidance_scale"),
    "true_cfg_scale": ("guidance_scale", "distilled_guidance_scale"),
    "cfg_scale": ("true_cfg_scale", "guidance_scale"),
    "num_inference_steps": ("decoder_num_inference_steps",),
}

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


def check(plan: Plan, configs: ModelConfigs) -> None:
    """Raises ModelError for a pipeline that diffusers does not have or that takes no prompt; for
    parameters that its call does not take; for values that have another type than the call's or
    that the pipeline's own check refuses; for sizes that it would round."""
    spec, name = plan.manifest.model, configs.index["_class_name"]
    call = _call_of(spec, name) if isinstance(name, str) else None  # else the model's own code
    if call is not None:
        if plan.manifest.pipeline or spec.controlnet:
            _check_class(spec, call, configs)
        _refuse(_unknown(plan, call))
        _refuse(_missing(plan, call))
        _refuse(missing_inputs(plan, call))
        _refuse(_type_faults(plan, call))
    check_input_images(plan)
    if call is not None:
        _refuse(unfit_sizes(plan, call))
    if call is not None:
        _refuse(scheduler_faults(plan, call, configs))
    _refuse(lora_faults(plan, configs))
    _refuse(rounded_sizes(plan, call, configs))
    if call is not None:
        _refuse(replaced_sizes(plan, call, configs))
        _refuse(_value_faults(plan, configs))
        _refuse(_objections(plan, call))


def _refuse(problems: Iterator[Problem]) -> None:
    if first := [*itertools.islice(problems, MAX_PROBLEMS)]:
        raise ModelError("\n".join(map(str, first)))


def _call_of(spec: ModelSpec, class_name: str) -> PipelineCall:
    call = pipeline_call(class_name)
    if call is None:
        if class_of(class_name) is not None:
            raise ModelError(f"{spec.id}: {class_name} has no call that makes images")
        raise ModelError(f"{spec.id}: diffusers {installed()} has no {class_name}")
    if reason := _other_kind(call):
        remedy = "use a model that makes images from texts, or from texts and images"
        raise ModelError(f"{spec.id}: {class_name} {reason}; {remedy}")
    return call


def _check_class(spec: ModelSpec, call: PipelineCall, configs: ModelConfigs) -> None:
    """Raises ModelError for a class that needs more than the model has."""
    has = components_of(configs.index)
    if spec.controlnet and "controlnet" not in required_components(call.name):
        raise ModelError(f"model.controlnet: {call.name} takes none; use another pipeline")
    lacking = [part for part in required_components(call.name) if part not in has]
    if lacking:
        raise ModelError(
            f"{spec.id}: {call.name} needs {', '.join(lacking)}, which this model lacks; use "
            f"another pipeline or model"
        )
    check_packages(configs.index, configs.folder, spec.id)


def _other_kind(call: PipelineCall) -> str:
    """Why a pipeline makes no images from texts and input images; empty if it does."""
    kind = kind_of(call)
    if kind.returns != "images":
        return f"makes {kind.returns}"
    if "prompt" not in call.arguments:
        return "takes no prompt"
    if "generator" not in call.arguments:
        return "takes no generator, so that its images would not depend on the seed"
    return f"needs {', '.join(kind.lacks)}, which a manifest cannot give" if kind.lacks else ""


def _missing(plan: Plan, call: PipelineCall) -> Iterator[Problem]:
    """Parameters that the call needs and that some prompt does not have."""
    for name in needed_parameters(call):
        for prompt, parameters in plan.parameter_sets.values():
            if name not in parameters:
                message = f"{call.name} needs {name}: {call.wants(name)}; add it to the parameters"
                yield Problem(plan.where(prompt), message)
                break


def _unknown(plan: Plan, call: PipelineCall) -> Iterator[Problem]:
    """Names that the call does not take, or takes for what a manifest cannot give. A call with
    **kwargs swallows names that it never reads."""
    usable = {name: name for name in call.arguments if _is_usable(call, name)}
    known = usable | dict.fromkeys(SETUP, "") | {name: name for name in call.rest}
    for name, prompt in plan.names.items():
        if name not in known:
            message = f"{call.name} {_why_not(call, name)}{_hint(name, usable)}"
            yield Problem(plan.where(prompt, name), message)


def _is_usable(call: PipelineCall, name: str) -> bool:
    if is_input(name):
        return name in call.arguments
    return call.can_be_written(name) and not (name == "prompt" or UNUSABLE.fullmatch(name))


def _why_not(call: PipelineCall, name: str) -> str:
    if is_input(name) or name == "strength":
        return f"takes no {name}; {other_task(call, name)}"
    if IMAGES.fullmatch(name):
        return f"gets no {name} here: a manifest cannot give it; leave it out"
    if name in call.arguments:
        return f"takes {name}, but a manifest cannot give it: {call.wants(name)}; leave it out"
    return f"takes no {name}"


def _hint(name: str, known: Mapping[str, str]) -> str:
    """The right name, as far as it can be guessed."""
    if IMAGES.fullmatch(name) or UNUSABLE.fullmatch(name):
        return ""
    place = place_of(name, Manifest)
    is_elsewhere = place and not place.endswith(f"parameters.{name}")
    alike = next((other for other in SAME.get(name, ()) if other in known), None)
    return place if is_elsewhere else nearest(alike or name, known)


def _type_faults(plan: Plan, call: PipelineCall) -> Iterator[Problem]:
    """Values that have another type than the call's."""

    def misfits(parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        for name, value in parameters.items():
            if not (is_input(name) or call.takes(name, value)):
                yield name, json.dumps(value, ensure_ascii=False)[:60]

    for prompt, parameters, (name, given) in plan.each_once(misfits):
        wanted, value = call.wants(name), parameters[name]
        remedy = "leave it out, or write" if value is None else "write"
        fault = f"{name}: {call.name} takes {wanted}, not {given}"
        message = f"{fault}; {remedy} {_instead(wanted, value)}"
        yield Problem(plan.where(prompt, name), message)


def _value_faults(plan: Plan, configs: ModelConfigs) -> Iterator[Problem]:
    """What the call takes, but not its scheduler."""
    for prompt, _, (name, fault) in plan.each_once(partial(value_faults, configs)):
        yield Problem(plan.where(prompt, name), fault)


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
            number = str(int(text) if text.isdecimal() else float(text))
            # YAML 1.1 reads 1e+300 as text, since it has no dot.
            return re.sub(r"^(-?\d+)e", r"\1.0e", number)
    return ""


def _objections(plan: Plan, call: PipelineCall) -> Iterator[Problem]:
    """What the pipeline's own check of its arguments refuses."""

    def reasons(parameters: Mapping[str, Any]) -> Iterator[str]:
        reason = call.objection(parameters)
        parameters = {name: 0 for name in parameters if not is_input(name)}  # which it never saw
        if _named(reason, parameters):
            yield reason

    for prompt, parameters, reason in plan.each_once(reasons):
        named = _named(reason, parameters)
        remedy = _allowed(call, parameters, named, reason) or f"change {' or '.join(named)}"
        message = f"{call.name}: {reason.rstrip('.')}; {remedy}"
        yield Problem(plan.where(prompt, *named), message)


def _named(reason: str, parameters: Iterable[str]) -> list[str]:
    """The parameters that a reason names."""
    return [name for name in parameters if re.search(rf"\b{re.escape(name)}\b", reason)]


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
