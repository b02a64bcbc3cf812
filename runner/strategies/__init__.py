"""The strategies by kind. A new one is a file here and a line in `Strategy`.

Imports model and what stands below it: a strategy knows configs, never the manifest.
"""

from typing import Annotated

from pydantic import Discriminator

from runner.strategies.auto import Auto
from runner.strategies.base import Asked, Resolution, Source, StrategyBase
from runner.strategies.context_parallel import ContextParallel
from runner.strategies.data_parallel import DataParallel
from runner.strategies.device_map import DeviceMap
from runner.strategies.para_attn import ParaAttention
from runner.strategies.tensor_parallel import TensorParallel
from runner.strategies.xdit import XDit

__all__ = [
    "Asked",
    "Auto",
    "ContextParallel",
    "DataParallel",
    "DeviceMap",
    "ParaAttention",
    "Resolution",
    "Source",
    "Strategy",
    "StrategyBase",
    "TensorParallel",
    "XDit",
]

Strategy = Annotated[
    DataParallel | DeviceMap | ContextParallel | TensorParallel | XDit | ParaAttention | Auto,
    Discriminator("kind"),
]
