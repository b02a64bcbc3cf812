"""The process group of one replica: only its ranks, so replicas never wait for each other."""

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from runner.launch.layout import Layout
from runner.launch.world import World

if TYPE_CHECKING:
    import torch

__all__ = ["replica_group"]

# Long, since a rank may come late to a collective if it loads or compiles for longer. A dead rank
# is noticed much earlier, by its heartbeat.
TIMEOUT = timedelta(minutes=30)


@contextlib.contextmanager
def replica_group(
    world: World, layout: Layout, device: "torch.device", *, binds_device: bool = True
) -> Iterator[None]:
    """Make the replica's ranks torch's default group; a replica of one rank has none.

    `binds_device`: a group bound to its device creates its communicator at once and derives
    subgroups from it. Packages that create their own groups do not expect that.
    """
    if layout.ranks_per_replica == 1:
        yield
        return
    import torch
    import torch.distributed as dist

    from runner.launch.store import raw_store

    is_cpu = device.type == "cpu"
    of_device = dist.get_default_backend_for_device(device)
    # Small numbers (the lengths that the "anything" variants gather) go over the CPU's backend.
    backend = of_device if is_cpu else f"cpu:gloo,{device.type}:{of_device}"
    torch.zeros(1, device=device)  # before its first use a device mesh would choose another device
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
    # Not after an exception: a broken group may wait for ranks that are gone.
    dist.destroy_process_group()
