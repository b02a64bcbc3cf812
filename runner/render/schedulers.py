"""The schedulers of a loaded pipeline: the model's own, and those that stand in for it."""

from collections.abc import Callable, Mapping
from typing import Any

from runner.model.schedulers import name_and_options
from runner.plan import canonical

__all__ = ["Schedulers", "set_scheduler"]

Value = str | Mapping[str, Any] | None


class Schedulers:
    """Each is made once, from the config of the model's own; `watch` is called with a new one."""

    def __init__(self, pipe: Any, watch: Callable[[Any], None]) -> None:
        self.pipe = pipe
        self._watch = watch
        own = getattr(pipe, "scheduler", None)
        self._known: dict[str, Any] = {canonical(None): own}
        self._own = type(own).__name__

    def use(self, value: Value) -> None:
        """Give the pipeline this scheduler; None is the model's own."""
        key = canonical(value)
        if value is not None and key not in self._known:
            self._known[key] = _made(self._known[canonical(None)], value)
            self._watch(self._known[key])
        if getattr(self.pipe, "scheduler", None) is not self._known[key]:
            self.pipe.scheduler = self._known[key]

    def name_of(self, value: Value) -> str:
        """Its class."""
        return self._own if value is None else name_and_options(value)[0]


def set_scheduler(pipe: Any, value: Value) -> None:
    """Give a plain pipeline this scheduler, as diffusers' own documents do."""
    if value is not None:
        pipe.scheduler = _made(pipe.scheduler, value)


def _made(own: Any, value: str | Mapping[str, Any]) -> Any:
    import diffusers

    name, options = name_and_options(value)
    return getattr(diffusers, name).from_config(own.config, **options)
