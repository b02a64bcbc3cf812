"""Parameters without effect get one remark each, and equal pictures too."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.model.configs import ModelConfigs
from runner.plan import Plan
from runner.prepare.effects import without_effect


@pytest.fixture
def remarks(tmp_path: Path, plan: Callable[..., Plan]) -> Callable[..., list[str]]:
    """The remarks on parameters, for a pipeline class and its denoiser's config."""

    def found(pipeline: str, config: dict[str, Any], **parameters: Any) -> list[str]:
        folder = "transformer" if pipeline.startswith(("Flux", "Qwen", "Hunyuan")) else "unet"
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "config.json").write_text(json.dumps(config))
        index = {"_class_name": pipeline, folder: ["diffusers", "A"], "is_distilled": True}
        (tmp_path / "model_index.json").write_text(json.dumps(index))
        made = plan(model=str(tmp_path), parameters=parameters, prompts=["a", "b"])
        remarks = without_effect(made, ModelConfigs.read(tmp_path))
        return [line.partition("parameters: ")[2] for line in remarks]

    return found


CFG = "negative_prompt has no effect: {} uses it with a guidance_scale over 1 only"
TRUE_CFG = "negative_prompt has no effect: {} uses it with a true_cfg_scale over 1 only"
NO_NEGATIVE = (
    'true_cfg_scale has no effect: {} uses it with a negative_prompt only; add negative_prompt: " "'
)
UNGUIDED = "{} has no effect: this model was trained to do without"


@pytest.mark.parametrize(
    ("pipeline", "config", "parameters", "remark"),
    [
        ("StableDiffusionPipeline", {}, {"negative_prompt": "fog", "guidance_scale": 1}, CFG),
        ("StableDiffusionPipeline", {}, {"negative_prompt": "fog"}, ""),  # 7.5 by default
        ("StableDiffusionPipeline", {}, {"guidance_scale": 1}, ""),
        (
            "StableDiffusionXLPipeline",
            {"time_cond_proj_dim": 256},
            {"negative_prompt": "fog"},
            "negative_prompt has no effect: the model is distilled",
        ),
        ("PixArtSigmaPipeline", {}, {"negative_prompt": "fog", "guidance_scale": 1.0}, CFG),
        ("FluxPipeline", {"guidance_embeds": True}, {"negative_prompt": "fog"}, TRUE_CFG),
        ("FluxPipeline", {"guidance_embeds": True}, {"true_cfg_scale": 4}, NO_NEGATIVE),
        ("FluxPipeline", {"guidance_embeds": True}, {"guidance_scale": 3.5}, ""),
        (
            "FluxPipeline",
            {"guidance_embeds": False},
            {"guidance_scale": 3.5},
            UNGUIDED.format("guidance_scale"),
        ),
        ("FluxPipeline", {"guidance_embeds": False}, {"guidance_scale": 0.0}, ""),
        ("QwenImagePipeline", {"guidance_embeds": False}, {"true_cfg_scale": 4.0}, NO_NEGATIVE),
        (
            "QwenImagePipeline",
            {"guidance_embeds": False},
            {"true_cfg_scale": 4.0, "negative_prompt": " "},
            "",
        ),
        ("QwenImagePipeline", {"guidance_embeds": False}, {}, ""),
        (
            "QwenImagePipeline",
            {"guidance_embeds": False},
            {"guidance_scale": 9},
            UNGUIDED.format("guidance_scale"),
        ),
        ("Flux2KleinPipeline", {}, {"guidance_scale": 4}, UNGUIDED.format("guidance_scale")),
        (
            "HunyuanImagePipeline",
            {"guidance_embeds": False},
            {"distilled_guidance_scale": 3.25},
            UNGUIDED.format("distilled_guidance_scale"),
        ),
    ],
)
def test_parameters_without_effect(
    remarks: Callable[..., list[str]],
    pipeline: str,
    config: dict[str, Any],
    parameters: dict[str, Any],
    remark: str,
) -> None:
    wanted = [remark.format(pipeline)] if remark else []
    assert remarks(pipeline, config, **parameters) == wanted


def test_equal_pictures(plan: Callable[..., Plan], flux: Path) -> None:
    counts = {"num_images_per_prompt": 4}
    model = str(flux)
    made = plan(model=model, seed={"fixed": 42}, parameters=counts, prompts=["a", "b"])
    (remark,) = without_effect(made, ModelConfigs.read(flux))
    assert remark.endswith(
        "the images of a prompt are all the same with seed: {fixed: 42}; write seed: 42"
    )
    for seed, prompts in ((42, ["a"]), ({"fixed": 42}, [{"prompt": "a", "seed": 7}])):
        made = plan(model=model, seed=seed, parameters=counts, prompts=prompts)
        assert without_effect(made, ModelConfigs.read(flux)) == []
    made = plan(model=model, seed={"fixed": 42}, prompts=["a", "b"])
    assert without_effect(made, ModelConfigs.read(flux)) == []
