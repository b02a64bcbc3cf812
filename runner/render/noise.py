"""Every random number of an image comes from its own generator.

Pipelines draw the first noise from the generator that they are given, but many give none to
`scheduler.step`, which then draws from torch's default one. So each method of a scheduler that
takes a generator gets the call's. What draws from torch's default generators all the same is seeded
by the image, and makes one image a call: there the noise of one would depend on its neighbours.
"""

import contextlib
import hashlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch

from runner.render.state import is_scheduler, state_kept

__all__ = ["Noise", "SharedNoiseError"]

Generators = torch.Generator | list[torch.Generator]


class SharedNoiseError(Exception):
    """The images of one call drew from one generator."""

    def __init__(self) -> None:
        super().__init__("the model draws random numbers outside of the images' own generators")


class Noise:
    """Of the calls of one pipeline, from its schedulers and torch's default generators."""

    def __init__(self, pipe: Any, names: tuple[str, ...], device: torch.device) -> None:
        self.pipe = pipe
        self.names = names  # of its components
        self.device = device
        self.is_shared = False  # whether a call drew from one of torch's default generators
        self._generators: Generators | None = None  # of the current call
        for name in names:
            self.watch(getattr(pipe, name, None))

    @contextlib.contextmanager
    def of(self, generators: Generators) -> Iterator[None]:
        """Around a call that is given these: one, or one an image. What else the call changes is as
        before afterwards."""
        first = generators[0] if isinstance(generators, list) else generators
        self._generators = generators
        try:
            with state_kept(self.pipe, self.names), self._seeded(_other_seed(first.initial_seed())):
                yield
        finally:
            self._generators = None

    @contextlib.contextmanager
    def _seeded(self, seed: int) -> Iterator[None]:
        """torch's default generators: seeded, watched, and put back afterwards."""
        of_device = getattr(torch.get_device_module(self.device), "default_generators", ())
        defaults = [torch.default_generator, *of_device]
        before = [default.get_state() for default in defaults]
        seeded = [default.manual_seed(seed).get_state() for default in defaults]
        try:
            yield
        finally:
            after = [default.get_state() for default in defaults]
            self.is_shared |= not all(map(torch.equal, seeded, after))
            for default, state in zip(defaults, before, strict=True):
                default.set_state(state)

    def watch(self, scheduler: Any) -> None:
        """Where a scheduler's methods take a generator, but get none, they get the call's. The
        scheduler keeps its class: some calls ask for just that one."""
        if is_scheduler(scheduler):
            for name in _drawing_methods(type(scheduler)):
                object.__setattr__(scheduler, name, _Given(scheduler, name, self))

    @property
    def generators(self) -> Generators | None:
        """Of the current call."""
        return self._generators


class _Given:
    """A method of a scheduler that is given the call's generators. A copy of the scheduler has one
    of its own."""

    def __init__(self, scheduler: Any, name: str, noise: Noise) -> None:
        self.scheduler, self.name, self.noise = scheduler, name, noise
        self.method = getattr(type(scheduler), name).__get__(scheduler)
        self.__signature__ = inspect.signature(self.method)  # calls look at what it takes

    def __call__(self, *given: Any, **named: Any) -> Any:
        bound = self.__signature__.bind(*given, **named)
        if bound.arguments.get("generator") is None:
            bound.arguments["generator"] = self.noise.generators
        return self.method(*bound.args, **bound.kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Given":
        scheduler = memo.get(id(self.scheduler), self.scheduler)
        return self if scheduler is self.scheduler else _Given(scheduler, self.name, self.noise)


def _other_seed(seed: int) -> int:
    """Another than the image's own: numbers of the same seed would be its first noise again."""
    return int.from_bytes(hashlib.sha256(f"default {seed}".encode()).digest()[:8], "big")


def _drawing_methods(scheduler: Any) -> list[str]:
    """The methods of a scheduler's class that take a generator: `step` above all."""
    return [
        name
        for name, method in inspect.getmembers(scheduler, inspect.isfunction)
        if not name.startswith("_") and "generator" in inspect.signature(method).parameters
    ]
