"""Pretended GPUs on a CPU build of torch: tensors that say cuda:i and hold host data.

They refuse to mix devices, as real ones do. Each device has so much memory, which can run out, and
a record of whether this process touched it: that makes a context of half a GB on a real one. What
they do not show: speed, other rounding, anything of a driver. `install` is for processes that end
with the test: `on_gpus` of tests/gpus forks them, or

    FAKE_GPUS=2 FAKE_GPU_MB=400 python tests/support/fake_accelerator.py job.yaml
"""

import collections
import contextlib
import json
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
MIB = 2**20

# Operations that take tensors of several devices.
MIXING = {
    torch.Tensor.__getitem__,
    torch.Tensor.__setitem__,
    aten._to_copy.default,
    aten.copy_.default,
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten.set_.source_Tensor,
}
# Methods that look into the data, where torch would ask the driver first.
DIRECT = {
    torch.Tensor.__bool__,
    torch.Tensor.__float__,
    torch.Tensor.__getitem__,
    torch.Tensor.__index__,
    torch.Tensor.__int__,
    torch.Tensor.__setitem__,
    torch.Tensor.contiguous,
    torch.Tensor.item,
    torch.Tensor.nonzero,
    torch.Tensor.tolist,
    torch.nn.functional.scaled_dot_product_attention,
}


@dataclass
class Devices:
    """The pretended devices of this process, and what became of them."""

    count: int = 0
    memory: int = 0  # bytes of each
    current: int = 0
    used: dict[int, int] = field(default_factory=lambda: collections.defaultdict(int))
    peak: dict[int, int] = field(default_factory=lambda: collections.defaultdict(int))
    touched: set[int] = field(default_factory=set)  # each has a context of this process

    def index_of(self, device: Any) -> int | None:
        """Of a device in any form that torch takes; None for the host."""
        if device is None or isinstance(device, int):
            return device
        device = torch.device(device) if isinstance(device, str) else device
        if device.type != "cuda":
            return None
        return self.current if device.index is None else int(device.index)

    def touch(self, index: int) -> None:
        if not 0 <= index < self.count:
            raise torch.AcceleratorError(f"CUDA error: invalid device ordinal {index}")
        self.touched.add(index)

    def allocate(self, index: int, size: int) -> None:
        self.touch(index)
        if self.used[index] + size > self.memory:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size / MIB:.2f} MiB. GPU {index} has "
                f"{self.used[index] / MIB:.1f} of {self.memory / MIB:.1f} MiB in use"
            )
        self.used[index] += size
        self.peak[index] = max(self.peak[index], self.used[index])

    def free(self, index: int, size: int) -> None:
        self.used[index] -= size

    def memory_info(self, device: Any = None) -> tuple[int, int]:
        """Free and total bytes, which the driver tells only through a context."""
        index = self._or_current(device)
        self.touch(index)
        return self.memory - self.used[index], self.memory

    def set_current(self, device: Any) -> None:
        self.touch(self._or_current(device))
        self.current = self._or_current(device)

    def used_by(self, device: Any = None) -> int:
        return self.used[self._or_current(device)]

    def peak_of(self, device: Any = None) -> int:
        return self.peak[self._or_current(device)]

    def _or_current(self, device: Any) -> int:
        index = self.index_of(device)
        return self.current if index is None else index


devices = Devices()
_allocations: "weakref.WeakValueDictionary[int, _Allocation]" = weakref.WeakValueDictionary()


class _Allocation:
    """Memory of a device, as long as a tensor holds it."""

    def __init__(self, storage: Any, index: int) -> None:
        self.size = storage.nbytes()
        devices.allocate(index, self.size)
        self._end = weakref.finalize(self, devices.free, index, self.size)


def _allocation_of(data: torch.Tensor, index: int) -> _Allocation:
    """One for all views of a storage."""
    key = data.untyped_storage()._cdata
    found = _allocations.get(key)
    if found is None:
        found = _allocations[key] = _Allocation(data.untyped_storage(), index)
    return found


