"""One rank of a launch, and what it has at hand."""

from dataclasses import dataclass
from pathlib import Path

from runner.folder.lock import Owned
from runner.folder.paths import OutputFolder
from runner.launch.heartbeat import Heartbeat
from runner.launch.layout import Part
from runner.launch.stop import Stop
from runner.launch.store import Store
from runner.launch.tally import Tally
from runner.launch.world import World
from runner.manifest.load import Loaded

__all__ = ["Job", "Rank"]


@dataclass(frozen=True, slots=True)
class Job:
    """What the command line asks for."""

    loaded: Loaded
    output: Path
    limit: int | None = None
    regenerate: bool = False
    self_check: bool = False
    part: Part | None = None


@dataclass(frozen=True, slots=True)
class Rank:
    """What a rank has at hand."""

    job: Job
    folder: OutputFolder
    store: Store
    heartbeat: Heartbeat
    world: World
    stop: Stop

    def owned(self, launch: str) -> Owned:
        """The folder, as far as this launch has it."""
        return Owned.of(self.folder, launch, self.job.part)

    @property
    def tally(self) -> Tally:
        return Tally(self.store, self.heartbeat.pulse)
