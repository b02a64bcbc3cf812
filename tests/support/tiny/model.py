"""How a pipeline class is built and called in tests."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Model", "square"]


@dataclass(frozen=True, slots=True)
class Model:
    """A tiny pipeline: what it is made of, and parameters that make its call fast."""

    components: Callable[[], dict[str, Any]]
    parameters: Mapping[str, Any]  # of every image
    own: Mapping[str, Any] = field(default_factory=dict)  # of one image that has its own size
    negative: bool = True  # takes a negative prompt
    inputs: tuple[str, ...] = ()  # its input images
    input_side: int = 32  # px


def square(size: int, steps: int = 2, **others: Any) -> dict[str, Any]:
    """Parameters of a square image, `size` px wide."""
    return {"height": size, "width": size, "num_inference_steps": steps, **others}
