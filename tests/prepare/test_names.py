"""Misspelt and foreign parameters are refused by `plan`, which proposes the right name."""

import json
from collections.abc import Callable
from pathlib import Path

import diffusers
import pytest

from runner.cli import main
from runner.errors import ExitCode
from runner.model.signature import pipeline_call

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
    tmp_path: Path, manifest: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """What `plan` says of a manifest that it refuses; empty where it does not."""

    def found(pipeline: str, name: str, value: object) -> str:
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        (folder / "model_index.json").write_text(json.dumps({"_class_name": pipeline}))
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
        ("image", "in.png", "gets no image here: images are made from texts alone; leave it out"),
        ("strength", 0.5, "gets no strength here: images are made from texts alone; leave it out"),
        ("ip_adapter_image", "in.png", "gets no ip_adapter_image here"),
        ("cross_attention_kwargs", {"scale": 1.0}, "takes cross_attention_kwargs, but a manifest"),
        ("scheduler", "euler", "takes no scheduler"),
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


def test_what_calls_read_from_their_kwargs() -> None:
    """Nothing but the callbacks that the runner sets itself. Another name that a newer diffusers
    reads would be accepted."""
    found = {}
    for name in dir(diffusers):
        call = pipeline_call(name) if name.endswith("Pipeline") else None
        if call is not None and call.node.args.kwarg:
            found[name] = call.rest
    assert len(found) >= 35
    assert {key for read in found.values() for key in read} == {
        "callback",
        "callback_steps",
        "prior_callback",
        "prior_callback_steps",
    }
    lines = Path(diffusers.pipelines.stable_diffusion.__path__[0]) / "pipeline_stable_diffusion.py"
    line = found["StableDiffusionPipeline"]["callback"]
    assert 'kwargs.pop("callback"' in lines.read_text().splitlines()[line - 1]
