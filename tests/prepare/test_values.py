"""Values that only the scheduler, the text encoder or the code of a class cannot take: each of them
would fail every image, after the weights were loaded."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import tiny
from support.launch import pixels

from runner.errors import ExitCode, ModelError
from runner.launch.stop import Stop
from runner.launch.world import World
from runner.manifest.load import load
from runner.model.configs import ModelConfigs
from runner.plan import Plan
from runner.prepare.preflight import check
from runner.prepare.rank import Job
from runner.run import run


@pytest.fixture
def fault(tmp_path: Path, plan: Callable[..., Plan]) -> Callable[..., str]:
    """What `check` says of parameters, for a class whose parts have these configs."""

    def found(pipeline: str, parts: dict[str, Any], **parameters: Any) -> str:
        index = {name: ["transformers", entry[0]] for name, entry in parts.items()}
        (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": pipeline, **index}))
        for name, (_, config) in parts.items():
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "config.json").write_text(json.dumps(config))
        try:
            configs = ModelConfigs.read(tmp_path)
            check(plan(model=str(tmp_path), parameters=parameters, prompts=["a"]), configs)
        except ModelError as error:
            return str(error).partition("parameters: ")[2]
        return ""

    return found


@pytest.mark.parametrize("values", [[0.2, 0.9], [1.0, 1.0], [0.9, 0.5, 0.6]])
def test_steps_that_do_not_follow_each_other(
    fault: Callable[..., str], values: list[float]
) -> None:
    for name in ("sigmas", "timesteps"):
        found = fault("StableDiffusionPipeline", {}, **{name: values})
        assert found == f"{name}: each step has less noise than the one before; order them so"


def test_steps_without_noise(fault: Callable[..., str]) -> None:
    assert fault("FluxPipeline", {}, sigmas=[1.0, 0.5]) == ""
    for values in ([1.0, 0.0], [1.0, -0.5]):
        assert fault("FluxPipeline", {}, sigmas=values).startswith("sigmas: must be over 0")
    assert fault("StableDiffusionPipeline", {}, timesteps=[999, 0]) == ""
    assert "over 0" in fault("StableDiffusionPipeline", {}, timesteps=[999, -1])


def test_layers_that_a_clip_encoder_does_not_have(fault: Callable[..., str]) -> None:
    small, large = ({"num_hidden_layers": layers} for layers in (12, 32))
    one = {"text_encoder": ("CLIPTextModel", small)}
    assert fault("StableDiffusionPipeline", one, clip_skip=12) == ""
    for skip in (13, 1000, -1):
        found = fault("StableDiffusionPipeline", one, clip_skip=skip)
        assert found == f"clip_skip {skip}: the text encoder allows 0 to 12"
    two = {**one, "text_encoder_2": ("CLIPTextModelWithProjection", large)}
    assert fault("StableDiffusionXLPipeline", two, clip_skip=11) == ""
    assert "allows 0 to 11" in fault("StableDiffusionXLPipeline", two, clip_skip=12)


def test_layers_that_a_transformer_does_not_take(fault: Callable[..., str]) -> None:
    parts = {
        "text_encoder": ("Qwen3ForCausalLM", {"num_hidden_layers": 36, "hidden_size": 2560}),
        "transformer": ("Flux2Transformer2DModel", {"joint_attention_dim": 7680}),
    }
    name = "text_encoder_out_layers"
    assert fault("Flux2KleinPipeline", parts, **{name: [9, 18, 36]}) == ""
    found = fault("Flux2KleinPipeline", parts, **{name: [9, 18]})
    assert found == f"{name}: the transformer takes 3 layers, not 2"
    found = fault("Flux2KleinPipeline", parts, **{name: [9, 18, 37]})
    assert found == f"{name}: the text encoder has 36 layers; use 0 to 36"


def test_more_noise_than_a_step_takes_away(fault: Callable[..., str]) -> None:
    assert fault("StableDiffusionPipeline", {}, eta=1) == ""
    for eta in (1.5, 32, -3.0):
        assert fault("StableDiffusionPipeline", {}, eta=eta).endswith("use 0 to 1")


def test_what_a_class_fails_with(fault: Callable[..., str]) -> None:
    assert fault("PixArtSigmaPAGPipeline", {}, pag_adaptive_scale=0.0) == ""
    found = fault("PixArtSigmaPAGPipeline", {}, pag_adaptive_scale=0.5)
    assert found == "pag_adaptive_scale: PixArtSigmaPAGPipeline fails with it; leave it out"
    assert fault("StableDiffusionPAGPipeline", {}, pag_adaptive_scale=0.5) == ""


def test_clip_skip_works(tmp_path: Path, manifest: Callable[..., Path]) -> None:
    """Stable Diffusion looks for a part of the text encoder that it has no more."""
    model = tiny.save("StableDiffusionPipeline", tmp_path / "model")
    fast = {"height": 32, "width": 32, "num_inference_steps": 2}
    skips = [{"prompt": "a cat", "parameters": {"clip_skip": skip}} for skip in (1, 2)]
    path = manifest(model=str(model), seed={"fixed": 1}, parameters=fast, prompts=["a cat", *skips])
    job = Job(load(path), tmp_path / "out")
    assert run(job, World(), Stop(20)) == ExitCode.COMPLETE
    assert len(set(pixels(job.output).values())) == 3
