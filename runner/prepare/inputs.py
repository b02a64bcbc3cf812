"""Checks of a job's input images, before weights load."""

import itertools
from collections.abc import Iterator

from runner.errors import ManifestError, ModelError, Problem
from runner.manifest.input_images import InputFaultError
from runner.model.kinds import kind_of
from runner.model.pipeline_class import TASKS, class_for_task
from runner.model.signature import PipelineCall, pipeline_call
from runner.plan import Plan
from runner.strategies import StrategyBase

__all__ = [
    "check_input_images",
    "check_inputs_there",
    "missing_inputs",
    "other_task",
    "strategy_fault",
    "unfit_sizes",
]

# Input images are taken as they are, whatever height and width say.
UNRESIZED = ("ZImageImg2ImgPipeline",)
MOST_PROBLEMS = 100  # the rest would only hide the first


def check_inputs_there(plan: Plan) -> None:
    """Raises ManifestError for files that are not there, or cannot be opened: without them it is
    not known which images are finished."""
    if problems := [*itertools.islice(_absent(plan), MOST_PROBLEMS)]:
        raise ManifestError(problems)


def _absent(plan: Plan) -> Iterator[Problem]:
    for (parameter, file), prompt in plan.input_images.items():
        try:
            plan.inputs.check(file)
        except InputFaultError as error:
            where = plan.where(prompt, parameter)
            yield Problem(where, f"{parameter}: {file}: {error} (paths start in {_folder(plan)})")


def _folder(plan: Plan) -> str:
    return f"{plan.inputs.folder}; for another: --set inputs=DIR"


def check_input_images(plan: Plan) -> None:
    """Raises ModelError for files that are no images, or none that a pipeline takes."""
    if problems := [*itertools.islice(_unreadable(plan), MOST_PROBLEMS)]:
        raise ModelError("\n".join(map(str, problems)))


def _unreadable(plan: Plan) -> Iterator[Problem]:
    for (parameter, file), prompt in plan.input_images.items():
        try:
            plan.inputs.size(file)
        except InputFaultError as error:
            yield Problem(plan.where(prompt, parameter), f"{parameter}: {file}: {error}")


def unfit_sizes(plan: Plan, call: PipelineCall) -> Iterator[Problem]:
    """Input images whose size the call would have to change, but does not."""
    if call.name not in UNRESIZED:
        return
    for (parameter, file), prompt in plan.input_images.items():
        given = {**plan.manifest.parameters, **plan.prompts[prompt].parameters}
        width, height = plan.inputs.size(file)
        if (given.get("width") or width, given.get("height") or height) != (width, height):
            yield Problem(
                plan.where(prompt, parameter),
                f"{parameter}: {file} is {width} × {height}, and {call.name} does not resize it; "
                f"leave width and height out, or resize it",
            )


def strategy_fault(plan: Plan, strategy: StrategyBase) -> str:
    """Why a strategy makes no images from input images; "" where it does."""
    if plan.manifest.model.controlnet and strategy.kind != "data_parallel":
        return f"strategy: {strategy.kind} places no ControlNet yet; use data_parallel"
    if not plan.input_images or strategy.takes_input_images:
        return ""
    name = "phases" if strategy.proven_as == "phases" else strategy.kind
    return f"strategy: {name} takes no input images yet; use data_parallel or device_map"


def missing_inputs(plan: Plan, call: PipelineCall) -> Iterator[Problem]:
    """Input images that the call needs and that some prompt does not have."""
    for name in kind_of(call).needs:
        for prompt, parameters in plan.parameter_sets.values():
            if parameters.get(name) is None:
                message = f"{call.name} needs {name}, an input image; add {name}: FILE"
                yield Problem(plan.where(prompt), message)
                break


def other_task(call: PipelineCall, name: str) -> str:
    """What to do about an input image, or its strength, that a call does not take: the task whose
    class takes it."""
    for task in TASKS:
        other = class_for_task(call.name, task)
        if other and other != call.name and name in _arguments(other):
            return f"add pipeline: {task}"
    return "leave it out"


def _arguments(class_name: str) -> set[str]:
    call = pipeline_call(class_name)
    return set(call.arguments) if call else set()
