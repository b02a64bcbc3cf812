"""A renderer without a model: pixels are a function of prompt, seed and parameters.

For tests of everything around the pipeline: faults, launchers, schedulers.
"""

import hashlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from runner.launch.stop import Stop
from runner.manifest.input_images import InputFiles
from runner.plan import Task, canonical
from runner.render.results import DroppedError, Image, Rendered

__all__ = ["FakePipeline"]

SLICE_S = 0.02


class FakePipeline:
    """Takes `seconds` for an image of (height, width) as in the parameters, 16 × 16 by default."""

    def __init__(self, stop: Stop, seconds: float = 0.0, inputs: InputFiles | None = None) -> None:
        """`inputs`: the pixels depend on what is in the input images, not on their names."""
        self.stop = stop
        self.inputs = inputs
        self.seconds = seconds
        self.about: dict[str, Any] = {"strategy": "fake", "device": "cpu", "dtype": "float32"}

    def images(self, tasks: Sequence[Task]) -> Any:
        import torch

        pixels = torch.from_numpy(np.stack([self._pixels(task) for task in tasks]))
        return pixels.permute(0, 3, 1, 2).float() / 255

    def expect(self, tasks: Sequence[Task], later: Sequence[Task]) -> None:
        """No file is read ahead."""

    def prepare(self, batches: Sequence[Sequence[Task]]) -> None:
        """Every batch is made for itself."""

    def tries(self, tasks: Sequence[Task]) -> bool:
        self._work(len(tasks), is_trial=True)
        return True

    def render(self, tasks: Sequence[Task], degraded: Sequence[str] = ()) -> Rendered:
        try:
            self._work(len(tasks))
        except DroppedError as error:
            return Rendered([], error)
        made = self._made(tasks, degraded)
        return Rendered([Image(task, self._pixels(task), dict(made)) for task in tasks])

    def _work(self, images: int, *, is_trial: bool = False) -> None:
        """A batch is done as a whole, or dropped at once where it would not end in time; a trial
        where a stop is asked for."""
        end = time.monotonic() + self.seconds * images
        while (left := end - time.monotonic()) > 0:
            if left > self.stop.left_s() or (is_trial and self.stop.requested):
                raise DroppedError
            time.sleep(min(left, SLICE_S))

    def _pixels(self, task: Task) -> "np.ndarray[Any, np.dtype[np.uint8]]":
        inputs = self.inputs
        given = inputs.by_content(task.parameters) if inputs else task.parameters
        words = f"{task.prompt}\n{task.seed}\n{canonical(given)}"
        seed = int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big")
        shape = (task.parameters.get("height") or 16, task.parameters.get("width") or 16, 3)
        return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)

    def _made(self, tasks: Sequence[Task], degraded: Sequence[str]) -> dict[str, Any]:
        return {"strategy": "fake", "batch_size": len(tasks), "degraded": list(degraded)}
