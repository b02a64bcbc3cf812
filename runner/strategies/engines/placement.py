"""Loads components where `device_map` puts them: whole, split over devices, on the CPU, on disk."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runner.launch.world import World
from runner.model.configs import ModelConfigs
from runner.strategies.base import Source
from runner.strategies.estimate.places import Budget, by_use, parts_of, placed

if TYPE_CHECKING:
    import torch

__all__ = ["Budget", "Place", "alone_on", "load_component", "load_placed", "splitting"]

# Components that are loaded together → for each the arguments of its `from_pretrained`.
Place = Callable[[Sequence[str]], Mapping[str, dict[str, Any]]]


def alone_on(device: "torch.device") -> Place:
    """Whole on one device."""
    arguments = {} if device.type == "cpu" else {"device_map": {"": device}}
    return lambda names: dict.fromkeys(names, arguments)


def splitting(source: Source, budget: Budget, world: World) -> Place:
    """Over the devices of the budget. What fits nowhere is kept on disk, as long as the function
    that this returns, and read from there when it is used."""
    import tempfile

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


def load_component(source: Source, name: str, arguments: Mapping[str, Any]) -> Any:
    """One component, with what `place` says of it. Where all of it lies on one GPU, the libraries
    do not move there what it is called with, since they do not know that others lie elsewhere."""
    from accelerate import dispatch_model

    component = source.component(name, **arguments)
    places = arguments.get("device_map", {})
    if isinstance(places.get(""), int):
        keys = ("_skip_keys", "_skip_keys_device_placement")  # of diffusers, and of transformers
        kept = next((getattr(component, key) for key in keys if hasattr(component, key)), None)
        dispatch_model(component, device_map=places, skip_keys=kept, force_hooks=True)
    return component


def load_placed(source: Source, budget: Budget, world: World) -> Any:
    """The pipeline with components whole on the GPUs if they fit, else split.

    Raises StrategyError for a budget that is too small for any split.
    """
    names = by_use(ModelConfigs.read(source.folder))
    place = splitting(source, budget, world)
    loaded = {name: load_component(source, name, of) for name, of in place(names).items()}
    pipe = source.pipeline(**loaded)
    pipe.place = place  # kept with the pipeline: it holds what was offloaded
    return pipe


def _host_memory(world: World) -> int:
    """Half of the host's bytes, divided by the processes there."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2 // world.local_world_size
