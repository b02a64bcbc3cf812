"""Which combinations a test proves right: data, with the test of each line."""

from typing import NamedTuple

__all__ = ["CP_MODELS", "PROVEN", "TP_MODELS", "Proven", "remarks"]

# Classes that diffusers 0.42.1 has a plan for (a test reads them there).
CP_MODELS = (
    "ChronoEditTransformer3DModel",
    "Flux2Transformer2DModel",
    "FluxTransformer2DModel",
    "HeliosTransformer3DModel",
    "LTX2VideoTransformer3DModel",
    "LTXVideoTransformer3DModel",
    "MiniMaxH3Transformer3DModel",
    "QwenImageTransformer2DModel",
    "WanTransformer3DModel",
)
TP_MODELS = (
    "Flux2Transformer2DModel",
    "FluxTransformer2DModel",
    "QwenImage21Transformer2DModel",
    "QwenImageTransformer2DModel",
)


class Proven(NamedTuple):
    """With this strategy and attention backend the model's images are those of one process."""

    model: str  # the transformer's class
    variant: str
    backend: str
    proof: str  # a test


_PROOF = "tests/strategies/test_parallel.py::test_images_equal_one_process"
_MODELS = ("FluxTransformer2DModel", "QwenImageTransformer2DModel")
PROVEN = tuple(
    Proven(model, variant, "native", f"{_PROOF}[{model}-{variant}]")
    for model in _MODELS
    for variant in ("ulysses", "ring", "unified", "tensor")
) + tuple(
    Proven(
        model,
        f"para_attn {variant}",
        "native",
        f"tests/strategies/test_engines.py::test_para_attn_equals_one_process[{model}-{variant}]",
    )
    for model in _MODELS
    for variant in ("ulysses", "ring", "unified")
)


def remarks(model: str, variant: str, backend: str) -> list[str]:
    """A warning, or nothing where a test proves the combination."""
    if any(proven[:3] == (model, variant, backend) for proven in PROVEN):
        return []
    return [
        f"{variant} with {model} and attention backend {backend} is not proved right by a test; "
        f"compare one image first: --self-check"
    ]
