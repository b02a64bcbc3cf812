"""The header of a safetensors file, which names its tensors: no weight is read."""

import json
from pathlib import Path
from typing import Any

from runner.errors import ModelError

__all__ = ["header_bytes", "tensors"]

MAX_BYTES = 100_000_000  # of a header; safetensors itself reads no more


def header_bytes(path: Path) -> bytes:
    """The header's JSON. It stands after its own length, which takes 8 bytes. Raises OSError."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return file.read(min(length, MAX_BYTES))


def tensors(path: Path) -> dict[str, tuple[str, list[int]]]:
    """Tensor → (dtype, shape), as the header has them. Raises ModelError."""
    try:
        header: dict[str, Any] = json.loads(header_bytes(path))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {error}; download the model again") from None
    return {
        name: (tensor["dtype"], tensor["shape"])
        for name, tensor in header.items()
        if name != "__metadata__"
    }
