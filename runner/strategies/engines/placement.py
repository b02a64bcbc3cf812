"""Where `device_map` puts components: whole, split over devices, on the CPU, on disk."""

import os
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from runner.launch.world import World
from runner.model.configs import ModelConfigs
from runner.strategies.base import Source
from runner.strategies.estimate.sizes import component_sizes, empty

if TYPE_CHECKING:
    import torch

__all__ = ["Budget", "alone_on", "load_placed"]

Budget = dict[int | str, int]  # bytes of weights by device: a GPU's number on the node, or "cpu"


def alone_on(device: "torch.device", budget: Budget) -> dict[str, Any]:
    """Arguments of `from_pretrained` for a component that has the devices to itself."""
    if len(budget) > 1:
        return {"device_map": "auto", "max_memory": budget}
    return {} if device.type == "cpu" else {"device_map": {"": device}}


def load_placed(source: Source, budget: Budget, world: World) -> Any:
    """The pipeline with components whole on the GPUs if they fit, else split."""
    sizes = component_sizes(ModelConfigs.read(source.folder), source.dtype)
    gpus = [size for place, size in budget.items() if place != "cpu"]
    if gpus and max(sizes.values()) <= max(gpus) and sum(sizes.values()) <= sum(gpus):
        return source.pipeline(device_map="balanced", max_memory=budget)
    return _load_split(source, sizes, budget | {"cpu": budget.get("cpu", _host_memory(world))})


def _host_memory(world: World) -> int:
    """Half of the host's bytes, divided by the processes there."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2 // world.local_world_size


def _load_split(source: Source, sizes: Mapping[str, int], budget: Budget) -> Any:
    """Each component over the devices that have room left, largest first; what fits nowhere stays
    on disk and is read when it is used."""
    from accelerate import infer_auto_device_map
    from accelerate.utils import compute_module_sizes

    configs, left = ModelConfigs.read(source.folder), dict(budget)
    # Kept with the pipeline: the folder is deleted when the pipeline is.
    offloaded = tempfile.TemporaryDirectory(prefix="runner-offload-")
    loaded = {}
    for name in sizes:
        model = empty(configs, name)
        for weight in model.parameters():
            weight.data = weight.data.to(source.dtype)
        blocks = getattr(model, "_no_split_modules", None) or []
        places = infer_auto_device_map(model, max_memory=dict(left), no_split_module_classes=blocks)
        inside = compute_module_sizes(model)
        for module, place in places.items():
            if place in left:
                left[place] = max(0, left[place] - inside[module])
        loaded[name] = source.component(
            name, device_map=dict(places), offload_folder=offloaded.name
        )
    pipe = source.pipeline(**loaded)
    pipe.offload_folder = offloaded
    return pipe
