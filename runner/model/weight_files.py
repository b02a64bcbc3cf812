"""Which of a component's weight files its load reads, by their names alone."""

import re
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["PICKLES", "WEIGHTS", "WeightFile", "index_name", "to_read", "weight_files"]

PICKLES = (".bin", ".ckpt", ".pt", ".pth", ".pkl")
WEIGHTS = (*PICKLES, ".safetensors")

# model.safetensors, model-00001-of-00002.safetensors, model.fp16.safetensors, and both ways to name
# a variant's shard: model.fp16-00001-of-00002.safetensors, model-00001-of-00002.fp16.safetensors.
NAME = re.compile(
    r"(?P<base>diffusion_pytorch_model|pytorch_model|model)"
    r"(?P<shard>-\d{5}-of-\d{5})?"
    r"(?:\.(?P<variant>(?!\d{5}-of)[\w-]+?)(?P<own_shard>-\d{5}-of-\d{5})?)?"
    r"(?P<suffix>\.safetensors|\.bin)"
)


class WeightFile(NamedTuple):
    name: str  # without its folder
    base: str
    suffix: str
    variant: str | None
    is_shard: bool


def weight_files(names: Iterable[str], component: str) -> list[WeightFile]:
    """The weight files of a component, under names that a load looks for. `names` are paths from
    the model's folder."""
    found = []
    for name in sorted(names):
        folder, _, file = name.partition("/")
        if folder == component and (match := NAME.fullmatch(file)):
            is_shard = bool(match["shard"] or match["own_shard"])
            found.append(
                WeightFile(file, match["base"], match["suffix"], match["variant"], is_shard)
            )
    return found


def to_read(
    files: Iterable[WeightFile], variant: str | None, *, allow_pickle: bool = False
) -> list[WeightFile]:
    """Those that a load reads: the variant's where there are any, as diffusers does it for each
    component on its own; safetensors before pickles."""
    known = [*files]
    of_variant = [file for file in known if variant is not None and file.variant == variant]
    plain = [file for file in known if file.variant is None]
    chosen = of_variant or plain
    safe = [file for file in chosen if file.suffix == ".safetensors"]
    return safe or (chosen if allow_pickle else [])


def index_name(file: WeightFile) -> str:
    """The index that names a shard: model.safetensors.index.json, with the variant before .json."""
    variant = f".{file.variant}" if file.variant else ""
    return f"{file.base}{file.suffix}.index{variant}.json"
