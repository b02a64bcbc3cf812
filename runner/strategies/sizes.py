"""How many bytes a rank's share of the weights is: counted on a model without weights."""

import importlib
from typing import Any

from runner.errors import ModelError
from runner.model.configs import ModelFacts, divisors

__all__ = ["empty", "tensor_parallel_bytes", "tensor_parallel_degrees"]


def tensor_parallel_degrees(facts: ModelFacts) -> list[int]:
    """The degrees that divide the heads and every planned weight block of the transformer."""
    from diffusers.hooks.tensor_parallel import resolve_tp_shard_specs

    model = empty(facts, facts.denoiser)
    valid = []
    for degree in divisors(facts.heads or 1):
        try:
            resolve_tp_shard_specs(model, model._tp_plan, degree)
        except ValueError:
            continue
        valid.append(degree)
    return valid


def tensor_parallel_bytes(facts: ModelFacts, degree: int, dtype: str) -> int:
    """Bytes of one rank's share of the transformer. Modulation and norms are whole on every rank,
    so this is more than the whole divided by the degree."""
    import torch
    from diffusers.hooks.tensor_parallel import resolve_tp_shard_specs

    model = empty(facts, facts.denoiser)
    specs = resolve_tp_shard_specs(model, model._tp_plan, degree)
    whole = set(model._keep_in_fp32_modules or ())
    total = 0
    for name, weight in model.state_dict().items():
        spec = specs.get(name)
        count = weight.numel() // (degree if spec is not None and spec.dim is not None else 1)
        kind = weight.dtype
        if kind.is_floating_point:
            kind = torch.float32 if whole & set(name.split(".")) else getattr(torch, dtype)
        total += count * kind.itemsize
    return total


def empty(facts: ModelFacts, name: str) -> Any:
    """A component with shapes alone. Raises ModelError."""
    import torch

    library, class_name = facts.index[name]
    model_class = getattr(importlib.import_module(library), class_name)
    config = facts.config_of(name)
    try:
        with torch.device("meta"):
            if library == "diffusers":
                return model_class.from_config(config)
            return model_class(model_class.config_class.from_dict(config))
    except Exception as error:  # whatever a class makes of a config that is none of its own
        raise ModelError(
            f"{facts.folder / name / 'config.json'}: makes no {class_name}: {error}; download the "
            f"model again"
        ) from None
