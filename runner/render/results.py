"""What becomes of a batch. Imports no torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from runner.plan import Task

__all__ = ["DroppedError", "Failure", "Image", "Renderer"]


class DroppedError(Exception):
    """The current batch was given up, since it would not end before the deadline of a stop."""


@dataclass(frozen=True, slots=True)
class Image:
    """A finished image: pixels (H, W, 3 or 4) and how it was made."""

    task: Task
    pixels: NDArray[np.uint8]
    made: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failure:
    task: Task
    kind: str  # error, non-finite, out-of-memory, flagged, skipped
    error: str
    trace: str = ""


class Renderer(Protocol):
    """What the run needs of a pipeline: `fake.FakePipeline` is another."""

    def prepare(self, batches: Sequence[Sequence[Task]]) -> None:
        """Batches that will be rendered next."""

    def tries(self, tasks: Sequence[Task]) -> bool:
        """Make a batch and drop it: whether it could be made whole."""

    def render(
        self, tasks: Sequence[Task], degraded: Sequence[str] = ()
    ) -> Iterator[Image | Failure]:
        """A result per task, in order; `degraded` goes into their records.

        Raises DroppedError, and what no other image survives.
        """
