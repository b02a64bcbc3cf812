"""Tests that need an accelerator."""

import subprocess
import sys

import pytest
import torch
from support import ROOT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.accelerator.is_available(), reason="no accelerator here"),
]


def test_every_strategy_gives_the_images_of_one_gpu() -> None:
    check = [sys.executable, str(ROOT / "benchmarks" / "gpu_check.py")]
    done = subprocess.run(check, capture_output=True, text=True, timeout=520, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_rank_keeps_to_its_own_device() -> None:
    from runner.launch.devices import own_devices, set_device
    from runner.launch.world import World

    count = torch.accelerator.device_count()
    for rank in range(count):
        world = World(rank, rank, count, count)
        assert set_device(world).index == rank
        assert list(own_devices(world)) == [rank]
