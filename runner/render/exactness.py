"""How exactly each image can be made again, and why not more exactly: part of its record."""

import platform
from collections.abc import Iterable, Sequence
from typing import Any, get_args

import torch

from runner.launch.devices import name_of
from runner.strategies.base import Exactness, StrategyBase, Tier

__all__ = ["LORAS", "device_facts", "exactness_of", "limits_of"]

TIERS: tuple[Tier, ...] = get_args(Tier)  # from the best down
ALONE = "made alone by one process, from its own noise"
LORAS = Exactness("close", "LoRAs: low bits depend on whether all images of the job have these")
# Steps of an image that was made in another way than planned, as far as they change pixels.
STEPS = {
    "batch split": Exactness("batch-sensitive", "made in a smaller batch than planned"),
    "vae tiling": Exactness("lossy", "decoded in tiles"),
}


def limits_of(pipe: Any, strategy: StrategyBase) -> list[Exactness]:
    """How exact the images of a loaded pipeline can be at best."""
    limits = [strategy.exactness]
    components = getattr(pipe, "components", {})
    quantized = [name for name, one in components.items() if getattr(one, "is_quantized", False)]
    if quantized:
        limits.append(Exactness("lossy", f"quantized weights: {', '.join(quantized)}"))
    return limits


def exactness_of(
    limits: Iterable[Exactness], batch_size: int, degraded: Sequence[str], *, is_compiled: bool
) -> dict[str, str]:
    """Two values of an image's record."""
    found = [*limits, *(STEPS[step] for step in degraded if step in STEPS)]
    if is_compiled:
        found.append(Exactness("close", "compiled blocks: low bits depend on the compiler"))
    if batch_size > 1:
        why = f"made in a batch of {batch_size}: low bits depend on the others in it"
        found.append(Exactness("batch-sensitive", why))
    tier = max((one.tier for one in found), key=TIERS.index)
    reasons = [one.reason for one in found if one.reason]
    return {"reproducibility": tier, "reproducibility_reason": "; ".join(reasons) or ALONE}


def device_facts(device: torch.device) -> dict[str, Any]:
    """The kind of device, for which an exact image is the same."""
    if device.type != "cpu":
        return {"device": device.type, "device_name": name_of((device.index or 0,))}
    name = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    return {"device": "cpu", "device_name": name, "threads": torch.get_num_threads()}
