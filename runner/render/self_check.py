"""An image by plain diffusers, and how far another is from it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from runner.launch.devices import free_memory
from runner.launch.world import World
from runner.manifest.input_images import InputFiles
from runner.manifest.schema import Manifest
from runner.model.signature import as_call_values
from runner.plan import Task

if TYPE_CHECKING:
    import torch

__all__ = ["Pixels", "difference", "plain_image"]

Pixels = NDArray[np.uint8]  # (H, W, 3 or 4)

# In float32 sums differ in their order alone, so no byte by more than 1. In half precision single
# pixels differ visibly between any two kernels, so there the mean counts.
MAX_DIFFERENCE_FLOAT32 = 1.0
MEAN_DIFFERENCE_HALF = 5.0


def plain_image(
    manifest: Manifest, folder: Path, device: "torch.device", world: World, task: Task
) -> Pixels:
    """The image that diffusers itself makes, by this rank alone: one prompt, one CPU generator,
    `output_type="pil"`. Its model is gone when this returns. Raises whatever the call raises."""
    import torch

    from runner.render.adapters import set_weights
    from runner.render.inputs import InputImages
    from runner.render.load import load_plain
    from runner.render.schedulers import set_scheduler

    pipe = load_plain(manifest, folder, device, world)
    inputs = InputImages(InputFiles(manifest.inputs))
    try:
        generator = torch.Generator("cpu").manual_seed(task.seed)
        if manifest.loras:
            set_weights(pipe, task.parameters.get("loras", {}))
        set_scheduler(pipe, task.parameters.get("scheduler"))
        called = pipe(
            **{**as_call_values(task.parameters), **inputs.of(task), "prompt": task.prompt},
            generator=generator,
            output_type="pil",
        )
        return np.asarray(called.images[0])
    finally:
        del pipe
        free_memory()


def difference(image: Any, expected: Any, dtype: str) -> str:
    """How an image differs from the expected one, in words; "" within the limit."""
    if image.shape != expected.shape:
        return f"it is {_size(image)}, not {_size(expected)}"
    apart = np.abs(image.astype(np.int16) - expected.astype(np.int16))
    if dtype == "float32":
        found, limit, what = float(apart.max()), MAX_DIFFERENCE_FLOAT32, "at most"
    else:
        found, limit, what = float(apart.mean()), MEAN_DIFFERENCE_HALF, "on average"
    return "" if found <= limit else f"{found:.3g} of 255 apart {what}, limit {limit:g}"


def _size(image: Any) -> str:
    height, width, *channels = image.shape
    return f"{width}×{height} with {channels[0] if channels else 1} channels"
