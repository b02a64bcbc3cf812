"""A scheduler in place of a model's own, as tasks have it: a name, or `{name: …, option: …}`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from runner.model.configs import ModelConfigs

__all__ = ["name_and_options", "with_scheduler"]


def name_and_options(value: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if isinstance(value, str):
        return value, {}
    return str(value["name"]), {key: one for key, one in value.items() if key != "name"}


def with_scheduler(configs: ModelConfigs, value: str | Mapping[str, Any] | None) -> ModelConfigs:
    """The configs of the model with this scheduler; None stands for its own."""
    if value is None:
        return configs
    name, options = name_and_options(value)
    index = {**configs.index, "scheduler": ["diffusers", name]}
    return dataclasses.replace(configs, index=index, scheduler={**configs.scheduler, **options})