class DeviceTensor(torch.Tensor):
    """A tensor that says it lies on a device; `data_` is on the host."""

    data_: torch.Tensor
    index_: int

    @staticmethod
    def __new__(cls, data: Any, index: int | None = None, requires_grad: bool = False, **_: Any):
        if index is None:  # as torch.nn.Parameter makes it anew
            return (
                data.detach() if isinstance(data, cls) else torch.nn.Parameter(data, requires_grad)
            )
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            data.size(),
            strides=data.stride(),
            storage_offset=data.storage_offset(),
            dtype=data.dtype,
            layout=data.layout,
            device=torch.device("cuda", index),
        )
        made.data_, made.index_ = data, index
        made._allocation = _allocation_of(data, index)
        return made

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __repr__(self, **_: Any) -> str:
        return f"DeviceTensor(cuda:{self.index_}, {tuple(self.shape)}, {self.dtype})"

    def data_ptr(self) -> int:
        return self.data_.data_ptr()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert cuda device type tensor to numpy. Use Tensor.cpu() first.")

    __array__ = numpy

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in DIRECT:
            return compute(func, args, kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Call an operation with the data of its tensors; what it makes lies on their device."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    ours = [tensor for tensor in tensors if isinstance(tensor, DeviceTensor)]
    if func not in MIXING:
        _refuse_to_mix(func, tensors, ours)
    target = _target(func, args, kwargs, ours)
    known = {id(t.data_) if isinstance(t, DeviceTensor) else id(t): t for t in tensors}
    plain_args, plain_kwargs = tree_map(_data_of, (args, _on_host(kwargs)))
    with _without_modes():
        found = func(*plain_args, **plain_kwargs)

    def wrapped(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(value, DeviceTensor):
            return value
        if func is aten._to_copy.default and known.get(id(value)) is args[0]:
            value = value.clone()  # the same data, on another device
        elif id(value) in known:
            return known[id(value)]  # in place
        return value if target is None else DeviceTensor(value, target)

    return tree_map(wrapped, found)


def _refuse_to_mix(func: Any, tensors: list[torch.Tensor], ours: list[DeviceTensor]) -> None:
    """Scalars on the host go with any device."""
    places = {f"cuda:{tensor.index_}" for tensor in ours}
    if ours and any(t.ndim for t in tensors if not isinstance(t, DeviceTensor)):
        places.add("cpu")
    if len(places) > 1:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, "
            f"{' and '.join(sorted(places))}! ({func})"
        )


def _target(func: Any, args: Any, kwargs: dict[str, Any], ours: list[DeviceTensor]) -> int | None:
    """The device of what an operation makes; None for the host."""
    if kwargs.get("device") is not None:
        index = devices.index_of(kwargs["device"])
        if index is not None:
            devices.touch(index)
        return index
    if func in MIXING and args:
        return args[0].index_ if isinstance(args[0], DeviceTensor) else None
    return min((tensor.index_ for tensor in ours), default=None)


def _on_host(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments as a CPU takes them; a tensor without numbers stays one."""
    is_ours = devices.index_of(kwargs.get("device")) is not None
    changed = {"device": torch.device("cpu")} if is_ours else {}
    return {**kwargs, **changed, **({"pin_memory": False} if kwargs.get("pin_memory") else {})}


def _data_of(value: Any) -> Any:
    return value.data_ if isinstance(value, DeviceTensor) else value


@contextlib.contextmanager
def _without_modes() -> Iterator[None]:
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


class _Operations(TorchDispatchMode):
    """Tensors made on a device, and moved there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        if devices.index_of(kwargs.get("device")) is None and not any(
            isinstance(leaf, DeviceTensor) for leaf in leaves
        ):
            return func(*args, **kwargs)
        return compute(func, args, kwargs)


class _Calls(TorchFunctionMode):
    """Calls that never come to the operations, since a CPU build refuses them first."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if type(kwargs.get("device")) is int:
            kwargs = {**kwargs, "device": torch.device("cuda", kwargs["device"])}
        if func is torch.device and args and type(args[0]) is int:
            return torch.device("cuda", args[0])
        if func is torch._C._nn._parse_to and args and type(args[0]) is int:
            return func(torch.device("cuda", args[0]), *args[1:], **kwargs)
        if func in (torch.tensor, torch.as_tensor, torch.asarray):
            return self._made(func, args, kwargs)
        if func is torch.Tensor.cuda:
            func, args = torch.Tensor.to, (args[0], torch.device("cuda", *args[1:]))
        if func is torch.Tensor.to:
            return self._moved(args, kwargs)
        if func is torch.Tensor.copy_ and any(isinstance(t, DeviceTensor) for t in args[:2]):
            compute(aten.copy_.default, args[:2], {})
            return args[0]
        if func in DIRECT and any(isinstance(t, DeviceTensor) for t in tree_leaves((args, kwargs))):
            return compute(func, args, kwargs)
        return func(*args, **kwargs)

    def _made(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        index = devices.index_of(kwargs.get("device"))
        if index is None:
            return func(*args, **kwargs)
        made = func(*args, **{**kwargs, "device": "cpu"})
        return aten._to_copy.default(made, device=torch.device("cuda", index))

    def _moved(self, args: Any, kwargs: dict[str, Any]) -> Any:
        tensor, *to = args
        if to and isinstance(to[0], torch.Tensor):
            return torch.Tensor.to(*args, **kwargs)
        if to and type(to[0]) is int:
            to = [torch.device("cuda", to[0]), *to[1:]]
        known = {name: value for name, value in kwargs.items() if name != "copy"}
        device, dtype, *_ = torch._C._nn._parse_to(*to, **known)
        index = devices.index_of(device)
        if index is None:
            return torch.Tensor.to(tensor, *to, **kwargs)
        device, dtype = torch.device("cuda", index), dtype or tensor.dtype
        is_there = tensor.device == device and tensor.dtype == dtype
        return tensor if is_there else aten._to_copy.default(tensor, device=device, dtype=dtype)


class _Current:
    """torch.cuda.device: another current device for a while."""

    def __init__(self, device: Any) -> None:
        self.index = devices.index_of(device)

    def __enter__(self) -> None:
        self.before = devices.current
        devices.current = self.before if self.index is None else self.index

    def __exit__(self, *_: Any) -> None:
        devices.current = self.before


class _Properties:
    name = "pretended GPU"
    major, minor = 9, 0
    multi_processor_count = 132
    gcnArchName = ""

    @property
    def total_memory(self) -> int:
        return devices.memory


def install() -> None:
    """Give this process FAKE_GPUS devices of FAKE_GPU_MB megabytes each, to its end."""
    import torch._dynamo  # these look for a real driver where they find a device
    import torch._inductor.config
    import transformers.modeling_utils

    devices.count = int(os.environ["FAKE_GPUS"])
    devices.memory = int(float(os.environ.get("FAKE_GPU_MB", "100000")) * MIB)
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
    torch._C._ensureCUDADeviceGuardSet()
    memory = {
        "empty_cache": lambda *_: None,
        "synchronize": lambda *_: None,
        "memory_allocated": devices.used_by,
        "max_memory_allocated": devices.peak_of,
    }
    _replace(
        torch.cuda,
        **memory,
        is_available=lambda: devices.count > 0,
        is_initialized=lambda: True,
        _is_compiled=lambda: True,
        _lazy_init=lambda: None,
        device_count=lambda: devices.count,
        current_device=lambda: devices.current,
        set_device=devices.set_current,
        device=_Current,
        get_device_capability=lambda *_: (9, 0),
        get_device_name=lambda *_: _Properties.name,
        get_device_properties=lambda *_: _Properties(),
        mem_get_info=devices.memory_info,
        memory_reserved=devices.used_by,
        ipc_collect=lambda: None,
        reset_peak_memory_stats=lambda *_: None,
        manual_seed_all=lambda *_: None,
        is_bf16_supported=lambda *_, **__: True,
    )
    _replace(
        torch.accelerator,
        **memory,
        is_available=lambda: devices.count > 0,
        device_count=lambda: devices.count,
        current_accelerator=lambda *_, **__: torch.device("cuda"),
        current_device_index=lambda: devices.current,
        set_device_index=devices.set_current,
        get_memory_info=devices.memory_info,
    )
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    # It allocates what the weights will need, by a call that a CPU build does not have.
    transformers.modeling_utils.caching_allocator_warmup = lambda *_, **__: None
    _Operations().__enter__()
    _Calls().__enter__()


def _replace(module: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(module, name, value)


def main(arguments: list[str]) -> int:
    """Run the command on pretended devices. What it did to them goes to stderr, and as JSON to the
    file FAKE_GPU_REPORT."""
    install()
    from runner.cli import main as run

    try:
        return run(arguments)
    finally:
        found = {
            "peak": dict(devices.peak),
            "touched": sorted(devices.touched),
            "tf32": torch.backends.cudnn.allow_tf32,
        }
        print(f"devices: {json.dumps(found)}", file=sys.stderr)
        if path := os.environ.get("FAKE_GPU_REPORT"):
            Path(path).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
