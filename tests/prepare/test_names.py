"""Misspelt and foreign parameters are refused by `plan`, which proposes the right name."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from runner.cli import main
from runner.errors import ExitCode

TYPOS = [
    ("StableDiffusionPipeline", "negative_promt", "negative_prompt"),
    ("StableDiffusionPipeline", "guidence_scale", "guidance_scale"),
    ("StableDiffusionPipeline", "true_cfg_scale", "guidance_scale"),
    ("StableDiffusionPipeline", "num_inference_step", "num_inference_steps"),
    ("StableDiffusionXLPipeline", "orignal_size", "original_size"),
    ("StableDiffusionXLPipeline", "crop_coords_top_left", "crops_coords_top_left"),
    ("StableDiffusionXLPipeline", "denoising_ends", "denoising_end"),
    ("StableDiffusionXLPipeline", "clipskip", "clip_skip"),
    ("StableDiffusion3Pipeline", "skip_guidance_layer", "skip_guidance_layers"),
    ("StableDiffusion3Pipeline", "negative_prompt2", "negative_prompt_2"),
    ("StableDiffusion3Pipeline", "cfg_scale", "guidance_scale"),
    ("FluxPipeline", "true_cfg", "true_cfg_scale"),
    ("FluxPipeline", "sigma", "sigmas"),
    ("FluxPipeline", "max_sequence_len", "max_sequence_length"),
    ("QwenImagePipeline", "true_cfg_scales", "true_cfg_scale"),
    ("QwenImagePipeline", "negativ_prompt", "negative_prompt"),
    ("QwenImagePipeline", "cfg_scale", "true_cfg_scale"),
    ("PixArtAlphaPipeline", "clean_captions", "clean_caption"),
    ("PixArtAlphaPipeline", "resolution_binning", "use_resolution_binning"),
    ("PixArtAlphaPipeline", "mask_feature", ""),  # looked for, but never read
    ("SanaPipeline", "complex_human_instructions", "complex_human_instruction"),
    ("SanaPipeline", "num_inferencesteps", "num_inference_steps"),
    ("HiDreamImagePipeline", "prompt3", "prompt_3"),
    ("HiDreamImagePipeline", "guidance_scal", "guidance_scale"),
    ("HunyuanDiTPipeline", "guidance_rescal", "guidance_rescale"),
    ("HunyuanDiTPipeline", "targetsize", "target_size"),
    ("HunyuanImagePipeline", "guidance_scale", "distilled_guidance_scale"),
    ("Lumina2Pipeline", "system_promt", "system_prompt"),
    ("Lumina2Pipeline", "cfg_trunc", "cfg_trunc_ratio"),
    ("Kandinsky3Pipeline", "hieght", "height"),
    ("LDMTextToImagePipeline", "widht", "width"),
    ("WuerstchenCombinedPipeline", "prior_guidance", "prior_guidance_scale"),
]


@pytest.fixture
def refusal(
    tmp_path: Path,
    manifest: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., str]:
    """What `plan` says of a manifest that it refuses; empty where it does not. The model's folder
    has no weights."""
    monkeypatch.setattr("runner.model.files.check_files", lambda spec, folder: None)

    def found(pipeline: str, name: str, value: object) -> str:
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        (folder / "model_index.json").write_text(json.dumps({"_class_name": pipeline}))
        Image.new("RGB", (8, 8)).save(tmp_path / "in.png")
        path = manifest(model=str(folder), parameters={name: value}, prompts=["a cat"])
        code = main(["plan", str(path)])
        assert code in (ExitCode.COMPLETE, ExitCode.REFUSED)
        return capsys.readouterr().err.strip() if code == ExitCode.REFUSED else ""

    return found


@pytest.mark.parametrize(("pipeline", "typo", "right"), TYPOS)
def test_a_misspelt_name(refusal: Callable[..., str], pipeline: str, typo: str, right: str) -> None:
    found = refusal(pipeline, typo, 1)
    assert f"job.yaml:1: parameters: {pipeline} takes no {typo}" in found
    assert f"did you mean {right}?" in found if right else "did you mean" not in found


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("image", "in.png", "takes no image; add pipeline: image-to-image"),
        ("strength", 0.5, "takes no strength; add pipeline: image-to-image"),
        ("ip_adapter_image", "in.png", "gets no ip_adapter_image here"),
        ("cross_attention_kwargs", {"scale": 1.0}, "takes cross_attention_kwargs, but a manifest"),
        ("scheduler", "euler", "scheduler is no argument of the call; write it beside"),
        ("foo", "bar", "takes no foo"),
        ("self", 1, "self is set by the runner"),
        ("callback", [1.0], "callback is set by the runner"),
        ("callback_steps", 1, "callback_steps is set by the runner"),
    ],
)
@pytest.mark.parametrize("pipeline", ["StableDiffusionPipeline", "StableDiffusionXLPipeline"])
def test_what_a_call_with_kwargs_would_swallow(
    refusal: Callable[..., str], pipeline: str, name: str, value: object, words: str
) -> None:
    assert words in refusal(pipeline, name, value)


@pytest.mark.parametrize(
    ("pipeline", "words"),
    [
        ("WanPipeline", "makes videos; use a model that makes images from texts, or from"),
        ("FluxFillPipeline", "needs image, an input image; add image: FILE"),
        ("FluxFillPipeline", "needs mask_image, an input image; add mask_image: FILE"),
        ("StableCascadeDecoderPipeline", "needs image_embeddings, which a manifest cannot give"),
        ("StableVideoDiffusionPipeline", "makes videos"),
        ("MarigoldDepthPipeline", "takes no prompt"),
        ("FluxPriorReduxPipeline", "makes an image's embedding for another pipeline"),
        ("ShapEPipeline", "makes 3-D shapes"),
        ("VersatileDiffusionPipeline", "has no call that makes images"),
        ("FluxPipelin", "has no FluxPipelin"),
    ],
)
def test_pipelines_of_another_kind(refusal: Callable[..., str], pipeline: str, words: str) -> None:
    assert words in refusal(pipeline, "height", 512)


def test_a_parameter_without_which_a_pipeline_makes_nothing(refusal: Callable[..., str]) -> None:
    pipeline = "StableDiffusionAttendAndExcitePipeline"
    assert f"{pipeline} needs token_indices: list[int]" in refusal(pipeline, "eta", 0.0)
    assert refusal(pipeline, "token_indices", [2, 5]) == ""
