"""How a manifest names a scheduler: `DDIMScheduler`, or `{name: DDIMScheduler, eta: 0.5}`."""

import json
from typing import Any

from pydantic import ConfigDict, Field, JsonValue, model_validator

from runner.settings import Settings, Text

__all__ = ["SchedulerSpec", "scheduler_value"]


class SchedulerSpec(Settings):
    """A scheduler in place of the model's own. It takes the values of the model's scheduler; all
    keys but `name` are options of its own class, which override them."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)

    name: Text = Field(
        description="a scheduler of diffusers; all other keys here are its options, as in "
        "use_karras_sigmas",
        examples=["DPMSolverMultistepScheduler"],
    )

    @model_validator(mode="after")
    def _is_json(self) -> "SchedulerSpec":
        for name, value in self.__pydantic_extra__.items():
            try:
                json.dumps({name: value}, ensure_ascii=False, allow_nan=False).encode()
            except ValueError:  # a lone surrogate is one, too
                raise ValueError(f"{name!r} has a value that no file can hold") from None
        return self

    @property
    def value(self) -> str | dict[str, Any]:
        """As tasks and records have it: the name alone where there are no options."""
        options = self.__pydantic_extra__
        return {"name": self.name, **options} if options else self.name


def scheduler_value(value: JsonValue) -> str | dict[str, Any] | None:
    """A value of a sweep, in that form; None for the model's own scheduler. Raises ValueError."""
    if value is None:
        return None
    if isinstance(value, str):
        return SchedulerSpec(name=value).value
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        return SchedulerSpec.model_validate(value).value
    raise ValueError(f"scheduler must be a name, or {{name: …}}, not {json.dumps(value)[:80]}")
