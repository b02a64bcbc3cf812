"""A rank's place among the replicas of a launch: pure arithmetic."""

from collections.abc import Callable
from dataclasses import dataclass

from runner.errors import StrategyError
from runner.launch.world import World

__all__ = ["Layout", "grouped"]


@dataclass(frozen=True, slots=True)
class Layout:
    """A rank's place: world size = replicas × ranks per replica, a replica's ranks in a row."""

    replicas: int
    replica: int
    ranks_per_replica: int = 1
    rank_in_replica: int = 0
    is_idle: bool = False  # its devices are driven by the first rank of its replica
    leader: int = 0  # the rank in the replica that holds the image

    @property
    def is_leader(self) -> bool:
        """The one rank of a replica that takes batches and writes images."""
        return self.rank_in_replica == self.leader


def grouped(
    world: World,
    ranks: int,
    factors: str,
    leader: int = 0,
    works: Callable[[int], bool] = lambda _: True,
) -> Layout:
    """Replicas of `ranks` ranks in a row; `factors` is the product in words, as in "ulysses 2".

    Raises StrategyError where the world size is no multiple, with the next ones that are and with
    which all else `works`.
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
