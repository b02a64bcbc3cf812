"""The LoRAs of a loaded pipeline, and their weights for each image.

All are loaded once, beside the model. Another set of them, or other weights, is then a matter of
flags and factors in the layers; nothing is loaded again.
"""

from collections.abc import Mapping
from typing import Any

from runner.manifest.schema import Manifest
from runner.model.lora_files import fetch
from runner.model.text_memory import TextMemory
from runner.plan import canonical

__all__ = ["Adapters", "fuse", "load_loras", "set_weights"]

Weights = Mapping[str, float]


def load_loras(pipe: Any, manifest: Manifest) -> None:
    """Load the LoRAs of a manifest into a plain pipeline; none of them has an effect yet."""
    for lora in manifest.loras:
        path = fetch(lora)
        pipe.load_lora_weights(
            str(path.parent),
            weight_name=path.name,
            adapter_name=lora.own_name,
            local_files_only=True,
        )
    if manifest.loras:
        set_weights(pipe, {})


def set_weights(pipe: Any, weights: Weights) -> None:
    """Give the LoRAs of a pipeline these weights; those that are not named have no effect."""
    if weights:
        pipe.enable_lora()
        pipe.set_adapters([*weights], [*weights.values()])
    else:
        pipe.disable_lora()


def fuse(pipe: Any, weights: Weights) -> None:
    """Add the LoRAs to the weights of the model, for good: it is as fast as without them."""
    set_weights(pipe, weights)
    pipe.fuse_lora(components=_parts(pipe))
    pipe.unload_lora_weights()


class Adapters:
    """Switches the weights between the images of a pipeline."""

    def __init__(self, pipe: Any, texts: TextMemory) -> None:
        self.pipe = pipe
        self._texts = texts
        parts = _parts(pipe)
        self._is_loaded = bool(parts)
        self._changes_texts = any(name.startswith("text_encoder") for name in parts)
        self._now: Weights = {}

    def use(self, weights: Weights) -> None:
        """Where all images have one set, which is fused, there is nothing to do."""
        if not self._is_loaded or weights == self._now:
            return
        set_weights(self.pipe, weights)
        self._now = weights
        if self._changes_texts:
            self._texts.made_with = canonical(weights)


def _parts(pipe: Any) -> list[str]:
    """The components that have LoRAs."""
    names = getattr(pipe, "_lora_loadable_modules", ())
    return [name for name in names if getattr(getattr(pipe, name, None), "peft_config", None)]
