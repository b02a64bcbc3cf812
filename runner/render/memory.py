"""What can be done to a loaded pipeline that is out of memory, or whose decoder overflows."""

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["Ladder", "free_memory", "is_known_to_overflow", "vae_in_float32"]


class Ladder:
    """The steps against too little memory that the manifest allows, taken one by one and kept."""

    def __init__(self, pipe: Any, device: torch.device, policy: str) -> None:
        self.pipe = pipe
        self.device = device
        self.taken: list[str] = []
        self._left = {
            "fail": [],
            "tile": [self._tile],
            "offload": [self._tile, self._offload],
        }[policy]

    def step(self) -> bool:
        """Take the next step that this pipeline has; False where none is left."""
        while self._left:
            name = self._left.pop(0)()
            if name:
                self.taken.append(name)
                return True
        return False

    def _tile(self) -> str:
        vae: Any = getattr(self.pipe, "vae", None)
        if not hasattr(vae, "enable_tiling"):
            return ""
        vae.enable_tiling()
        if hasattr(vae, "enable_slicing"):
            vae.enable_slicing()
        return "vae tiling"

    def _offload(self) -> str:
        if self.device.type == "cpu":
            return ""
        if getattr(self.pipe, "hf_device_map", None) is not None:
            self.pipe.reset_device_map()
        self.pipe.enable_model_cpu_offload(device=self.device)
        return "model offload"


def free_memory() -> None:
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()


def is_known_to_overflow(pipe: Any) -> bool:
    """Whether the VAE says of itself that half precision may be too small for it."""
    vae: Any = getattr(pipe, "vae", None)
    config = getattr(vae, "config", None)
    return bool(getattr(config, "force_upcast", False)) and vae.dtype != torch.float32


@contextlib.contextmanager
def vae_in_float32(pipe: Any) -> Iterator[None]:
    """Decode in float32, for one image: the others stay bit for bit what they are elsewhere."""
    vae, dtype, decode = pipe.vae, pipe.vae.dtype, pipe.vae.decode
    vae.to(torch.float32)
    vae.decode = lambda latents, *args, **kwargs: decode(latents.float(), *args, **kwargs)
    try:
        yield
    finally:
        del vae.decode
        vae.to(dtype)
