"""Sizes that a pipeline would ignore, round or replace by others."""

from collections.abc import Iterator, Mapping
from typing import Any

from runner.errors import Problem
from runner.model.configs import ModelConfigs
from runner.model.signature import PipelineCall
from runner.model.sizes import keeps_any_size, made_size, needs_both_sides, size_multiple
from runner.plan import Plan

__all__ = ["replaced_sizes", "rounded_sizes"]


def rounded_sizes(
    plan: Plan, call: PipelineCall | None, configs: ModelConfigs
) -> Iterator[Problem]:
    """Sizes that the pipeline would round, or replace by others, each size once."""
    if call is not None and keeps_any_size(call, {}):
        return
    multiple = size_multiple(call, configs) if call else configs.size_multiple
    for size, prompt in plan.sizes.items():
        for name, value in zip(("height", "width"), size, strict=True):
            if value is not None and value % multiple:
                low = value // multiple * multiple
                valid = " or ".join(str(v) for v in (low, low + multiple) if v)
                message = f"{plan.manifest.model.id} needs a multiple of {multiple}; use {valid}"
                yield Problem(plan.where(prompt, name), f"{name} {value}: {message}")


def replaced_sizes(plan: Plan, call: PipelineCall, configs: ModelConfigs) -> Iterator[Problem]:
    """Sizes in place of which the pipeline makes others."""

    def faults(parameters: Mapping[str, Any]) -> list[str]:
        return [*filter(None, [_replaced(call, configs, parameters)])]

    for prompt, _, fault in plan.each_once(faults):
        yield Problem(plan.where(prompt, "height", "width"), fault)


def _replaced(call: PipelineCall, configs: ModelConfigs, parameters: Mapping[str, Any]) -> str:
    height, width = parameters.get("height"), parameters.get("width")
    if not (height or width) or keeps_any_size(call, parameters):
        return ""
    if not (height and width) and needs_both_sides(call):
        given, other = ("height", "width") if height else ("width", "height")
        return f"{call.name} ignores a {given} without a {other}; give both"
    multiple = size_multiple(call, configs) if keeps_any_size(call, {}) else 1
    if (height or 0) % multiple or (width or 0) % multiple:
        return f"without resolution binning, height and width must be multiples of {multiple}"
    asked, made, remedy = made_size(call, configs, parameters)
    if made == asked:
        return ""
    shown = f"{asked[1]} × {asked[0]} becomes {made[1]} × {made[0]}"
    return f"width × height: with {call.name} {shown}; {remedy}"
