"""The runner, and then the most memory that its process took on any device."""

import sys

import torch

from runner.cli import main

code = main()
peak = max(
    torch.accelerator.max_memory_allocated(index)
    for index in range(torch.accelerator.device_count())
)
print(f"peak {peak}", flush=True)
sys.exit(code)
