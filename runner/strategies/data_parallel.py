"""Data parallel: every rank holds the whole model and makes images of its own."""

from typing import TYPE_CHECKING, Any, Literal

from runner.launch.layout import Layout
from runner.launch.world import World
from runner.strategies.base import Source, StrategyBase

if TYPE_CHECKING:
    import torch

__all__ = ["DataParallel", "load_whole"]


class DataParallel(StrategyBase):
    kind: Literal["data_parallel"] = "data_parallel"

    @property
    def tries_batches(self) -> bool:
        return True

    def layout(self, world: World) -> Layout:
        return Layout(replicas=world.world_size, replica=world.rank)

    def load(self, source: Source, device: "torch.device", world: World) -> Any:
        return load_whole(source, device)


def load_whole(source: Source, device: "torch.device") -> Any:
    """The whole pipeline on one device. Weights go straight there; on the CPU they are mapped, so
    that the ranks of a node share them."""
    # The type without an index is the current device: this rank's own.
    pipe = source.pipeline(device_map=device.type if device.type != "cpu" else None)
    return pipe.to(device)
