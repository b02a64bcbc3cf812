"""Signatures read from sources are those of the classes."""

import inspect

import diffusers
import pytest

from runner.preflight import _hint, call_signature


@pytest.mark.parametrize(
    "name",
    [
        "FluxPipeline",
        "Flux2Pipeline",
        "QwenImagePipeline",
        "StableDiffusionPipeline",
        "StableDiffusionXLPipeline",
        "StableDiffusion3Pipeline",
        "PixArtSigmaPipeline",
        "SanaPipeline",
        "SanaSprintPipeline",
        "KandinskyV22CombinedPipeline",
        "StableDiffusionXLInpaintPipeline",
    ],
)
def test_a_signature_is_that_of_the_class(name: str) -> None:
    found = call_signature(name)
    real = inspect.signature(getattr(diffusers, name).__call__).parameters
    assert found is not None
    assert found.names == tuple(n for n, p in real.items() if p.kind is not p.VAR_KEYWORD)
    assert found.takes_any == any(p.kind is p.VAR_KEYWORD for p in real.values())


def test_no_such_class() -> None:
    assert call_signature("FluxPipelin") is None
    assert call_signature("") is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("steps", "; its place is parameters.num_inference_steps"),
        ("ulysses_degree", "; its place is strategy: {kind: context_parallel, ulysses_degree: …}"),
        ("batch_size", "; its place is batch_size, at the top level"),
        ("hieght", "; did you mean height?"),
        ("true_cfg_scale", ""),  # a parameter, but not of this pipeline
    ],
)
def test_a_parameter_that_a_call_does_not_take(name: str, words: str) -> None:
    assert _hint(name, {"height": "height"}) == words
