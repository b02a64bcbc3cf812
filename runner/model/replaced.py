"""Attributes of one object replaced for a while."""

import contextlib
from collections.abc import Iterator
from typing import Any

__all__ = ["replaced"]


@contextlib.contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """The owner has these attributes; afterwards those of its own that it had before."""
    before = {name: value for name, value in vars(owner).items() if name in values}
    for name, value in values.items():
        object.__setattr__(owner, name, value)  # a module of torch would register what it can
    try:
        yield
    finally:
        for name in values:
            if name in before:
                object.__setattr__(owner, name, before[name])
            else:
                object.__delattr__(owner, name)
