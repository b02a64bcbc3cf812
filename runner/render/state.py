"""A pipeline is after each call what it was before: no image depends on those made before it.

Calls change more than they need to: they set an attribute of the tokenizer, run the decoder in
float32 (and leave it so where they fail then), replace the scheduler or its values.
"""

import contextlib
import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

__all__ = ["dtypes_kept", "is_scheduler", "state_kept"]

PLAIN = (bool, int, float, str, type(None))  # kinds of attributes that are settings

Restore = Callable[[], None]


@contextlib.contextmanager
def state_kept(pipe: Any, names: Iterable[str]) -> Iterator[None]:
    """Around a call. Put back afterwards: the components of these names; all of a scheduler; of the
    others attributes that are settings, such as tiling; and the dtypes of the decoder."""
    components = {name: getattr(pipe, name, None) for name in names}
    restores = [_restore_components(pipe, components)]
    restores += map(_restore_values, components.values())
    with dtypes_kept(components.get("vae")):
        try:
            yield
        finally:
            for restore in restores:
                restore()


def _restore_components(pipe: Any, components: Mapping[str, Any]) -> Restore:
    def restore() -> None:
        for name, component in components.items():
            if getattr(pipe, name, None) is not component:
                setattr(pipe, name, component)

    return restore


def _restore_values(component: Any) -> Restore:
    """All that a scheduler has, or the settings of another component."""
    if is_scheduler(component):
        return _restore_scheduler(component)
    own = getattr(component, "__dict__", {})
    values = {name: value for name, value in own.items() if isinstance(value, PLAIN)}
    return lambda: own.update(values)


def is_scheduler(component: Any) -> bool:
    return hasattr(component, "step") and hasattr(component, "set_timesteps")


def _restore_scheduler(scheduler: Any) -> Restore:
    # Its lists are changed in place. What belongs to it, such as a method, is not to copy it too.
    values = copy.deepcopy(vars(scheduler), {id(scheduler): scheduler})

    def restore() -> None:
        vars(scheduler).clear()
        vars(scheduler).update(values)

    return restore


@contextlib.contextmanager
def dtypes_kept(module: Any) -> Iterator[None]:
    """Put every weight of a module back to the dtype that it has now. Some keep a few layers in
    float32, which `module.to(dtype)` would not."""
    is_module = isinstance(module, torch.nn.Module)
    weights = itertools.chain(module.parameters(), module.buffers()) if is_module else ()
    before = [(weight, weight.dtype) for weight in weights]
    try:
        yield
    finally:
        for weight, dtype in before:
            if weight.dtype != dtype:
                weight.data = weight.data.to(dtype)
