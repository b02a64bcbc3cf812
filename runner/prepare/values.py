"""Values that the pipeline's call takes, but its scheduler or its code does not."""

from collections.abc import Iterator, Mapping
from typing import Any

from runner.model.configs import ModelConfigs
from runner.model.schedules import arguments_of_set_timesteps

__all__ = ["value_faults"]

STEPS = "num_inference_steps"
TIMES = ("timesteps", "sigmas")
# These count their steps without the steps of the training.
FREE = ("FlowMatch", "EDM", "SCM")


def value_faults(configs: ModelConfigs, parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(parameter, what is wrong with it and what to do), for one set of parameters."""
    yield from _scheduler_faults(configs, parameters)
    if all(parameters.get(name) is not None for name in TIMES):
        yield "sigmas", "sigmas and timesteps exclude each other; leave one out"
    for name in TIMES:
        if parameters.get(name) == []:
            yield name, f"{name}: must not be empty; leave it out, or give one number a step"


def _scheduler_faults(
    configs: ModelConfigs, parameters: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    scheduler = configs.scheduler_class
    times = [name for name in TIMES if parameters.get(name) is not None]
    most, given = configs.scheduler.get("num_train_timesteps"), parameters.get(STEPS)
    has_many = isinstance(most, int) and isinstance(given, int) and given > most
    taken = arguments_of_set_timesteps(scheduler) if times or has_many else None
    if taken is None:
        return  # nothing to look at, or a scheduler of the model's own
    for name in times:
        if name not in taken:
            yield name, f"{name}: {scheduler} takes none; leave them out, or use another scheduler"
    is_free = scheduler.startswith(FREE) or configs.scheduler.get("use_flow_sigmas")
    if has_many and not is_free:
        yield STEPS, f"{STEPS} {given}: {scheduler} was trained with {most}; use {most} or fewer"
