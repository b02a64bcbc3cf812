"""Data parallel: every rank holds the whole model and makes images of its own."""

from typing import TYPE_CHECKING, Any, Literal

from runner.strategies.base import Layout, StrategyBase
from runner.world import World

if TYPE_CHECKING:
    import torch

__all__ = ["DataParallel"]


class DataParallel(StrategyBase):
    kind: Literal["data_parallel"] = "data_parallel"

    def layout(self, world: World) -> Layout:
        return Layout(replicas=world.world_size, replica=world.rank)

    def attach(self, pipeline: Any, device: "torch.device") -> None:
        pipeline.to(device)
