"""Values that the pipeline's call takes, but its scheduler or its code does not."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from runner.model.configs import ModelConfigs
from runner.model.source import method_of

__all__ = ["value_faults"]

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
    entry = configs.index.get("scheduler")
    scheduler = str(entry[1]) if isinstance(entry, list) and len(entry) == 2 else ""
    setter = method_of(scheduler, "set_timesteps", "schedulers") if scheduler else None
    if setter is None:
        return  # a scheduler of the model's own
    taken = {argument.arg for argument in (*setter.args.args, *setter.args.kwonlyargs)}
    for name in TIMES:
        if parameters.get(name) is not None and name not in taken:
            yield name, f"{name}: {scheduler} takes none; leave them out, or use another scheduler"
    most, steps = configs.scheduler_config.get("num_train_timesteps"), "num_inference_steps"
    is_free = scheduler.startswith(FREE) or configs.scheduler_config.get("use_flow_sigmas")
    given = parameters.get(steps)
    if isinstance(most, int) and isinstance(given, int) and given > most and not is_free:
        shown = json.dumps(given)
        yield steps, f"{steps} {shown}: {scheduler} was trained with {most}; use {most} or fewer"
