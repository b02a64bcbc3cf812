"""auto: the strategy by the guides' table, for this model, these images and this machine."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from runner.errors import StrategyError
from runner.launch.devices import Machine
from runner.launch.layout import Layout
from runner.launch.world import World
from runner.strategies.base import Resolution, Row, Source, StrategyBase, kind_field
from runner.strategies.checks.conditions import Conditions
from runner.strategies.context_parallel import ContextParallel
from runner.strategies.data_parallel import DataParallel
from runner.strategies.device_map import DeviceMap
from runner.strategies.estimate.fit import OVERHEAD, JobSize
from runner.strategies.para_attn import ParaAttention
from runner.strategies.tensor_parallel import TensorParallel
from runner.strategies.xdit import XDit
from runner.units import gib

if TYPE_CHECKING:
    import torch

__all__ = ["Auto", "Choice", "Kind", "choose", "rows"]

# Every other strategy. A new one is a file here and a name in this line.
Kind = DataParallel | DeviceMap | ContextParallel | TensorParallel | XDit | ParaAttention
Choice = tuple[StrategyBase, str]  # and why


class Auto(StrategyBase):
    kind: Literal["auto"] = kind_field(
        "auto", "the runner chooses, by the model, the images and the GPUs"
    )

    def layout(self, world: World) -> Layout:
        """Of a job with nothing to do, for which nothing is chosen."""
        return Layout(world.world_size, world.rank)

    def resolve(self, conditions: Conditions, world: World) -> Resolution:
        machine = conditions.machine()
        if machine is None:
            strategy: StrategyBase = DataParallel()
            why = "there is no GPU, and it needs none"
        else:
            configs, images = conditions.configs, conditions.images()
            sizes, batch_size = conditions.component_bytes(), conditions.batch_size
            job = JobSize.of(configs, conditions.dtype, sizes, batch_size, images)
            strategy, why = choose(job, machine, rows(job, machine))
            strategy = strategy.for_processes(machine, world.world_size)
        found = strategy.resolve(conditions, world)
        choice = f"strategy auto: {strategy.kind}, since {why}"
        return Resolution(found.strategy, found.remarks, choice)

    def load(self, source: Source, device: "torch.device", world: World) -> Any:
        raise StrategyError("strategy: auto is resolved before a model loads")


def rows(job: JobSize, machine: Machine) -> list[Row]:
    """Every strategy that the model and the number of devices allow."""
    return [row for kind in get_args(Kind) for row in kind.rows(job, machine)]


def choose(job: JobSize, machine: Machine, found: Sequence[Row]) -> Choice:
    """The guides' table; `found` are its `rows`. Raises StrategyError where nothing in diffusers
    fits, with what would help."""
    fits = [row for row in found if row.estimate.fits]
    fitting = [row.strategy for row in fits if not row.estimate.on_host]
    room = machine.memory - OVERHEAD
    device_map = _first(fitting, DeviceMap)
    if whole := _first(fitting, DataParallel):
        return whole, "the whole model fits on one device, and replicas share the prompts"
    if job.weights <= room and (strategy := _first(fitting, ContextParallel)):
        return strategy, "the weights fit on one device, but not with the activations"
    if job.largest + job.activations <= room and device_map:
        return device_map, "each component fits on one device, but not all together"
    if job.largest > room:
        words = "the largest component does not fit on one device"
        is_fast = machine.interconnect == "nvlink"
        if is_fast and (strategy := _first(fitting, TensorParallel)):
            return strategy, f"{words}, and NVLink is fast enough to share it"
        if device_map:
            slow = "tensor parallel does not fit" if is_fast else "the interconnect is slow"
            return device_map, f"{words}, and {slow}"
    for kind in (DeviceMap, TensorParallel, ContextParallel):
        if strategy := _first(fitting, kind):
            return strategy, "it is the first that fits"
    if hosted := next((row for row in fits if row.estimate.on_host), None):
        where = f"{gib(hosted.estimate.on_host)} of the weights must lie in host memory"
        return hosted.strategy, f"the devices do not hold the model: {where}, which is slow"
    raise StrategyError(f"strategy: auto: nothing fits on {machine}: {_too_large(job, room)}")


def _first(strategies: Sequence[StrategyBase], kind: type[StrategyBase]) -> StrategyBase | None:
    return next((strategy for strategy in strategies if type(strategy) is kind), None)


def _too_large(job: JobSize, room: int) -> str:
    """What does not fit on a device, and what would help."""
    if room <= 0:
        return f"{gib(OVERHEAD)} of each device are taken before the model; use larger devices"
    sizes = f"weights of {gib(job.weights)} and activations of {gib(job.activations)}"
    if job.activations <= room // 2:
        return f"{sizes}; use quantization, or more or larger devices"
    if job.weights <= room // 2:
        return f"{sizes}; use smaller images, a smaller batch_size or VAE tiling"
    return (
        f"{sizes} are both too large, and diffusers cannot put tensor and context parallel on one "
        f"model; use smaller images or batch_size, VAE tiling with tensor_parallel, quantization, "
        f"or more or larger devices"
    )
