"""Sizes that a pipeline would ignore, round or replace are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from diffusers.pipelines.hunyuandit import pipeline_hunyuandit

from runner.errors import ModelError
from runner.model.configs import ModelConfigs
from runner.model.sizes import HUNYUAN_SHAPES, _hunyuan
from runner.plan import Plan
from runner.prepare.preflight import check

VAE = {"block_out_channels": [8, 8, 8, 8]}  # 8 pixels a latent


@pytest.fixture
def fault(tmp_path: Path, plan: Callable[..., Plan]) -> Callable[..., str]:
    """What `check` says of parameters, for a pipeline class and its denoiser's config."""

    def found(pipeline: str, config: dict[str, Any], **parameters: Any) -> str:
        for name, values in (("vae", VAE), ("transformer", config)):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "config.json").write_text(json.dumps(values))
        index = {"_class_name": pipeline, "transformer": ["diffusers", "A"]}
        (tmp_path / "model_index.json").write_text(json.dumps(index))
        try:
            made = plan(model=str(tmp_path), parameters=parameters, prompts=["a"])
            check(made, ModelConfigs.read(tmp_path))
        except ModelError as error:
            return str(error).partition("parameters: ")[2]
        return ""

    return found


@pytest.mark.parametrize(
    ("pipeline", "config", "multiple"),
    [
        ("ZImagePipeline", {"all_patch_size": [2]}, 16),
        ("Lumina2Pipeline", {}, 16),
        ("QwenImagePipeline", {}, 16),
        ("QwenImage21Pipeline", {}, 32),
        ("CogView4Pipeline", {}, 16),
        ("StableDiffusionXLPipeline", {}, 8),
        ("StableDiffusion3Pipeline", {"patch_size": 2}, 16),
        ("HunyuanDiTPipeline", {}, 16),
        ("Krea2Pipeline", {"patch_size": 2}, 16),
        ("Kandinsky3Pipeline", {}, 64),
        ("StableCascadeCombinedPipeline", {}, 128),
    ],
)
def test_multiples(
    fault: Callable[..., str], pipeline: str, config: dict[str, Any], multiple: int
) -> None:
    high = 1024 + multiple // 2
    found = fault(pipeline, config, height=high, width=1024)
    assert f"height {high}: " in found
    assert f"needs a multiple of {multiple}; use 1024 or {1024 + multiple}" in found
    assert fault(pipeline, config, height=1024, width=1024) == ""


def test_a_lone_side(fault: Callable[..., str]) -> None:
    found = fault("StableDiffusionPipeline", {}, height=96)
    assert found == "StableDiffusionPipeline ignores a height without a width; give both"
    found = fault("StableDiffusionPipeline", {}, height=None, width=96)
    assert found == "StableDiffusionPipeline ignores a width without a height; give both"
    assert fault("StableDiffusionPipeline", {}, height=96, width=64) == ""
    assert fault("StableDiffusionXLPipeline", {}, height=96) == ""


@pytest.mark.parametrize("pipeline", ["HunyuanDiTPipeline", "HunyuanDiTPAGPipeline"])
def test_sizes_that_are_binned(fault: Callable[..., str], pipeline: str) -> None:
    found = fault(pipeline, {}, height=512, width=512)
    assert found == (
        f"width × height: with {pipeline} 512 × 512 becomes 1024 × 1024; "
        "write use_resolution_binning: false"
    )
    assert "1024 × 800 becomes 1024 × 768" in fault(pipeline, {}, height=800, width=1024)
    assert fault(pipeline, {}, height=512, width=512, use_resolution_binning=False) == ""
    assert fault(pipeline, {}, height=1024, width=768) == ""


def test_binning_is_that_of_hunyuandit() -> None:
    assert set(HUNYUAN_SHAPES) == set(pipeline_hunyuandit.SUPPORTED_SHAPE)
    for height, width in ((512, 512), (800, 1024), (2048, 1024), (1264, 1280), (96, 640)):
        wide, high = pipeline_hunyuandit.map_to_standard_shapes(width, height)
        assert _hunyuan(height, width, 8, {})[0] == (high, wide)


@pytest.mark.parametrize("pipeline", ["PixArtSigmaPipeline", "SanaPipeline", "PRXPipeline"])
def test_sizes_that_are_made_in_another_and_resized(
    fault: Callable[..., str], pipeline: str
) -> None:
    assert fault(pipeline, {"patch_size": 2}, height=100, width=100) == ""
    found = fault(pipeline, {"patch_size": 2}, height=100, width=96, use_resolution_binning=False)
    assert found.startswith("without resolution binning, height and width must be multiples of")


def test_pipelines_that_keep_the_area(fault: Callable[..., str]) -> None:
    found = fault("HiDreamImagePipeline", {}, height=512, width=512)
    assert "512 × 512 becomes 1024 × 1024; use width 1024, height 1024" in found
    assert fault("HiDreamImagePipeline", {}, height=1024, width=1024) == ""
    found = fault("FluxKontextPipeline", {}, height=512, width=768)
    assert found.endswith("; write max_area: 393216")
    assert fault("FluxKontextPipeline", {}, height=512, width=768, max_area=393216) == ""
