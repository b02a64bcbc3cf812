"""The strategies by kind. A new one is a file here and a line in `Strategy`."""

from runner.strategies.base import Layout, StrategyBase
from runner.strategies.data_parallel import DataParallel

__all__ = ["DataParallel", "Layout", "Strategy", "StrategyBase"]

Strategy = DataParallel
