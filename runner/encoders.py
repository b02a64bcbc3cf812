"""Every distinct text passes the text encoders once a rank, whatever its seeds and sweeps.

The encoders are wrapped at their `forward`, below the pipelines, so that nothing here knows how a
pipeline names its prompts. Each row of a batch is encoded alone and kept by its tokens: what comes
out never depends on which texts were encoded together or before.
"""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["encode_once"]

# What a rank remembers for each encoder: 256 texts of FLUX's T5 are as many bytes, and with more of
# them a small model's memory would grow for as long as new texts come.
KEPT_TEXTS, KEPT_BYTES = 256, 2**30

Key = tuple[Any, ...]


def encode_once(pipe: Any) -> None:
    """Wrap all text encoders of a loaded pipeline."""
    for name, component in pipe.components.items():
        if name.startswith("text_encoder") and isinstance(component, torch.nn.Module):
            component.forward = _Remembering(component.forward)


class _Remembering:
    """An encoder's `forward` that remembers its outputs, the least used ones forgotten first."""

    def __init__(self, forward: Callable[..., Any], kept_bytes: int = KEPT_BYTES) -> None:
        self.forward = forward
        self.signature = inspect.signature(forward)
        self.kept_bytes = kept_bytes
        self.bytes = 0
        self.known: OrderedDict[Key, Any] = OrderedDict()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = self.signature.bind(*args, **kwargs).arguments
        tokens = arguments.get("input_ids")
        extra = arguments.pop("kwargs", {})
        arguments.update(extra)
        if not isinstance(tokens, torch.Tensor) or not _are_rows(arguments, len(tokens)):
            return self.forward(*args, **kwargs)
        rows = [self._row(arguments, row) for row in range(len(tokens))]
        return _joined(rows, tokens.device)

    def _row(self, arguments: dict[str, Any], row: int) -> Any:
        alone = {
            name: value[row : row + 1] if isinstance(value, torch.Tensor) else value
            for name, value in arguments.items()
        }
        key = tuple((name, _hashable(value)) for name, value in sorted(alone.items()))
        if key in self.known:
            self.known.move_to_end(key)
            return self.known[key]
        output = _to_cpu(self.forward(**alone))
        self.known[key] = output
        self.bytes += _size(output)
        while len(self.known) > 1 and (
            self.bytes > self.kept_bytes or len(self.known) > KEPT_TEXTS
        ):
            self.bytes -= _size(self.known.popitem(last=False)[1])
        return output


def _are_rows(arguments: dict[str, Any], rows: int) -> bool:
    """Whether every argument is a tensor of so many rows or a plain value, which can be a key."""
    return all(
        len(value) == rows if isinstance(value, torch.Tensor) and value.ndim else _is_plain(value)
        for value in arguments.values()
    )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _hashable(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (
            str(value.dtype),
            tuple(value.shape),
            value.cpu().contiguous().view(torch.uint8).numpy().tobytes(),
        )
    return value


def _to_cpu(output: Any) -> Any:
    """An encoder's output with its tensors in host memory; what is no tensor (a key-value cache) is
    of no use to a pipeline and dropped."""
    if isinstance(output, torch.Tensor):
        return output.cpu()
    if isinstance(output, dict):  # transformers' outputs are ordered dicts
        return type(output)(**{name: _to_cpu(value) for name, value in output.items()})
    if isinstance(output, tuple | list):
        return tuple(_to_cpu(value) for value in output)
    return None


def _joined(rows: Sequence[Any], device: torch.device) -> Any:
    """The rows' outputs as one batch on the device: always a copy, which a pipeline may change."""
    first = rows[0]
    if isinstance(first, torch.Tensor):
        return torch.cat([row.to(device) for row in rows])
    if isinstance(first, dict):
        fields = {name: _joined([row[name] for row in rows], device) for name in first}
        return type(first)(**fields)
    if isinstance(first, tuple):
        return tuple(_joined(parts, device) for parts in zip(*rows, strict=True))
    return None


def _size(output: Any) -> int:
    if isinstance(output, torch.Tensor):
        return output.numel() * output.element_size()
    if isinstance(output, dict):
        return sum(map(_size, output.values()))
    return sum(map(_size, output)) if isinstance(output, tuple) else 0
