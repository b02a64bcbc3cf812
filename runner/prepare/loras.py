"""LoRAs that cannot work with a model, seen in the headers of their files before weights load."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.errors import ModelError, Problem
from runner.model.configs import ModelConfigs
from runner.model.lora_files import LoraSpec, fetch
from runner.model.packages import is_there
from runner.model.safetensors_header import header_bytes, tensors
from runner.plan import Plan
from runner.units import install_line

__all__ = ["lora_faults"]

Shapes = Mapping[str, list[int]]

# What the names in a file say that diffusers would leave out, or change for all images → its kind.
UNUSABLE = {
    "dora_scale": "a DoRA in the form of other programs",
    "hada_w1": "a LoHa",
    "lokr_w1": "a LoKr",
    "query_norm.scale": "a control LoRA, which changes norms",
    "norm_added_q.": "a control LoRA, which changes norms",
}
MARKS = ("lora_A", "lora_B", "lora_down", "lora_up", "lora.down", "lora.up")
# Tags in a file's own words on what it was trained for.
TRAINED_FOR = ("modelspec.architecture", "ss_base_model_version", "ss_sd_model_name")


def lora_faults(plan: Plan, configs: ModelConfigs) -> Iterator[Problem]:
    """What is wrong with the manifest's LoRAs for this model, a line each. Raises ModelError and
    OfflineError for a file that is not there."""
    loras = plan.manifest.loras
    if not loras:
        return
    place = plan.root.walk(("loras",)).place
    if not is_there("peft"):
        yield Problem(place, f"loras: needs peft; install it: {install_line('peft')}")
        return
    import diffusers

    pipeline = getattr(diffusers, configs.pipeline_class, None)
    if not hasattr(pipeline, "load_lora_weights"):
        yield Problem(place, f"loras: {configs.pipeline_class} takes no LoRAs; leave them out")
        return
    for number, lora in enumerate(loras):
        if fault := _fault(lora, pipeline, configs):
            place = plan.root.walk(("loras", number)).place
            yield Problem(place, f"loras[{number}]: {lora.own_name}: {fault}")


def _fault(lora: LoraSpec, pipeline: Any, configs: ModelConfigs) -> str:
    path = fetch(lora)
    found = {name: shape for name, (_, shape) in tensors(path).items()}
    if not any(mark in name for name in found for mark in MARKS):
        kind = next((kind for mark, kind in UNUSABLE.items() if _has(found, mark)), "no LoRA")
        return f"{path.name} is {kind}; use a LoRA, with tensors such as lora_A and lora_B"
    for mark, kind in UNUSABLE.items():
        if _has(found, mark):
            return (
                f"{path.name} is {kind}; diffusers would leave a part of it out; use a plain LoRA"
            )
    try:
        layers = _as_diffusers_reads(found, pipeline, configs)
    except Exception as error:
        words = " ".join(str(error).split())[:200].rstrip(".")
        return f"{path.name} has a form that diffusers does not read ({words}){_made_for(path)}"
    fault = _misfit(layers, pipeline, configs) or _old_peft(layers)
    return f"{path.name} {fault}{_made_for(path)}" if fault else ""


def _old_peft(layers: Shapes) -> str:
    """Layers of a text encoder are loaded by transformers, which may need a newer peft."""
    from transformers.integrations.peft import MIN_PEFT_VERSION
    from transformers.utils.peft_utils import check_peft_version

    if any(name.startswith("text_encoder") for name in layers):
        try:
            check_peft_version(min_version=MIN_PEFT_VERSION)
        except ValueError:
            return f"has layers of the text encoder, which need peft {MIN_PEFT_VERSION} or later"
    return ""


def _has(names: Shapes, mark: str) -> bool:
    return any(mark in name for name in names)


def _as_diffusers_reads(found: Shapes, pipeline: Any, configs: ModelConfigs) -> Shapes:
    """The shapes by diffusers' own names: its converter is run on tensors of these shapes that
    share one number, so that they take no memory."""
    import torch
    from diffusers.configuration_utils import FrozenDict

    one = torch.ones(())
    stand_ins = {name: one.expand(shape) for name, shape in found.items()}
    of_unet = {"unet_config": FrozenDict(configs.config)} if configs.denoiser == "unet" else {}
    read = pipeline.lora_state_dict(stand_ins, **of_unet)
    named = read[0] if isinstance(read, tuple) else read
    return {name: [*tensor.shape] for name, tensor in named.items() if hasattr(tensor, "shape")}


def _misfit(layers: Shapes, pipeline: Any, configs: ModelConfigs) -> str:
    """Layers that the model does not have, or of other sizes; "" where all fit."""
    parts = {name: _shapes_of(configs, name) for name in _loadable(pipeline, configs)}
    missing, count = list[str](), 0
    for name, shape in layers.items():
        layer, factor = _layer_of(name)
        if not factor:
            continue
        count += 1
        part, _, inner = layer.partition(".")
        own = parts.get(part, {}).get(inner)
        if own is None:
            missing.append(layer)
        elif shape[0 if factor == "B" else 1] != own[0 if factor == "B" else 1]:
            size, wanted = (each[0 if factor == "B" else 1] for each in (shape, own))
            return f"does not fit: {layer} is {size} wide there, and {wanted} in this model"
    if missing:
        of = f"{len({*missing})} of its layers, such as {missing[0]}"
        return f"was made for another model, or a part is missing here: this model has not {of}"
    return "" if count else "has no layer that diffusers would use"


def _layer_of(name: str) -> tuple[str, str]:
    """`transformer.blocks.0.attn.to_q.lora_A.weight` → the layer, and which factor it is: A (rank,
    in) or B (out, rank)."""
    for mark, factor in (
        (".lora_A.", "A"),
        (".lora_B.", "B"),
        (".lora.down.", "A"),
        (".lora.up.", "B"),
        ("_lora.down.", "A"),
        ("_lora.up.", "B"),
        (".lora_linear_layer.down.", "A"),
        (".lora_linear_layer.up.", "B"),
    ):
        layer, found, _ = name.partition(mark)
        if found:
            return layer.replace(".processor.", "."), factor
    return "", ""


def _loadable(pipeline: Any, configs: ModelConfigs) -> list[str]:
    return [name for name in pipeline._lora_loadable_modules if name in configs.networks]


def _shapes_of(configs: ModelConfigs, component: str) -> dict[str, list[int]]:
    """Layer → the shape of its weight, from the config alone."""
    from runner.strategies.estimate.sizes import empty

    found = empty(configs, component).state_dict()
    return {
        name.removesuffix(".weight"): [*tensor.shape]
        for name, tensor in found.items()
        if name.endswith(".weight")
    }


def _made_for(path: Path) -> str:
    """What the file itself says of the model that it was trained for."""
    try:
        tags = json.loads(header_bytes(path)).get("__metadata__", {})
    except (OSError, ValueError) as error:  # it was read a moment ago
        raise ModelError(f"{path}: {error}") from None
    said = next((str(tags[tag])[:60] for tag in TRAINED_FOR if tags.get(tag)), "")
    return f"; the file says that it was trained for {said}" if said else "; use one for this model"
