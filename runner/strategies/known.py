"""What is known to be right: data, and the test that proves each line."""

from typing import NamedTuple

__all__ = ["CP_MODELS", "KNOWN", "TP_MODELS", "Known", "remarks"]

# Classes with a plan of their own in diffusers 0.42.1 (a test reads them there).
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


class Known(NamedTuple):
    """A model's transformer under a strategy with an attention backend: the image is right."""

    model: str
    variant: str
    backend: str
    proof: str  # a test


_PROOF = "tests/strategies/test_parallel.py::test_images_equal_one_process"
_MODELS = ("FluxTransformer2DModel", "QwenImageTransformer2DModel")
KNOWN = tuple(
    Known(model, variant, "native", f"{_PROOF}[{model}-{variant}]")
    for model in _MODELS
    for variant in ("ulysses", "ring", "unified", "tensor")
) + tuple(
    Known(
        model,
        f"para_attn {variant}",
        "native",
        f"tests/strategies/test_engines.py::test_para_attn_equals_one_process[{model}-{variant}]",
    )
    for model in _MODELS
    for variant in ("ulysses", "ring", "unified")
)


def remarks(model: str, variant: str, backend: str) -> list[str]:
    """A warning for what no test proves."""
    if any(known[:3] == (model, variant, backend) for known in KNOWN):
        return []
    return [
        f"{variant} with {model} and attention backend {backend} was not proved right here; "
        f"compare one image first: --self-check"
    ]
