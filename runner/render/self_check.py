"""--self-check: one image by one rank and by the replica, compared before the work begins."""

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.errors import StrategyError
from runner.launch.replica import Replica
from runner.launch.stop import Stop
from runner.launch.world import World
from runner.manifest.schema import Manifest
from runner.plan import Task
from runner.render.results import Renderer
from runner.strategies import DataParallel

if TYPE_CHECKING:
    import torch

__all__ = ["agree", "reference"]

# Of pixels from 0 to 1. In float32 the sums differ in their order alone; in half precision single
# pixels differ visibly between any two kernels, so there the mean counts.
MAX_DIFFERENCE_FLOAT32 = 1e-4
MEAN_DIFFERENCE_HALF = 0.02


def reference(
    manifest: Manifest, folder: Path, device: "torch.device", stop: Stop, world: World, task: Task
) -> "torch.Tensor":
    """The image (1, C, H, W) by this rank alone, nothing compiled; its model is gone when this
    returns."""
    import torch

    from runner.render.load import load

    plain = manifest.model_copy(update={"compile": False, "strategy": DataParallel()})
    pipeline = load(plain, folder, device=device, world=world, stop=stop)
    image: torch.Tensor = pipeline.images([task]).cpu()
    del pipeline
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
    return image


def agree(
    renderer: Renderer, task: Task, expected: "torch.Tensor | None", replica: Replica
) -> None:
    """Render the task by the replica; its leader, who has what is `expected`, compares.

    Raises StrategyError on every rank where they differ by more than the limit.
    """
    image = renderer.images([task])
    words = _difference(image, expected, renderer.about["dtype"])
    verdict = replica.agree_on(("self-check", words) if words else None)
    if verdict:
        error = StrategyError(
            f"strategy: {renderer.about['strategy']}: self-check: {verdict[1]}; use "
            f"data_parallel, another degree or attention backend, or compile: false"
        )
        error.is_printed = not replica.layout.is_leader
        raise error


def _difference(image: Any, expected: "torch.Tensor | None", dtype: str) -> str | None:
    """In words where it is over the limit."""
    if expected is None:
        return None
    apart = (image.cpu().float() - expected.float()).abs()
    if dtype == "float32":
        found, limit, what = float(apart.max()), MAX_DIFFERENCE_FLOAT32, "at most"
    else:
        found, limit, what = float(apart.mean()), MEAN_DIFFERENCE_HALF, "on average"
    if found <= limit:  # not where it is no number
        return None
    return f"the image differs from that of one rank by {found:.2g} {what}, limit {limit}"
