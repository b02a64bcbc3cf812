"""What becomes of a batch: images and failures. Imports neither torch nor NumPy."""

from __future__ import annotations  # NumPy for types alone

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from runner.plan import Task

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["DroppedError", "Failure", "Image", "Rendered", "Renderer", "Result"]


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
    """An image that could not be made."""

    task: Task
    # error, input, non-finite, wrong-size, out-of-memory, flagged, skipped, write, taken,
    # replica-lost; in a journal also crashed. After compile and shared-noise the images are tried
    # in another way.
    kind: str
    error: str
    trace: str = ""


Result = Image | Failure


@dataclass(frozen=True, slots=True)
class Rendered:
    """A batch's results, one a task and in order. With an error only those before it, and the rank
    that gets it makes no more images: DroppedError, GaveUpError, or what broke the process."""

    results: list[Result]
    error: Exception | None = None


class Renderer(Protocol):
    """What a run needs of a pipeline: `fake.FakePipeline` is another."""

    about: dict[str, Any]  # what the records of all images say: strategy, device, dtype

    def images(self, tasks: Sequence[Task]) -> Any:
        """A tensor of images (B, C, H, W) of one call, floats from 0 to 1 or bytes, and nothing
        else."""

    def expect(self, tasks: Sequence[Task], later: Sequence[Task]) -> None:
        """Announce the batch that is rendered next, and the one that is likely to follow: what they
        need from disk is read in the background."""

    def prepare(self, batches: Sequence[Sequence[Task]]) -> None:
        """Announce the batches that will be rendered next."""

    def tries(self, tasks: Sequence[Task]) -> bool:
        """Make a batch and drop it: whether it could be made whole."""

    def render(self, tasks: Sequence[Task], degraded: Sequence[str] = ()) -> Rendered:
        """Make a batch; `degraded` goes into the records of its images. Raises nothing."""
