"""How a manifest names LoRAs, and their weights for each prompt."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, JsonValue

from runner.model.lora_files import LoraSpec
from runner.settings import ShortForm

__all__ = ["Loras", "Weights", "check_weights", "merged_weights"]


def _check_names(loras: list[LoraSpec]) -> list[LoraSpec]:
    names = [lora.own_name for lora in loras]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"two have the name {twice}; give each its own, as in name: {twice}_2")
    return loras


def check_weights(weights: Mapping[str, JsonValue]) -> None:
    """Raises ValueError."""
    for name, weight in weights.items():
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not (is_number and math.isfinite(weight)):  # type: ignore[arg-type]
            raise ValueError(f"{name}: the weight of a LoRA is a number, not {weight!r:.60}")


def _checked(weights: dict[str, float]) -> dict[str, float]:
    check_weights(weights)
    return weights


Loras = Annotated[list[Annotated[LoraSpec, ShortForm("id")]], AfterValidator(_check_names)]
Weights = Annotated[dict[str, float], AfterValidator(_checked)]


def merged_weights(loras: Sequence[LoraSpec], *over: Any) -> dict[str, float]:
    """The weights of an image, in the order of the manifest: its own over those of all, LoRA by
    LoRA. Those of weight 0 are left out. Raises KeyError for a name that no LoRA has."""
    weights = {lora.own_name: lora.weight for lora in loras}
    for own in over:
        for name, weight in (own or {}).items():
            if name not in weights:
                raise KeyError(name)
            weights[name] = weight
    return {name: weight for name, weight in weights.items() if weight}
