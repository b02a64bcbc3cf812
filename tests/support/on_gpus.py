"""A launch on the pretended GPUs of fake_accelerator.py."""

from collections.abc import Callable
from dataclasses import dataclass

from support.launches import Ended

__all__ = ["OnGpus", "Start"]


@dataclass(frozen=True, slots=True)
class OnGpus:
    """A launch that ended, and per rank what it did to the devices: bytes at their peak, and which
    it touched."""

    ended: Ended
    peaks: list[dict[int, int]]
    touched: list[list[int]]
    tf32: list[bool]  # whether convolutions of float32 may be rounded to TF32


Start = Callable[..., OnGpus]
