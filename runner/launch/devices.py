"""The accelerators of this machine, and which of them this rank uses."""

import gc
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from runner.errors import LaunchError
from runner.launch.world import World
from runner.units import counted, gib

if TYPE_CHECKING:
    import torch

__all__ = [
    "Machine",
    "driven_devices",
    "free_memory",
    "memory_peak",
    "name_of",
    "own_devices",
    "set_device",
    "this_machine",
    "use_threads",
]


@dataclass(frozen=True, slots=True)
class Machine:
    """The accelerators that a launch may use, all of one kind."""

    devices: int
    memory: int  # bytes of each
    interconnect: Literal["nvlink", "pcie"]
    device: str = "cuda"  # their type

    def __str__(self) -> str:
        words = {"nvlink": "NVLink", "pcie": "PCIe"}[self.interconnect]
        return f"{self.devices} × {gib(self.memory, places=0)} on {words}"


def this_machine(world: World) -> Machine | None:
    """The devices of this node times the number of nodes; None without accelerators."""
    import torch

    if not torch.accelerator.is_available():
        return None
    count = torch.accelerator.device_count()
    if _sees_its_own_alone(world):
        count = world.local_world_size
    memory = min(_memory_of(index) for index in range(torch.accelerator.device_count()))
    nodes = max(1, world.world_size // world.local_world_size)
    return Machine(count * nodes, memory, _interconnect())


def _memory_of(index: int) -> int:
    """All bytes of a device. To ask for the free ones would make a context on it, of half a GB."""
    return int(_module().get_device_properties(index).total_memory)


def _module() -> Any:
    """torch.cuda, or what the accelerator's module is."""
    import torch

    return torch.get_device_module(torch.accelerator.current_accelerator())


def _sees_its_own_alone(world: World) -> bool:
    """Whether the scheduler shows each process of the node one device only, another one each."""
    import torch

    is_shared_out = world.one_gpu_a_task and world.local_world_size > 1
    return is_shared_out and torch.accelerator.device_count() == 1


def _interconnect() -> Literal["nvlink", "pcie"]:
    """NVLink if the driver lists such a link between any two devices."""
    import subprocess

    try:
        found = subprocess.run(
            ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "pcie"
    return "nvlink" if re.search(r"\bNV\d+\b", found.stdout) else "pcie"


def use_threads(count: int | None) -> None:
    """Compute with so many threads on the CPU, as an earlier process did: low bits depend on it."""
    import torch

    if count is not None:
        torch.set_num_threads(count)


def own_devices(world: World, processes: int = 1) -> range:
    """The rank's share of the node's accelerators. A rank that drives the devices of several
    processes, its own and the next ones, has the shares of all `processes`."""
    import torch

    if _sees_its_own_alone(world):
        return range(1)
    each = max(1, torch.accelerator.device_count() // world.local_world_size)
    first = world.local_rank * each
    return range(first, first + each * processes)


def set_device(world: World, *, share: bool = False) -> "torch.device":
    """The rank's device, made current. Call it before anything else uses an accelerator. With
    `share` it is the first device of the rank's share of the node.

    Raises LaunchError if the node has fewer accelerators than local ranks.
    """
    import torch

    if not torch.accelerator.is_available():
        return torch.device("cpu")
    visible = torch.accelerator.device_count()
    index = world.local_rank
    if _sees_its_own_alone(world):
        index = 0
    elif world.local_world_size > visible:
        raise LaunchError(
            f"{world.local_world_size} processes on {socket.gethostname()}, which shows "
            f"{counted(visible, 'device')}; use --nproc-per-node {visible}, or let each process "
            f"see all GPUs of its node: its LOCAL_RANK picks one"
        )
    elif share:
        index = own_devices(world)[0]
    torch.accelerator.set_device_index(index)
    accelerator = torch.accelerator.current_accelerator()
    return torch.device(accelerator.type if accelerator else "cpu", index)


def driven_devices(world: World, device: "torch.device", processes: int) -> Sequence[int]:
    """The accelerators that a rank on `device` uses: that one, or those of `processes` processes
    where it has the share of the node to itself (0: it has not). None on a CPU."""
    if device.type == "cpu":
        return ()
    return own_devices(world, processes) if processes else (device.index,)


def name_of(devices: Sequence[int]) -> str:
    """`NVIDIA H200`, the name of the first; `cpu` where there are none."""
    return str(_module().get_device_name(devices[0])) if devices else "cpu"


def memory_peak(devices: Sequence[int]) -> int:
    """The most bytes that this process had on one of them."""
    import torch

    return max(torch.accelerator.max_memory_allocated(index) for index in devices)


def free_memory() -> None:
    """Give what no object holds any more back to the host and to the accelerator."""
    import torch

    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
