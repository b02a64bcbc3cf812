"""Parameters without effect, one remark each: the images are made, but perhaps not as meant."""

import ast
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from runner.model.configs import ModelConfigs
from runner.model.signature import PipelineCall, pipeline_call
from runner.model.source import class_of, nodes_of
from runner.plan import Plan

__all__ = ["without_effect"]

NAMES = ("negative_prompt", "true_cfg_scale", "guidance_scale", "distilled_guidance_scale")
GUIDANCE = r"guidance_scale > ([\d.]+)"  # with which a pipeline looks at the negative prompt


def without_effect(plan: Plan, configs: ModelConfigs) -> list[str]:
    """Remarks on parameters, each of the first prompt that has them."""
    found = list[str]()
    call = pipeline_call(configs.pipeline_class)
    if call is not None and not plan.names.keys().isdisjoint(NAMES):
        rules = _Rules(call, configs)
        for prompt, _, (name, remark) in plan.each_once(rules.broken):
            found.append(f"{plan.where(prompt, name)}: {remark}")
    return [*found, *_equal_images(plan)]


def _equal_images(plan: Plan) -> Iterator[str]:
    """Several images of a prompt, all from one seed."""
    if plan.manifest.seed is None or plan.manifest.seed.fixed is None:
        return
    if len(plan) == len(plan.prompts):
        return
    for index, prompt in enumerate(plan.prompts):
        if plan.variations_of(prompt) > 1 and not plan.has_given_seeds(prompt):
            place = plan.where(index, "num_images_per_prompt")
            yield (
                f"{place}: the images of a prompt are all the same with seed: "
                f"{{fixed: {plan.manifest.seed.fixed}}}; write seed: {plan.manifest.seed.fixed}"
            )
            return


class _Rules:
    """When a pipeline does not look at a parameter, by its source and the model's configs."""

    def __init__(self, call: PipelineCall, configs: ModelConfigs) -> None:
        self.call = call
        source = [*_guidance_lines(call)]
        text = "\n".join(source)
        self.is_true_cfg = "true_cfg_scale > 1" in text
        bounds = [] if self.is_true_cfg else re.findall(r"\b_?" + GUIDANCE, text)
        self.least = float(bounds[0]) if bounds else -math.inf  # above it there is any guidance
        is_embedded = "time_cond_proj_dim" in text and configs.config.get("time_cond_proj_dim")
        is_distilled = "self.config.is_distilled" in text and configs.index.get("is_distilled")
        has_embeds = bool(configs.config) and any(
            isinstance(node, ast.Attribute) and node.attr == "guidance_embeds"
            for node in nodes_of(call.node)
        )
        self.is_unguided = bool(is_distilled) or (
            has_embeds and not configs.config.get("guidance_embeds")
        )
        self.never_negative = bool(is_embedded or is_distilled)

    def broken(self, parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """(parameter, remark)."""
        name = self.call.name
        negative = parameters.get("negative_prompt")
        if self.is_true_cfg:
            scale = self._value("true_cfg_scale", parameters)
            if negative is not None and scale <= 1:
                words = f"{name} uses it with a true_cfg_scale over 1 only"
                yield "negative_prompt", f"negative_prompt has no effect: {words}"
            if negative is None and parameters.get("true_cfg_scale") and scale > 1:
                words = f'{name} uses it with a negative_prompt only; add negative_prompt: " "'
                yield "true_cfg_scale", f"true_cfg_scale has no effect: {words}"
        elif negative and self.never_negative:
            yield "negative_prompt", "negative_prompt has no effect: the model is distilled"
        elif negative and self._value("guidance_scale", parameters) <= self.least:
            words = f"{name} uses it with a guidance_scale over {self.least:g} only"
            yield "negative_prompt", f"negative_prompt has no effect: {words}"
        for scale_name in ("guidance_scale", "distilled_guidance_scale"):
            if self.is_unguided and (parameters.get(scale_name) or 0) > 1:  # 0 and 1 mean without
                words = f"{scale_name} has no effect: this model was trained to do without"
                yield scale_name, words

    def _value(self, name: str, parameters: Mapping[str, Any]) -> float:
        """The parameter, or the call's own default; infinite where that is not known."""
        value = parameters.get(name, self.call.values.get(name))
        return float(value) if isinstance(value, int | float) else math.inf


def _guidance_lines(call: PipelineCall) -> Iterator[str]:
    """Where the class decides whether to guide: `do_classifier_free_guidance`, `do_true_cfg`."""
    for inner in nodes_of(class_of(call.name)):
        match inner:
            case ast.FunctionDef("do_classifier_free_guidance"):
                yield ast.unparse(inner.body[-1])
            case ast.Assign([ast.Name("do_classifier_free_guidance" | "do_true_cfg")]):
                yield ast.unparse(inner)
