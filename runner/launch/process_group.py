"""The process group of one replica: its ranks alone, so that replicas never wait for each other."""

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from runner.launch.layout import Layout
from runner.launch.world import World

if TYPE_CHECKING:
    import torch

__all__ = ["replica_group"]

# A rank may come late to a collective, since it loaded or compiled for longer. Ranks that died are
# found by their heartbeat, long before this.
TIMEOUT = timedelta(minutes=30)


@contextlib.contextmanager
def replica_group(
    world: World, layout: Layout, device: "torch.device", *, binds_device: bool = True
) -> Iterator[None]:
    """The replica's ranks as torch's default group; nothing for a replica of one rank.

    A group bound to its device makes its communicator at once, and groups of its parts from it,
    which packages that make groups by themselves do not expect.
    """
    if layout.ranks_per_replica == 1:
        yield
        return
    import torch
    import torch.distributed as dist

    from runner.launch.store import raw_store

    is_cpu = device.type == "cpu"
    of_device = dist.get_default_backend_for_device(device)
    # Small numbers (the "anything" variants gather lengths) go over the CPU's backend.
    backend = of_device if is_cpu else f"cpu:gloo,{device.type}:{of_device}"
    torch.zeros(1, device=device)  # a device mesh would choose another device before its first use
    store = raw_store(world, f"{world.restart}/group/{layout.replica}")
    store.set_timeout(TIMEOUT)
    dist.init_process_group(
        backend,
        store=store,
        rank=layout.rank_in_replica,
        world_size=layout.ranks_per_replica,
        timeout=TIMEOUT,
        device_id=None if is_cpu or not binds_device else device,
    )
    yield
    # Only after orderly work: a broken group may wait for ranks that are gone.
    dist.destroy_process_group()
