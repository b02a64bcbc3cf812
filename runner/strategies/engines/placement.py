"""Loads components where `device_map` puts them: whole, split over devices, on the CPU, on disk."""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runner.launch.world import World
from runner.model.configs import ModelConfigs
from runner.strategies.base import Source
from runner.strategies.estimate.places import Budget, parts_of, placed
from runner.strategies.estimate.sizes import component_sizes

if TYPE_CHECKING:
    import torch

__all__ = ["Budget", "Place", "alone_on", "load_placed", "splitting"]

# Components that are loaded together → for each the arguments of its `from_pretrained`.
Place = Callable[[Sequence[str]], Mapping[str, dict[str, Any]]]


def alone_on(device: "torch.device") -> Place:
    """Whole on one device."""
    arguments = {} if device.type == "cpu" else {"device_map": {"": device}}
    return lambda names: dict.fromkeys(names, arguments)


def splitting(source: Source, budget: Budget, world: World) -> Place:
    """Over the devices of the budget. What fits nowhere is kept on disk, as long as the function
    that this returns, and read from there when it is used."""
    configs = ModelConfigs.read(source.folder)
    offloaded = tempfile.TemporaryDirectory(prefix="runner-offload-")
    if any(device != "cpu" for device in budget):
        budget = {**budget, "cpu": budget.get("cpu", _host_memory(world))}

    def place(names: Sequence[str]) -> dict[str, dict[str, Any]]:
        parts = [part for name in names for part in parts_of(configs, name, source.dtype)]
        return {
            name: {"device_map": places, "offload_folder": os.path.join(offloaded.name, name)}
            for name, places in placed(parts, budget).items()
        }

    return place


def load_placed(source: Source, budget: Budget, world: World) -> Any:
    """The pipeline with components whole on the GPUs if they fit, else split.

    Raises StrategyError for a budget that is too small for any split.
    """
    sizes = component_sizes(ModelConfigs.read(source.folder), source.dtype)
    gpus = [size for place, size in budget.items() if place != "cpu"]
    if gpus and max(sizes.values()) <= max(gpus) and sum(sizes.values()) <= sum(gpus):
        return source.pipeline(device_map="balanced", max_memory=budget)
    place = splitting(source, budget, world)
    loaded = {
        name: source.component(name, **arguments) for name, arguments in place([*sizes]).items()
    }
    pipe = source.pipeline(**loaded)
    pipe.place = place  # kept with the pipeline: it holds what was offloaded
    return pipe


def _host_memory(world: World) -> int:
    """Half of the host's bytes, divided by the processes there."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2 // world.local_world_size
