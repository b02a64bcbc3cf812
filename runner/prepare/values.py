"""Values that the pipeline's call takes, but its scheduler, text encoder or code does not."""

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from runner.model.configs import ModelConfigs
from runner.model.schedulers import with_scheduler
from runner.model.schedules import arguments_of_set_timesteps
from runner.model.source import module_of

__all__ = ["value_faults"]

STEPS = "num_inference_steps"
TIMES = ("timesteps", "sigmas")
LAYERS = "text_encoder_out_layers"
# These count their steps without the steps of the training.
FREE = ("FlowMatch", "EDM", "SCM")
# What a class of this diffusers takes and then fails with.
BROKEN = {"PixArtSigmaPAGPipeline": "pag_adaptive_scale"}


def value_faults(configs: ModelConfigs, parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(parameter, what is wrong with it and what to do), for one set of parameters."""
    yield from _scheduler_faults(with_scheduler(configs, parameters.get("scheduler")), parameters)
    yield from _time_faults(parameters)
    yield from _layer_faults(configs, parameters)
    if not 0 <= (eta := parameters.get("eta") or 0) <= 1:
        yield "eta", f"eta {eta}: with more noise than a step takes away; use 0 to 1"
    name = BROKEN.get(configs.pipeline_class, "")
    if parameters.get(name):
        yield name, f"{name}: {configs.pipeline_class} fails with it; leave it out"


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


def _time_faults(parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Lists with a number a step: how noisy it is."""
    if all(parameters.get(name) is not None for name in TIMES):
        yield "sigmas", "sigmas and timesteps exclude each other; leave one out"
    for name, values in parameters.items():
        is_list = isinstance(values, list) and all(isinstance(v, int | float) for v in values)
        if not name.endswith(TIMES) or not is_list:
            continue
        if not values:
            yield name, f"{name}: must not be empty; leave it out, or give one number a step"
        elif any(later >= value for value, later in itertools.pairwise(values)):
            yield name, f"{name}: each step has less noise than the one before; order them so"
        elif values[-1] < 0 or (values[-1] == 0 and name.endswith("sigmas")):
            yield name, f"{name}: must be over 0; the scheduler adds the 0 at the end itself"


def _layer_faults(
    configs: ModelConfigs, parameters: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Layers that a text encoder does not have."""
    skipped, chosen = parameters.get("clip_skip"), parameters.get(LAYERS)
    most = _most_skipped(configs) if skipped is not None else None
    if skipped is not None and most is not None and not 0 <= skipped <= most:
        yield "clip_skip", f"clip_skip {skipped}: the text encoder allows 0 to {most}"
    if not isinstance(chosen, list):
        return
    encoder = configs.config_of("text_encoder")
    encoder = encoder.get("text_config", encoder)
    layers, size = encoder.get("num_hidden_layers"), encoder.get("hidden_size")
    wanted = configs.config.get("joint_attention_dim")
    if wanted and size and len(chosen) * size != wanted:
        yield LAYERS, f"{LAYERS}: the transformer takes {wanted // size} layers, not {len(chosen)}"
    elif layers and not all(0 <= layer <= layers for layer in chosen):
        yield LAYERS, f"{LAYERS}: the text encoder has {layers} layers; use 0 to {layers}"


def _most_skipped(configs: ModelConfigs) -> int | None:
    """The largest `clip_skip`, by how the class counts its CLIP encoders' layers from the end, as
    in `hidden_states[-(clip_skip + 1)]`, where the first is the embedding. None for no encoders."""
    path = module_of(configs.pipeline_class)
    offsets = re.findall(r"clip_skip \+ (\d)", path.read_text(encoding="utf-8")) if path else []
    layers = [
        configs.config_of(name).get("num_hidden_layers", 12)
        for name, entry in configs.index.items()
        if isinstance(entry, list) and str(entry[-1]).startswith("CLIPText")
    ]
    return min(layers) + 1 - max(map(int, offsets)) if offsets and layers else None
