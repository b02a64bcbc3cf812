"""device_map: one process a replica, whose components lie on several GPUs, the CPU and the disk."""

import os
import re
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from runner.errors import StrategyError
from runner.strategies.base import Asked, Layout, Resolution, Source, StrategyBase, grouped
from runner.strategies.facts import ModelFacts
from runner.strategies.sizes import empty
from runner.world import World, own_devices

if TYPE_CHECKING:
    import torch

__all__ = ["DeviceMap", "parse_bytes"]

UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
PHASED_BATCHES = 32  # so many for one reading of the weights; a stop may lose as many
LEFT_FREE = 0.8  # the share of a GPU's free memory that weights may take: the rest is for images


def parse_bytes(value: int | str) -> int:
    """40GiB, 500MB or a number of bytes. Raises ValueError."""
    if isinstance(value, int):
        return value
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]i?B)\s*", value, re.IGNORECASE)
    if not found:
        raise ValueError(f"{value}: not a size; write it as 40GiB or 500MB")
    return int(float(found[1]) * UNITS[found[2].upper()])


def _device(value: str) -> str:
    if value != "cpu" and not (value.isascii() and value.isdecimal()):
        raise ValueError('name a GPU of the replica by its number, as in "0", or cpu')
    return value


def _map(value: Any) -> Any:
    if value != "balanced":
        raise ValueError(
            "pipelines take only balanced (what it cannot place whole, the runner splits); use "
            "map: balanced"
        )
    return value


def _memory(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("write a size as 40GiB or 500MB")
    parse_bytes(value)
    return value


Device = Annotated[str, AfterValidator(_device)]


class DeviceMap(StrategyBase):
    """`max_memory` numbers the replica's own GPUs from 0. With `phases` the components take turns:
    text encoders, transformer, decoder. With `processes` over 1 the first of so many processes
    drives the GPUs of all, and the others idle."""

    shares_node: ClassVar[bool] = True

    kind: Literal["device_map"] = "device_map"
    map: Annotated[Literal["balanced"], BeforeValidator(_map)] = "balanced"
    max_memory: dict[Device, Annotated[int | str, BeforeValidator(_memory)]] | None = None
    phases: bool = False
    processes: Annotated[int, Field(ge=1)] = 1

    @property
    def tries_batches(self) -> bool:
        return not self.phases  # a call alone would load the components for itself

    def layout(self, world: World) -> Layout:
        of = grouped(world, self.processes, f"processes {self.processes}")
        return Layout(of.replicas, of.replica, is_idle=not of.is_leader)

    def resolve(self, asked: Asked, world: World) -> Resolution:
        self.layout(world)
        if self.phases:
            self._check_phases(asked)
        named = set(self.max_memory or ())
        if asked.device == "cpu":
            if named - {"cpu"}:
                raise StrategyError(
                    "strategy: max_memory names a GPU, and there is none; use max_memory: "
                    "{cpu: 8GiB} (the rest goes to disk), or data_parallel"
                )
            if not named and not self.phases:
                raise StrategyError(
                    "strategy: device_map does nothing without a GPU; give max_memory: "
                    "{cpu: 8GiB} to keep the rest on disk, or use phases: true or data_parallel"
                )
        elif asked.device is not None:
            count = len(own_devices(world, self.processes))
            beyond = sorted(name for name in named if name != "cpu" and int(name) >= count)
            if beyond:
                raise StrategyError(
                    f"strategy: max_memory names GPU {beyond[0]}, a replica has {count} (numbered "
                    f"from 0); use fewer processes, or leave it out"
                )
        idle = self.processes - 1
        return Resolution(
            self,
            [f"{idle} of every {self.processes} processes idle: the first drives their GPUs"]
            if idle
            else [],
        )

    def _check_phases(self, asked: Asked) -> None:
        """The methods by which a call is taken apart."""
        import diffusers

        name = ModelFacts.read(asked.folder).pipeline_class
        pipeline = getattr(diffusers, name, None)
        lacking = [
            method
            for method in ("encode_prompt", "prepare_latents")
            if not hasattr(pipeline, method)
        ]
        if lacking:
            raise StrategyError(
                f"strategy: phases: {name} has no {lacking[0]}, so its call cannot be taken "
                f"apart; use device_map without phases"
            )

    @property
    def window(self) -> int:
        return PHASED_BATCHES if self.phases else 1

    def load(self, source: Source, device: "torch.device", world: World) -> Any:
        budget = self._budget(device, world)
        if self.phases:
            from runner.strategies.phases import PhasedPipeline

            return PhasedPipeline(source, lambda: _place(device, budget), device)
        sizes = _sizes(source)
        gpus = {place: size for place, size in budget.items() if place != "cpu"}
        if (
            gpus
            and max(sizes.values()) <= max(gpus.values())
            and sum(sizes.values()) <= sum(gpus.values())
        ):
            return source.pipeline(device_map="balanced", max_memory=budget)
        budget.setdefault("cpu", _host_memory(world))
        return _load_split(source, sizes, budget)

    def _budget(self, device: "torch.device", world: World) -> dict[int | str, int]:
        """Bytes of weights by device: GPUs by their number on the node, "cpu"."""
        given = {name: parse_bytes(size) for name, size in (self.max_memory or {}).items()}
        if device.type == "cpu":
            return {"cpu": given["cpu"]} if given else {}
        import torch

        budget: dict[int | str, int] = {}
        for number, index in enumerate(own_devices(world, self.processes)):
            free = int(torch.accelerator.get_memory_info(index)[0] * LEFT_FREE)
            budget[index] = given.get(str(number), free)
        if "cpu" in given:
            budget["cpu"] = given["cpu"]
        return budget


def _host_memory(world: World) -> int:
    """Half of the host's bytes, shared by the processes there."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2 // world.local_world_size


def _place(device: "torch.device", budget: Mapping[int | str, int]) -> dict[str, Any]:
    """Where a component goes that has the devices for itself."""
    if len(budget) > 1:
        return {"device_map": "auto", "max_memory": dict(budget)}
    return {} if device.type == "cpu" else {"device_map": {"": device}}


def _sizes(source: Source) -> dict[str, int]:
    """Bytes of each component with weights, in the dtype that they will have, largest first."""
    facts = ModelFacts.read(source.folder)
    sizes = {}
    for name in facts.networks:
        model = empty(facts, name)
        sizes[name] = sum(
            weight.numel() * source.dtype.itemsize for weight in model.state_dict().values()
        )
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def _load_split(source: Source, sizes: Mapping[str, int], budget: Mapping[int | str, int]) -> Any:
    """Each component over the devices that have room left, largest first; what finds none lies on
    disk and is read when it is used."""
    from accelerate import infer_auto_device_map
    from accelerate.utils import compute_module_sizes

    facts, left = ModelFacts.read(source.folder), dict(budget)
    # Kept with the pipeline: the folder goes when the pipeline does.
    offloaded = tempfile.TemporaryDirectory(prefix="runner-offload-")
    loaded = {}
    for name in sizes:
        model = empty(facts, name)
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
