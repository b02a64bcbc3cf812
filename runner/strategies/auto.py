"""auto: the strategy by the guides' table, for this model, these images and this machine."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from runner.errors import StrategyError
from runner.launch.devices import Machine
from runner.launch.layout import Layout
from runner.launch.world import World
from runner.model.configs import ModelFacts
from runner.strategies.base import Asked, Resolution, Source, StrategyBase
from runner.strategies.context_parallel import ContextParallel
from runner.strategies.data_parallel import DataParallel
from runner.strategies.device_map import DeviceMap
from runner.strategies.fit import GIB, OVERHEAD, Row, Work, rows
from runner.strategies.tensor_parallel import TensorParallel

if TYPE_CHECKING:
    import torch

__all__ = ["Auto", "Choice", "choose"]

Choice = tuple[StrategyBase, str]  # and why
KINDS: dict[str, type[StrategyBase]] = {
    "data_parallel": DataParallel,
    "device_map": DeviceMap,
    "context_parallel": ContextParallel,
    "tensor_parallel": TensorParallel,
}


class Auto(StrategyBase):
    kind: Literal["auto"] = "auto"

    def layout(self, world: World) -> Layout:
        """While nothing is chosen, since nothing is to do."""
        return Layout(world.world_size, world.rank)

    def resolve(self, asked: Asked, world: World) -> Resolution:
        machine = asked.machine()
        if machine is None:
            strategy: StrategyBase = DataParallel()
            why = "there is no GPU, and it needs none"
        else:
            facts = ModelFacts.read(asked.folder)
            images, sizes = asked.images(), asked.component_bytes()
            work = Work.of(facts, asked.dtype, sizes, asked.batch_size, images)
            strategy, why = choose(work, machine)
            if isinstance(strategy, DeviceMap):
                strategy = _for_processes(strategy, machine, world)
        found = strategy.resolve(asked, world)
        return Resolution(
            found.strategy, found.remarks, f"strategy auto: {strategy.kind}, since {why}"
        )

    def load(self, source: Source, device: "torch.device", world: World) -> Any:
        raise StrategyError("strategy: auto is resolved before a model loads")


def choose(work: Work, machine: Machine) -> Choice:
    """The guides' table. Raises StrategyError where nothing in diffusers fits, with what would
    help."""
    table = rows(work, machine)
    room = machine.memory - OVERHEAD
    largest = max(work.components.values())
    activations = max(work.denoising, work.decoding)
    if table[0].fits:
        return DataParallel(), "the whole model fits on one device, and replicas share the prompts"
    if work.weights <= room and (row := _first(table, "context_parallel")):
        return _made(row), "the weights fit on one device, but not with the activations"
    device_map = _first(table, "device_map")
    if largest + activations <= room and device_map:
        return _made(device_map), "each component fits on one device, but not all together"
    if largest > room:
        words = "the largest component does not fit on one device"
        if machine.interconnect == "nvlink" and (row := _first(table, "tensor_parallel")):
            return _made(row), f"{words}, and NVLink is fast enough to share it"
        if device_map:
            return _made(device_map), f"{words}, and the interconnect is slow"
    for name in ("device_map", "tensor_parallel", "context_parallel"):
        if row := _first(table, name):
            return _made(row), "it is the first that fits"
    raise StrategyError(f"strategy: auto: nothing fits on {machine}: {_too_large(work, room)}")


def _too_large(work: Work, room: int) -> str:
    """What fits no device, and what would help."""
    activations = max(work.denoising, work.decoding)
    if room <= 0:
        return f"{_gib(OVERHEAD)} a device are taken before the model; use larger devices"
    sizes = f"weights of {_gib(work.weights)} and activations of {_gib(activations)}"
    if activations <= room // 2:
        return f"{sizes}; use quantization, or more or larger devices"
    if work.weights <= room // 2:
        return f"{sizes}; use smaller images, a smaller batch_size or VAE tiling"
    return (
        f"{sizes} are both too large, and diffusers cannot put tensor and context parallel on one "
        f"model; use smaller images or batch_size, VAE tiling with tensor_parallel, quantization, "
        f"or more or larger devices"
    )


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def _for_processes(strategy: DeviceMap, machine: Machine, world: World) -> DeviceMap:
    """Chosen for one process a device: with fewer processes each has several devices."""
    each = max(1, machine.devices // world.world_size)
    return strategy.model_copy(update={"processes": math.ceil(strategy.processes / each)})


def _first(table: Sequence[Row], strategy: str) -> Row | None:
    return next((row for row in table if row.strategy == strategy and row.fits), None)


def _made(row: Row) -> StrategyBase:
    return KINDS[row.strategy].model_validate(row.settings)
