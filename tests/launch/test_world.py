"""Launcher variables → ranks and the rank's own device."""

from typing import Any

import pytest
import torch

from runner.errors import LaunchError
from runner.launch.devices import set_device
from runner.launch.world import World, world_from

TORCHRUN = {
    "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
    "MASTER_ADDR": "host", "MASTER_PORT": "4000", "TORCHELASTIC_RUN_ID": "run",
    "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip


def test_torchrun_and_plain_python() -> None:
    world = world_from(TORCHRUN)
    assert (world.rank, world.local_rank, world.world_size, world.node) == (5, 1, 8, 1)
    assert (world.run_id, world.restart, world.agent_store) == ("run", 2, True)
    assert world_from({}) == World()


def test_missing_and_wrong_variables() -> None:
    with pytest.raises(LaunchError, match="LOCAL_RANK, MASTER_ADDR, MASTER_PORT: not set"):
        world_from({"RANK": "0", "WORLD_SIZE": "2"})
    with pytest.raises(LaunchError, match="RANK=x: not a whole number"):
        world_from({**TORCHRUN, "RANK": "x"})
    with pytest.raises(LaunchError, match="RANK=8 is not below WORLD_SIZE=8"):
        world_from({**TORCHRUN, "RANK": "8"})


# Case 18: never four equal jobs.
def test_slurm_tasks_without_torchrun_are_refused() -> None:
    with pytest.raises(LaunchError, match=r"SLURM_NTASKS=4.*srun .*torchrun"):
        world_from({"SLURM_NTASKS": "4", "SLURM_PROCID": "2"})
    assert world_from({"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}) == World()
    assert world_from({**TORCHRUN, "SLURM_NTASKS": "4", "SLURM_PROCID": "2"}).rank == 5


class Accelerators:
    """`torch.accelerator` of a node with so many devices; records which one was made current."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.calls: list[Any] = []

    def is_available(self) -> bool:
        return self.count > 0

    def device_count(self) -> int:
        return self.count

    def current_accelerator(self) -> torch.device:
        return torch.device("cuda")

    def set_device_index(self, index: int) -> None:
        self.calls.append(index)


def world(local_rank: int, local_world_size: int, **values: Any) -> World:
    return World(
        rank=local_rank, local_rank=local_rank, world_size=local_world_size,
        local_world_size=local_world_size, **values,
    )  # fmt: skip


# Case 16: each rank on its own device, made current before anything else.
def test_the_local_rank_is_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Accelerators(4)
    monkeypatch.setattr(torch, "accelerator", node)
    assert set_device(world(2, 4)) == torch.device("cuda", 2)
    assert node.calls == [2]


def test_more_processes_than_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "accelerator", Accelerators(2))
    with pytest.raises(LaunchError, match=r"4 processes .* 2 devices; use --nproc-per-node 2"):
        set_device(world(3, 4))
    one = Accelerators(1)
    monkeypatch.setattr(torch, "accelerator", one)
    with pytest.raises(LaunchError, match="use --nproc-per-node 1"):
        set_device(world(3, 4))
    # A scheduler that shows each task its own GPU: the only one is the right one.
    assert set_device(world(3, 4, one_gpu_a_task=True)) == torch.device("cuda", 0)


def test_without_accelerators_it_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "accelerator", Accelerators(0))
    assert set_device(world(3, 4)) == torch.device("cpu")
