"""A rank's place among the replicas of a launch: pure arithmetic."""

from collections.abc import Callable
from dataclasses import dataclass

from runner.errors import StrategyError
from runner.launch.world import World

__all__ = ["Layout", "Part", "grouped"]

Part = tuple[int, int]  # of a launch with --shard: I of N, from 1


@dataclass(frozen=True, slots=True)
class Layout:
    """A rank's place. World size = replicas × ranks per replica; those ranks are consecutive."""

    replicas: int
    replica: int
    ranks_per_replica: int = 1
    rank_in_replica: int = 0
    is_idle: bool = False  # the first rank of its replica drives its devices
    leader: int = 0  # the rank in the replica that gets the image

    @property
    def is_leader(self) -> bool:
        """Whether this is the one rank of its replica that takes batches and writes images."""
        return self.rank_in_replica == self.leader


def grouped(
    world: World,
    ranks: int,
    factors: str,
    leader: int = 0,
    works: Callable[[int], bool] = lambda _: True,
) -> Layout:
    """Replicas of `ranks` consecutive ranks; `factors` is their product in words: "ulysses 2".

    Raises StrategyError if the world size is not a multiple of `ranks`. The error names the nearest
    multiples for which `works` is true.
    """
    size = world.world_size
    if size % ranks:
        low = size // ranks * ranks
        multiples = [count for count in (low, low + ranks) if count]
        valid = " or ".join(map(str, [*filter(works, multiples)] or multiples))
        product = factors if factors.endswith(f"= {ranks}") else f"{factors} = {ranks}"
        raise StrategyError(
            f"strategy: {product} ranks a replica does not divide {size}; use {valid} processes"
        )
    return Layout(size // ranks, world.rank // ranks, ranks, world.rank % ranks, leader=leader)
