"""The strategies by kind: one file each. A new one is a file here and a name in `auto.Kind`.

Imports model and what stands below it: a strategy knows configs, never the manifest.
"""

from typing import Annotated

from pydantic import Discriminator

from runner.strategies.auto import Auto, Kind
from runner.strategies.base import Resolution, Source, StrategyBase
from runner.strategies.checks.conditions import Conditions
from runner.strategies.context_parallel import ContextParallel
from runner.strategies.data_parallel import DataParallel
from runner.strategies.device_map import DeviceMap
from runner.strategies.para_attn import ParaAttention
from runner.strategies.tensor_parallel import TensorParallel
from runner.strategies.xdit import XDit

__all__ = [
    "Auto",
    "Conditions",
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

Strategy = Annotated[Kind | Auto, Discriminator("kind")]
