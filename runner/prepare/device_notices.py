"""Remarks on the devices of a launch, one line each: what makes it slow without a word."""

from collections.abc import Iterator
from pathlib import Path

from runner.launch.devices import name_of, own_devices
from runner.launch.world import World
from runner.manifest.schema import Manifest
from runner.units import counted

__all__ = ["device_name", "device_notices"]

DRIVER = Path("/proc/driver/nvidia/version")  # there where an NVIDIA driver is loaded


def device_notices(manifest: Manifest, world: World) -> Iterator[str]:
    """For a launch with work to do."""
    import torch

    if not torch.accelerator.is_available():
        if DRIVER.exists():
            yield f"an NVIDIA GPU is here, and the CPU makes the images: {_why_not()}"
        return
    if manifest.dtype == "float32":
        yield (
            "dtype: float32 takes twice the memory and several times the time of bfloat16 on a "
            "GPU; write dtype: bfloat16 unless you need every bit"
        )
    count = torch.accelerator.device_count()
    used = world.local_world_size
    if used < count and not manifest.strategy.shares_node:
        yield (
            f"{counted(used, 'device')} of {count} are used; to use all, start it with: "
            f"torchrun --nproc-per-node {count} -m runner …"
        )


def device_name(world: World) -> str:
    """Of the devices that the launch uses; empty for a CPU."""
    import torch

    return name_of(own_devices(world)) if torch.accelerator.is_available() else ""


def _why_not() -> str:
    import torch

    if torch.version.cuda is None:
        return "this torch is built without CUDA; install one with it"
    return (
        f"torch {torch.__version__} cannot use it; update the driver, or install a torch that is "
        f"built for the CUDA of the driver (nvidia-smi names it)"
    )
