"""The header of a safetensors file, which names its tensors: no weight is read."""

import itertools
from pathlib import Path
from typing import Any, NamedTuple

from runner.errors import ModelError
from runner.model.json_file import AGAIN, fault, parse_json

__all__ = ["Tensor", "header_bytes", "spans", "tensors"]

MAX_BYTES = 100_000_000  # of a header; safetensors itself reads no more
POINTER = b"version https://git-lfs"  # how the stand-in of a Git LFS file begins


class Tensor(NamedTuple):
    dtype: str
    shape: list[int]
    start: int  # of its bytes in the file
    end: int


def header_bytes(path: Path) -> bytes:
    """The header's JSON. It stands after its own length, which takes 8 bytes. Raises OSError."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return file.read(min(length, MAX_BYTES))


def tensors(path: Path) -> dict[str, tuple[str, list[int]]]:
    """Tensor → (dtype, shape), as the header has them. Raises ModelError as `spans` does."""
    return {name: (tensor.dtype, tensor.shape) for name, tensor in spans(path).items()}


def spans(path: Path) -> dict[str, Tensor]:
    """The tensors in the order of their bytes. Raises ModelError for a header that has not the
    right form, and for a file that has more or fewer bytes than its header says."""
    try:
        data, size = header_bytes(path), path.stat().st_size
    except OSError as error:
        raise fault(path, error) from None
    if (b"version " + data).startswith(POINTER) and size < 1024:
        raise ModelError(
            f"{path}: is a pointer of Git LFS, not the weights; fetch them with git lfs pull"
        )
    begin = 8 + len(data)
    values = parse_json(data, path)
    values.pop("__metadata__", None)
    found = sorted(
        ((name, _tensor(path, name, value, begin)) for name, value in values.items()),
        key=lambda item: item[1][2:],
    )
    end = found[-1][1].end if found else begin
    if end != size:
        what = "was cut off, or is still being copied" if size < end else "has something added"
        raise ModelError(
            f"{path}: has {size:,} bytes, and its header says {end:,}; it {what}; {AGAIN}"
        )
    starts = itertools.chain([begin], (tensor.end for _, tensor in found))
    for (name, tensor), start in zip(found, starts, strict=False):
        if tensor.start != start:
            raise _wrong(path, name)
    return dict(found)


def _tensor(path: Path, name: str, value: Any, begin: int) -> Tensor:
    match value:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(end)]}:
            if 0 <= start <= end and all(type(side) is int and side >= 0 for side in shape):
                return Tensor(dtype, shape, begin + start, begin + end)
    raise _wrong(path, name)


def _wrong(path: Path, name: str) -> ModelError:
    return ModelError(f"{path}: cannot be read: its header is wrong at {name[:80]!r}; {AGAIN}")
