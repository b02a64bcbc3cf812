"""What every strategy is: its validated settings, which know their layout and preconditions."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runner.settings import Settings
from runner.world import World

if TYPE_CHECKING:
    import torch

__all__ = ["Layout", "StrategyBase"]


@dataclass(frozen=True, slots=True)
class Layout:
    """A rank's place: world size = replicas × ranks per replica."""

    replicas: int
    replica: int
    ranks_per_replica: int = 1
    rank_in_replica: int = 0


class StrategyBase(Settings):
    """One way to put the model on the devices of a replica."""

    kind: str

    def layout(self, world: World) -> Layout:
        """Raises StrategyError where the world size does not fit the degrees."""
        raise NotImplementedError

    def attach(self, pipeline: Any, device: "torch.device") -> None:
        """Put the loaded pipeline on the replica's devices."""
        raise NotImplementedError
