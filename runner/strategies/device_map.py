"""device_map: one process a replica, whose components lie on several GPUs, the CPU and the disk."""

import math
import re
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field

from runner.errors import StrategyError
from runner.launch.devices import Machine, own_devices
from runner.launch.layout import Layout, grouped
from runner.launch.world import World
from runner.strategies.base import (
    Degree,
    Exactness,
    Resolution,
    Row,
    Source,
    StrategyBase,
    kind_field,
)
from runner.strategies.checks.conditions import Conditions
from runner.strategies.checks.phases import fault_of_phases, phases_of
from runner.strategies.engines.placement import Budget, alone_on, load_placed, splitting
from runner.strategies.estimate.fit import LEFT_FREE, JobSize, in_components, in_phases, with_host
from runner.strategies.estimate.places import by_use, parts_of, placed
from runner.units import MAX_BYTES, bytes_in, counted

if TYPE_CHECKING:
    import torch

__all__ = ["DeviceMap"]

PHASED_BATCHES = 32  # batches for which the weights are read once; a stop may lose as many


def _device(value: str) -> str:
    if value != "cpu" and not re.fullmatch("0|[1-9][0-9]{0,3}", value):
        raise ValueError('name a GPU of the replica by its number, as in "0", or cpu')
    return value


def _map(value: Any) -> Any:
    if value != "balanced":
        raise ValueError(
            "pipelines take only balanced (the runner splits what does not fit whole); use "
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
    """`max_memory` numbers the GPUs of the replica from 0. With `phases` the components take turns:
    text encoders, transformer, decoder. With `processes` over 1 the first of so many processes
    drives the GPUs of all of them, and the others idle."""

    shares_node: ClassVar[bool] = True

    kind: Literal["device_map"] = kind_field(
        "device_map", "one process puts the components on several GPUs, the CPU and the disk"
    )
    map: Annotated[Literal["balanced"], BeforeValidator(_map)] = Field(
        default="balanced",
        description="how components are spread; pipelines take only balanced",
        examples=["balanced"],
    )
    max_memory: dict[Device, Annotated[int | str, BeforeValidator(_memory)]] | None = Field(
        default=None,
        description="what each GPU of the replica, numbered from 0, and cpu may hold; the rest "
        "goes to disk. 0.8 of what is free on each GPU if not given",
        examples=[{"0": "40GiB", "cpu": "100GiB"}],
    )
    phases: bool = Field(
        default=False,
        description="the components take turns: text encoders, transformer, decoder",
        examples=[True],
    )
    processes: Degree = Field(
        default=1,
        description="the first of so many processes drives the GPUs of all of them",
        examples=[2],
    )

    @property
    def exactness(self) -> Exactness:
        return Exactness("exact") if self.phases else super().exactness

    @property
    def takes_input_images(self) -> bool:
        return not self.phases

    @property
    def tries_batches(self) -> bool:
        return not self.phases  # a call alone would load the components for itself

    @property
    def proven_as(self) -> str:
        return "phases" if self.phases else self.kind

    @property
    def not_compiled(self) -> str:
        return "phases load the denoiser anew for every few batches" if self.phases else ""

    def layout(self, world: World) -> Layout:
        of = grouped(world, self.processes, f"processes {self.processes}")
        return Layout(of.replicas, of.replica, is_idle=not of.is_leader)

    @classmethod
    def rows(cls, job: JobSize, machine: Machine) -> list[Row]:
        found = [Row(cls(phases=True), in_phases(job, machine))]
        if apart := in_components(job, machine):
            found.insert(0, Row(cls(processes=apart.ranks_per_replica), apart))
        if hosted := with_host(job, machine):
            estimate, full = hosted
            most: dict[str, int | str] = {str(number): full for number in range(machine.devices)}
            found.append(Row(cls(processes=machine.devices, max_memory=most), estimate))
        return found

    def for_processes(self, machine: Machine, processes: int) -> Self:
        """With fewer processes than devices, each drives several."""
        each = max(1, machine.devices // processes)
        return self.model_copy(update={"processes": math.ceil(self.processes / each)})

    def resolve(self, conditions: Conditions, world: World) -> Resolution:
        is_checked = conditions.device != "cpu" and conditions.target and self._gpus_named
        machine = conditions.machine() if is_checked else None
        works = partial(self._has_named, machine)
        grouped(world, self.processes, f"processes {self.processes}", works=works)
        if self.phases:
            self._check_phases(conditions)
        if conditions.device == "cpu":
            self._check_cpu(conditions)
        elif machine is not None:
            if not works(world.world_size):
                raise StrategyError(self._lacking_gpu(machine, world.world_size))
            full = int(machine.memory * LEFT_FREE)
            count = self._gpus(machine, world.world_size)
            gpus: Budget = {number: self._given.get(str(number), full) for number in range(count)}
            self._check_room(conditions, gpus)
        idle = self.processes - 1
        remark = f"{idle} of every {self.processes} processes idle: the first drives their GPUs"
        return Resolution(self, [remark] if idle else [])

    def _check_cpu(self, conditions: Conditions) -> None:
        if self._gpus_named:
            raise StrategyError(
                "strategy: max_memory names a GPU, and there is none; use max_memory: "
                "{cpu: 8GiB} (the rest goes to disk), or data_parallel"
            )
        if not self.max_memory and not self.phases:
            fault = fault_of_phases(conditions.configs)
            phases = "" if fault else "phases: true or "
            raise StrategyError(
                f"strategy: device_map does nothing without a GPU; give max_memory: "
                f"{{cpu: 8GiB}} to keep the rest on disk, or use {phases}data_parallel"
            )
        if self.max_memory:
            self._check_room(conditions, {"cpu": self._given["cpu"]})

    def _check_room(self, conditions: Conditions, budget: Budget) -> None:
        """Whether the components that are loaded together have room."""
        import torch

        configs = conditions.configs
        together = phases_of(configs) if self.phases else [by_use(configs)]
        for names in together:
            dtype = getattr(torch, conditions.dtype)
            placed([part for name in names for part in parts_of(configs, name, dtype)], budget)

    @property
    def _given(self) -> dict[str, int]:
        """The bytes of max_memory."""
        return {
            name: size if isinstance(size, int) else bytes_in(size)
            for name, size in (self.max_memory or {}).items()
        }

    @property
    def _gpus_named(self) -> list[int]:
        """The GPUs in max_memory, as a replica numbers them."""
        return sorted(int(name) for name in self.max_memory or () if name != "cpu")

    def _has_named(self, machine: Machine | None, processes: int) -> bool:
        """Whether a replica has all GPUs that max_memory names, with so many processes."""
        last = max(self._gpus_named, default=-1)
        return machine is None or last < self._gpus(machine, processes)

    def _lacking_gpu(self, machine: Machine, processes: int) -> str:
        """The words for a GPU that a replica does not have."""
        count = self._gpus(machine, processes)
        beyond = next(gpu for gpu in self._gpus_named if gpu >= count)
        fewer = range(self.processes, processes, self.processes)
        most = max((n for n in fewer if self._has_named(machine, n)), default=0)
        remedy = f"use {counted(most, 'process')}, or leave it out" if most else "leave it out"
        return (
            f"strategy: max_memory names GPU {beyond}, a replica has {count} (numbered from 0); "
            f"{remedy}"
        )

    def _gpus(self, machine: Machine, processes: int) -> int:
        """GPUs of a replica, where so many processes share the machine."""
        return max(1, machine.devices // processes) * self.processes

    def _check_phases(self, conditions: Conditions) -> None:
        fault = fault_of_phases(conditions.configs)
        if fault:
            works_without = conditions.target != "cpu" or self.max_memory
            raise StrategyError(
                f"strategy: phases: {fault}, so its call cannot be split into phases; use "
                f"{'device_map without phases' if works_without else 'data_parallel'}"
            )

    @property
    def window(self) -> int:
        return PHASED_BATCHES if self.phases else 1

    def load(self, source: Source, device: "torch.device", world: World) -> Any:
        budget = self._budget(device, world)
        if not self.phases:
            return load_placed(source, budget, world)
        from runner.strategies.engines.phases import PhasedPipeline

        is_alone = not self.max_memory and len(budget) <= 1
        place = alone_on(device) if is_alone else splitting(source, budget, world)
        return PhasedPipeline(source, place, device)

    def _budget(self, device: "torch.device", world: World) -> Budget:
        given = self._given
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
