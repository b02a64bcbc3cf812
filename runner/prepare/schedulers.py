"""Schedulers in place of a model's own: which ones, with which options."""

import ast
import json
from collections.abc import Iterator, Mapping
from typing import Any

from runner.errors import Problem
from runner.manifest.suggestions import nearest
from runner.model.configs import ModelConfigs
from runner.model.schedulers import name_and_options, with_scheduler
from runner.model.schedules import schedule_fault
from runner.model.signature import PipelineCall, fits
from runner.model.source import class_of, installed, method_of
from runner.plan import Plan
from runner.prepare.setup import schedulers_in
from runner.units import install_line

__all__ = ["scheduler_faults"]

# Those of a list can stand for each other: tests/models compares each with plain diffusers.
DIFFUSION = (
    "DDIMScheduler",
    "DDPMScheduler",
    "DEISMultistepScheduler",
    "DPMSolverMultistepScheduler",
    "DPMSolverSDEScheduler",
    "DPMSolverSinglestepScheduler",
    "EDMEulerScheduler",
    "EulerAncestralDiscreteScheduler",
    "EulerDiscreteScheduler",
    "HeunDiscreteScheduler",
    "KDPM2AncestralDiscreteScheduler",
    "KDPM2DiscreteScheduler",
    "LCMScheduler",
    "LMSDiscreteScheduler",
    "PNDMScheduler",
    "SASolverScheduler",
    "TCDScheduler",
    "UniPCMultistepScheduler",
)
FLOW = (
    "FlowMatchEulerDiscreteScheduler",
    "FlowMatchHeunDiscreteScheduler",
    "FlowMatchLCMScheduler",
)
# With these some of the others sample a model of flow matching.
FLOW_OPTIONS = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}
KNOWN_AS = {  # by other programs
    "ddim": "DDIMScheduler",
    "dpm++ 2m": "DPMSolverMultistepScheduler",
    "dpm++ sde": "DPMSolverSDEScheduler",
    "euler": "EulerDiscreteScheduler",
    "euler a": "EulerAncestralDiscreteScheduler",
    "heun": "HeunDiscreteScheduler",
    "lcm": "LCMScheduler",
    "lms": "LMSDiscreteScheduler",
    "unipc": "UniPCMultistepScheduler",
}
TRIAL_STEPS = 8

Value = str | Mapping[str, Any]


def scheduler_faults(plan: Plan, call: PipelineCall, configs: ModelConfigs) -> Iterator[Problem]:
    """Of the model's own scheduler, where a prompt uses it, and of each that stands in for it."""
    for prompt, value in schedulers_in(plan):
        if value is None:
            if fault := schedule_fault(call, configs.scheduler_class, configs.scheduler):
                yield Problem(plan.manifest.model.id, fault)
        elif fault := _fault(call, configs, value):
            yield Problem(plan.where(prompt, "scheduler"), f"scheduler: {fault}")


def _fault(call: PipelineCall, configs: ModelConfigs, value: Value) -> str:
    """What is wrong with a scheduler for this model, and what to do."""
    fault = _class_fault(call, configs, value) or _option_fault(value)
    if fault:
        return fault
    other = with_scheduler(configs, value)
    given = schedule_fault(call, other.scheduler_class, other.scheduler)
    return given or _trial_fault(configs, value)


def _class_fault(call: PipelineCall, configs: ModelConfigs, value: Value) -> str:
    """Where diffusers has no such scheduler, or it cannot stand for the model's."""
    name, options = name_and_options(value)
    own = configs.scheduler_class
    if not own:
        return f"{configs.pipeline_class} has no one scheduler to replace; leave it out"
    is_flow = own in FLOW or bool(configs.scheduler.get("use_flow_sigmas"))
    alike: tuple[str, ...] = FLOW if is_flow else DIFFUSION if own in DIFFUSION else (own,)
    alike = tuple(one for one in alike if not schedule_fault(call, one, configs.scheduler))
    if class_of(name, "schedulers") is None:
        known_as = KNOWN_AS.get(name.replace("_", " ").lower())
        hint = f"; did you mean {known_as}?" if known_as else ""
        hint = hint or nearest(name, {one.lower(): one for one in (*alike, *DIFFUSION)})
        return f"{name}: diffusers {installed()} has none of this name{hint or _one_of(alike)}"
    if is_flow and name not in FLOW:
        return _flow_fault(name, options) + ("" if _samples_flow(name) else _one_of(alike))
    if not is_flow and name not in alike:
        return f"{name} cannot stand for this model's {own}{_one_of(alike)}"
    return ""


def _flow_fault(name: str, options: Mapping[str, Any]) -> str:
    """Where a scheduler of diffusion is asked to sample a model of flow matching."""
    if not _samples_flow(name):
        return f"{name} is not made for flow matching, as this model is"
    if all(options.get(key) == wanted for key, wanted in FLOW_OPTIONS.items()):
        return ""
    written = ", ".join(f"{key}: {_yaml(one)}" for key, one in FLOW_OPTIONS.items())
    return f"{name}: this model is of flow matching; write {{name: {name}, {written}}}"


def _one_of(names: tuple[str, ...]) -> str:
    return f"; use {names[0]}" if len(names) == 1 else f"; use one of {', '.join(names)}"


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _samples_flow(name: str) -> bool:
    return name in DIFFUSION and "use_flow_sigmas" in _arguments(name)


def _option_fault(value: Value) -> str:
    name, options = name_and_options(value)
    arguments = _arguments(name)
    for option, given in options.items():
        if option not in arguments:
            hint = nearest(option, {one: one for one in arguments})
            return f"{name} takes no {option}{hint or '; it takes ' + ', '.join(arguments)}"
        annotation = arguments[option]
        if annotation is not None and not fits(annotation, given):
            shown = json.dumps(given, ensure_ascii=False)[:60]
            return f"{option}: {name} takes {ast.unparse(annotation)}, not {shown}"
    return ""


def _arguments(name: str) -> dict[str, ast.expr | None]:
    """The options of a scheduler's class, and their types."""
    method = method_of(name, "__init__", "schedulers")
    if method is None:
        return {}
    return {one.arg: one.annotation for one in (*method.args.args[1:], *method.args.kwonlyargs)}


def _trial_fault(configs: ModelConfigs, value: Value) -> str:
    """Why the scheduler refuses its options, or a package that they need is missing: it is made,
    and makes one step. Only its own words for that count: what else fails may be the trial's."""
    import diffusers
    import torch

    name, options = name_and_options(value)
    try:
        scheduler = getattr(diffusers, name).from_config(dict(configs.scheduler), **options)
        mu = {"mu": 1.0} if scheduler.config.get("use_dynamic_shifting") else {}
        scheduler.set_timesteps(TRIAL_STEPS, **mu)
        first, zeros = scheduler.timesteps[0], torch.zeros(1, 4, 8, 8)
        scheduler.step(zeros, first, scheduler.scale_model_input(zeros, first))
    except ModuleNotFoundError as error:
        return f"{name}: needs {error.name}; install it: {install_line(str(error.name))}"
    except ImportError as error:
        return f"{name}: {' '.join(str(error).split())[:300]}"
    except (NotImplementedError, ValueError) as error:
        words = " ".join(str(error).split())[:300].rstrip(".")
        return f"{name}: {words}; change its options"
    except Exception:
        return ""
    return ""
