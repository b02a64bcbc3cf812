"""device_map: one process a replica, whose components lie on several GPUs, the CPU and the disk."""

import os
import re
import tempfile
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator

from runner.errors import StrategyError
from runner.launch.devices import Machine, own_devices
from runner.launch.layout import Layout, grouped
from runner.launch.world import World
from runner.model.configs import ModelFacts
from runner.strategies.base import Asked, Degree, Resolution, Source, StrategyBase
from runner.strategies.sizes import empty
from runner.units import MAX_BYTES, bytes_in, counted

if TYPE_CHECKING:
    import torch

__all__ = ["DeviceMap"]

PHASED_BATCHES = 32  # so many for one reading of the weights; a stop may lose as many
LEFT_FREE = 0.8  # the share of a GPU's free memory that weights may take: the rest is for images


def _device(value: str) -> str:
    if value != "cpu" and not re.fullmatch("0|[1-9][0-9]{0,3}", value):
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
    """40GiB, 500MB or a number of bytes."""
    if isinstance(value, str):
        bytes_in(value)
    elif isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_BYTES:
        raise ValueError("write a size as 40GiB or 500MB")
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
    processes: Degree = 1

    @property
    def tries_batches(self) -> bool:
        return not self.phases  # a call alone would load the components for itself

    @property
    def not_compiled(self) -> str:
        return "phases load the denoiser anew for every few batches" if self.phases else ""

    def layout(self, world: World) -> Layout:
        of = grouped(world, self.processes, f"processes {self.processes}")
        return Layout(of.replicas, of.replica, is_idle=not of.is_leader)

    def resolve(self, asked: Asked, world: World) -> Resolution:
        named = set(self.max_memory or ())
        names_gpus = asked.device != "cpu" and asked.target and named - {"cpu"}
        machine = asked.machine() if names_gpus else None
        works = partial(self._has_named, machine)
        grouped(world, self.processes, f"processes {self.processes}", works=works)
        if self.phases:
            self._check_phases(asked)
        if asked.device == "cpu":
            if named - {"cpu"}:
                raise StrategyError(
                    "strategy: max_memory names a GPU, and there is none; use max_memory: "
                    "{cpu: 8GiB} (the rest goes to disk), or data_parallel"
                )
            if not named and not self.phases:
                phases = "" if _lacking(asked) else "phases: true or "
                raise StrategyError(
                    f"strategy: device_map does nothing without a GPU; give max_memory: "
                    f"{{cpu: 8GiB}} to keep the rest on disk, or use {phases}data_parallel"
                )
        elif machine is not None and not works(world.world_size):
            count = self._gpus(machine, world.world_size)
            beyond = min(int(name) for name in named - {"cpu"} if int(name) >= count)
            fewer = range(self.processes, world.world_size, self.processes)
            most = max(filter(works, fewer), default=0)
            remedy = f"use {counted(most, 'process')}, or leave it out" if most else "leave it out"
            raise StrategyError(
                f"strategy: max_memory names GPU {beyond}, a replica has {count} (numbered from "
                f"0); {remedy}"
            )
        idle = self.processes - 1
        return Resolution(
            self,
            [f"{idle} of every {self.processes} processes idle: the first drives their GPUs"]
            if idle
            else [],
        )

    def _gpus(self, machine: Machine, processes: int) -> int:
        """Of a replica, where so many processes share the machine."""
        return max(1, machine.devices // processes) * self.processes

    def _has_named(self, machine: Machine | None, processes: int) -> bool:
        """Whether a replica then has all GPUs that max_memory names."""
        last = max((int(name) for name in self.max_memory or () if name != "cpu"), default=-1)
        return machine is None or last < self._gpus(machine, processes)

    def _check_phases(self, asked: Asked) -> None:
        lacking = _lacking(asked)
        if lacking:
            works_without = asked.target != "cpu" or self.max_memory
            raise StrategyError(
                f"strategy: phases: {ModelFacts.read(asked.folder).pipeline_class} has no "
                f"{lacking[0]}, so its call cannot be taken apart; use "
                f"{'device_map without phases' if works_without else 'data_parallel'}"
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
        given = {
            name: size if isinstance(size, int) else bytes_in(size)
            for name, size in (self.max_memory or {}).items()
        }
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


def _lacking(asked: Asked) -> list[str]:
    """The methods by which a call is taken apart and which this pipeline has not."""
    import diffusers

    pipeline = getattr(diffusers, ModelFacts.read(asked.folder).pipeline_class, None)
    methods = ("encode_prompt", "prepare_latents")
    return [method for method in methods if not hasattr(pipeline, method)]


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
