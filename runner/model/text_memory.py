"""Each rank encodes a text once, for all images that have it.

The encoders are wrapped at their `forward`, below the pipelines, so nothing here knows how a
pipeline names its prompts. Each row of a batch is encoded alone and kept by its tokens: the result
never depends on which texts were encoded together or before.
"""

import contextlib
import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

__all__ = ["TextMemory", "text_memory"]

# Bounds of the two stores of a rank. Texts that come again in another prompt are kept up to
# KEPT_BYTES. Of all other texts the last RECENT outputs are kept too, up to as many bytes: without
# that bound memory would grow during the whole job. FLUX's T5 gives 4 MiB per text.
KEPT_BYTES = 2**29
RECENT = 512

Key = tuple[Any, ...]


class TextMemory:
    """Outputs of a pipeline's text encoders: of texts that come again, and of the latest ones."""

    def __init__(self) -> None:
        self._recent = _Outputs(RECENT, KEPT_BYTES)
        self._returning = _Outputs(None, KEPT_BYTES)
        self._are_returning = False
        self.made_with = ""  # what changes the encoders: the weights of LoRAs

    def watch(self, name: str, component: Any) -> None:
        """Make a component of a pipeline use this memory, if it is a text encoder."""
        if name.startswith("text_encoder") and isinstance(component, torch.nn.Module):
            component.forward = _Remembering(name, component.forward, self)

    @contextlib.contextmanager
    def keeping(self, *, returning: bool) -> Iterator[None]:
        """Around a pipeline call: `returning` says that another prompt has one of its texts too."""
        self._are_returning = returning
        try:
            yield
        finally:
            self._are_returning = False

    def get(self, key: Key) -> Any:
        """The output for a key; None if it is not kept."""
        known = self._returning.get(key)
        if known is not None:
            return known
        known = self._recent.get(key)
        if known is not None and self._are_returning:
            self._recent.drop(key)
            self._returning.put(key, known)
        return known

    def put(self, key: Key, output: Any) -> None:
        (self._returning if self._are_returning else self._recent).put(key, output)

    @property
    def bytes(self) -> int:
        return self._recent.bytes + self._returning.bytes


class _Outputs:
    """A mapping with two bounds: over either, the least recently used outputs are dropped. One
    output is always kept, however large."""

    # cachetools.LRUCache has one bound, and refuses a value that is larger than that.
    def __init__(self, most: int | None, most_bytes: int) -> None:
        self.most, self.most_bytes = most, most_bytes
        self.bytes = 0
        self._known: OrderedDict[Key, Any] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: Key) -> Any:
        if key in self._known:
            self._known.move_to_end(key)
        return self._known.get(key)

    def put(self, key: Key, output: Any) -> None:
        self._known[key] = output
        self.bytes += _size(output)
        while len(self) > 1 and (
            self.bytes > self.most_bytes or (self.most is not None and len(self) > self.most)
        ):
            self.drop(next(iter(self._known)))

    def drop(self, key: Key) -> None:
        self.bytes -= _size(self._known.pop(key))


def text_memory(pipe: Any) -> TextMemory:
    """The memory of a loaded pipeline: its own, or a new one for all its text encoders."""
    own = getattr(pipe, "texts", None)
    if isinstance(own, TextMemory):
        return own
    memory = TextMemory()
    for name, component in pipe.components.items():
        memory.watch(name, component)
    return memory


class _Remembering:
    """An encoder's `forward` that looks into the memory first. In all else it is the `forward` that
    it stands for: its name, its signature, its attributes; a copy of the encoder has the latter."""

    def __init__(self, name: str, forward: Callable[..., Any], memory: TextMemory) -> None:
        self.name = name
        self.forward = forward
        self.memory = memory
        self.signature = inspect.signature(forward)
        functools.update_wrapper(self, forward, updated=())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["forward"], name)

    def __reduce__(self) -> Any:
        return _same, (self.forward,)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = self.signature.bind(*args, **kwargs).arguments
        tokens = arguments.get("input_ids")
        extra = arguments.pop("kwargs", {})
        arguments.update(extra)
        if not isinstance(tokens, torch.Tensor) or not _are_rows(arguments, tokens.shape):
            return self.forward(*args, **kwargs)
        rows = [self._row(arguments, row) for row in range(len(tokens))]
        return _joined(rows, tokens.device)

    def _row(self, arguments: dict[str, Any], row: int) -> Any:
        alone = {
            name: value[row : row + 1] if isinstance(value, torch.Tensor) else value
            for name, value in arguments.items()
        }
        values = ((name, _hashable(value)) for name, value in sorted(alone.items()))
        key = (self.name, self.memory.made_with, *values)
        output = self.memory.get(key)
        if output is None:
            output = _to_cpu(self.forward(**alone))
            self.memory.put(key, output)
        return output


def _same(forward: Any) -> Any:
    return forward


def _are_rows(arguments: dict[str, Any], shape: torch.Size) -> bool:
    """Whether every argument is a tensor of the tokens' shape (B, L) or a plain value, fit for a
    key. Other tensors may have their rows elsewhere: position_ids (3, B, L)."""
    return all(
        value.shape == shape if isinstance(value, torch.Tensor) else _is_plain(value)
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
    """An encoder's output with its tensors in host memory. Anything else in it, such as a key-value
    cache, is dropped: pipelines do not use it."""
    if isinstance(output, torch.Tensor):
        return output.cpu()
    if isinstance(output, dict):  # transformers' outputs are ordered dicts
        return type(output)(**{name: _to_cpu(value) for name, value in output.items()})
    if isinstance(output, tuple | list):
        return tuple(_to_cpu(value) for value in output)
    return None


def _joined(rows: Sequence[Any], device: torch.device) -> Any:
    """The rows' outputs as one batch on the device. Always a copy: a pipeline may change it."""
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
