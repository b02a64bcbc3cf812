"""Bytes of weights, counted on models that have shapes but no numbers."""

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from runner.errors import ModelError
from runner.model.configs import ModelConfigs, divisors

__all__ = ["empty", "tensor_parallel_degrees", "tensor_parallel_shares"]


def tensor_parallel_degrees(configs: ModelConfigs) -> list[int]:
    """The degrees that divide the heads and every planned weight block of the transformer."""
    return [*_shard_specs(configs, empty(configs, configs.denoiser), divisors(configs.heads or 1))]


def tensor_parallel_shares(
    configs: ModelConfigs, degrees: Iterable[int], dtype: str
) -> dict[int, int]:
    """Degree → bytes of one rank's share of the transformer, for those of the degrees that divide
    it. Modulation and norms are whole on every rank, so this is more than the whole divided by the
    degree."""
    model = empty(configs, configs.denoiser)
    return {
        degree: _share(model, specs, degree, dtype)
        for degree, specs in _shard_specs(configs, model, degrees).items()
    }


def _shard_specs(
    configs: ModelConfigs, model: Any, degrees: Iterable[int]
) -> dict[int, Mapping[str, Any]]:
    """Degree → the weights that are divided, and how, for the degrees that divide the model."""
    from diffusers.hooks.tensor_parallel import resolve_tp_shard_specs

    found = {}
    for degree in degrees:
        if (configs.heads or 1) % degree == 0:
            with contextlib.suppress(ValueError):
                found[degree] = resolve_tp_shard_specs(model, model._tp_plan, degree)
    return found


def _share(model: Any, specs: Mapping[str, Any], degree: int, dtype: str) -> int:
    import torch

    in_float32 = set(model._keep_in_fp32_modules or ())
    total = 0
    for name, weight in model.state_dict().items():
        spec = specs.get(name)
        count = weight.numel() // (degree if spec is not None and spec.dim is not None else 1)
        kind = weight.dtype
        if kind.is_floating_point:
            kind = torch.float32 if in_float32 & set(name.split(".")) else getattr(torch, dtype)
        total += count * kind.itemsize
    return total


def empty(configs: ModelConfigs, name: str) -> Any:
    """A component with shapes but no numbers. Raises ModelError."""
    import torch

    model_class = configs.class_of(name)
    config = configs.config_of(name)
    try:
        with torch.device("meta"):
            if hasattr(model_class, "from_config"):
                return model_class.from_config(config)
            return model_class(model_class.config_class.from_dict(config))
    except Exception as error:  # a class may raise anything for a config that is not its own
        config_file = configs.folder / name / "config.json"
        raise ModelError(
            f"{config_file}: makes no {model_class.__name__}: {error}; download the model again"
        ) from None
