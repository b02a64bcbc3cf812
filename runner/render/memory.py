"""What can be done to a loaded pipeline that is out of memory, or whose decoder overflows."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch

from runner.model.replaced import replaced
from runner.render.state import dtypes_kept

__all__ = ["Ladder", "is_known_to_overflow", "vae_in_float32"]


class Ladder:
    """The steps against too little memory that the manifest allows, taken one by one for an image.

    Offloading changes no pixel: it comes first and stays. Tiling does: it is for one image, so that
    no image depends on those made before it.
    """

    def __init__(self, pipe: Any, device: torch.device, policy: str) -> None:
        self.pipe = pipe
        self.device = device
        self.kept: list[str] = []  # steps for this and all later images
        self._tiled: list[str] = []  # for this image
        self._steps = {
            "fail": [],
            "tile": [self._tile],
            "offload": [self._offload, self._tile],
        }[policy]

    @property
    def taken(self) -> list[str]:
        return [*self.kept, *self._tiled]

    def step(self) -> bool:
        """Take the next step that this pipeline has; False where none is left."""
        return any(take() for take in self._steps)

    def end_image(self) -> None:
        """Take back what was for one image."""
        if self._tiled:
            self.pipe.vae.disable_tiling()
            if hasattr(self.pipe.vae, "disable_slicing"):
                self.pipe.vae.disable_slicing()
        self._tiled = []

    def _tile(self) -> bool:
        vae: Any = getattr(self.pipe, "vae", None)
        if self._tiled or not hasattr(vae, "enable_tiling"):
            return False
        vae.enable_tiling()
        if hasattr(vae, "enable_slicing"):
            vae.enable_slicing()
        self._tiled = ["vae tiling"]
        return True

    def _offload(self) -> bool:
        if self.device.type == "cpu" or "model offload" in self.kept:
            return False
        self.pipe.enable_model_cpu_offload(device=self.device)
        self.kept.append("model offload")
        return True


def is_known_to_overflow(pipe: Any) -> bool:
    """Whether the VAE says of itself that half precision may be too small for it."""
    vae: Any = getattr(pipe, "vae", None)
    config = getattr(vae, "config", None)
    return bool(getattr(config, "force_upcast", False)) and vae.dtype != torch.float32


@contextlib.contextmanager
def vae_in_float32(pipe: Any) -> Iterator[None]:
    """Decode in float32, for one image: the others stay bit for bit what they are elsewhere."""
    vae, decode = pipe.vae, pipe.vae.decode

    @functools.wraps(decode)
    def in_float32(latents: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return decode(latents.float(), *args, **kwargs)

    with dtypes_kept(vae), replaced(vae, decode=in_float32):
        vae.to(torch.float32)
        yield
