"""What is read from a pipeline's source is what its class says; faulty parameters are refused."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import diffusers
import pytest
import yaml

from runner.errors import ManifestError, ModelError
from runner.manifest.load import load
from runner.model.configs import ModelConfigs
from runner.model.signature import pipeline_call
from runner.plan import Plan
from runner.prepare.preflight import _finite_number, _hint, check


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
    found = pipeline_call(name)
    real = inspect.signature(getattr(diffusers, name).__call__).parameters
    assert found is not None
    names = tuple(n for n, p in real.items() if p.kind is not p.VAR_KEYWORD)
    assert ("self", *found.arguments) == names


def test_no_such_class() -> None:
    assert pipeline_call("FluxPipelin") is None
    assert pipeline_call("") is None


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


@pytest.fixture
def fault(tmp_path: Path, plan: Callable[..., Plan]) -> Callable[..., str]:
    """What `check` says of one prompt's parameters, for a pipeline class."""

    def found(pipeline: str, **parameters: Any) -> str:
        (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": pipeline}))
        prompts = ["a cat", {"prompt": "a dog", "parameters": parameters}]
        try:
            check(plan(model=str(tmp_path), prompts=prompts), ModelConfigs.read(tmp_path))
        except ModelError as error:
            return str(error).partition("job.yaml:1: ")[2]
        return ""

    return found


def test_the_place_of_a_fault(
    manifest: Callable[..., Path], plan: Callable[..., Plan], tmp_path: Path
) -> None:
    """File and line, of the prompt or of the parameters that it has from the manifest."""
    (tmp_path / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    (tmp_path / "list.jsonl").write_text(
        '\n"a"\n\n{"prompt": "b", "parameters": {"sigmas": 1}}\n{"prompt": "c", "seed": 7}\n'
    )
    head = f"model: {tmp_path}\nparameters:\n  height: 64\n  width: 64\nprompts:"

    def lines(prompts: str, *sets: str) -> list[str]:
        loaded = load(manifest(f"{head} {prompts}\n"), sets)
        made = Plan(loaded.manifest, loaded.prompts, loaded.root)
        with pytest.raises(ModelError) as caught:
            check(made, ModelConfigs.read(tmp_path))
        return [line.partition(f"{tmp_path}/")[2] or line for line in str(caught.value).split("\n")]

    wrong = "parameters={height: 64, eta: 1}"
    assert lines("{file: list.jsonl}", wrong) == [
        f"--set {wrong}: parameters: FluxPipeline takes no eta"
    ]
    [line] = lines("{file: list.jsonl}")
    assert line.startswith("list.jsonl:4: sigmas: FluxPipeline takes list")
    [line] = lines("\n- a\n- prompt: b\n  parameters: {sigmas: 1}")
    assert line.startswith("job.yaml:7: prompts[1]: sigmas: FluxPipeline takes list")
    [line] = lines("[a]", "parameters.sigmas=1")
    assert line.startswith("--set parameters.sigmas=1: parameters: sigmas: FluxPipeline takes list")


def test_a_line_end_in_a_name_does_not_split_the_message(fault: Callable[..., str]) -> None:
    assert fault("FluxPipeline", **{"a\nb": 1}) == r"prompts[1]: FluxPipeline takes no a\nb"


def test_the_line_of_a_seed_in_a_prompt_file(plan: Callable[..., Plan], tmp_path: Path) -> None:
    seed = 2**63 - 1
    prompt = {"prompt": "a", "seed": seed, "parameters": {"num_images_per_prompt": 2}}
    (tmp_path / "list.jsonl").write_text(f'"b"\n\n{json.dumps(prompt)}\n')
    with pytest.raises(ManifestError, match=f"list.jsonl:3: seed: {seed}: the last of 2 images"):
        plan(model="demo", prompts={"file": "list.jsonl"})


@pytest.mark.parametrize(
    ("pipeline", "limit"),
    [
        ("FluxPipeline", 512),
        ("StableDiffusion3Pipeline", 512),
        ("ChromaPipeline", 512),
        ("Lumina2Pipeline", 512),
        ("QwenImagePipeline", 1024),
        ("KolorsPipeline", 256),
    ],
)
def test_a_text_longer_than_the_pipeline_takes(
    fault: Callable[..., str], pipeline: str, limit: int
) -> None:
    assert fault(pipeline, max_sequence_length=limit) == ""
    found = fault(pipeline, max_sequence_length=limit + 1)
    assert found.startswith(f"prompts[1]: {pipeline}: ")
    assert found.endswith(f"; use max_sequence_length {limit}")


def test_other_refusals_of_a_pipeline(fault: Callable[..., str]) -> None:
    assert fault("SanaSprintPipeline", num_inference_steps=20) == (
        "prompts[1]: SanaSprintPipeline: Intermediate timesteps for SCM is not supported when "
        "num_inference_steps != 2; use num_inference_steps 2"
    )
    found = fault("SanaSprintPipeline", max_timesteps=1.5, timesteps=[1.0, 0.5, 0.0])
    assert found.endswith("; change max_timesteps or timesteps")


def test_a_check_is_that_of_the_class() -> None:
    """Word for word, and where it cannot be run without the model, nothing is said."""
    call = pipeline_call("FluxPipeline")
    stand_in = SimpleNamespace(vae_scale_factor=8, _callback_tensor_inputs=["latents"])
    with pytest.raises(ValueError, match="max_sequence_length") as caught:
        diffusers.FluxPipeline.check_inputs(
            stand_in, "a cat", None, 512, 512, max_sequence_length=600
        )
    assert call is not None
    assert call.objection({"max_sequence_length": 600}) == str(caught.value)
    asks_model = pipeline_call("PRXPipeline")
    assert asks_model is not None
    assert asks_model.objection({"guidance_scale": 0.5}) == ""


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("true_cfg_scale", "4e0", 'takes float, not "4e0"; write 4.0 for "4e0"'),
        ("true_cfg_scale", "1e+300", 'not "1e+300"; write 1.0e+300 for "1e+300"'),
        ("true_cfg_scale", "28", 'takes float, not "28"; write 28 for "28"'),
        ("true_cfg_scale", "high", 'takes float, not "high"; write a number'),
        ("true_cfg_scale", "nan", 'takes float, not "nan"; write a number'),
        ("true_cfg_scale", True, "takes float, not true; write a number"),
        ("true_cfg_scale", [4.0], "takes float, not [4.0]; write a number"),
        ("sigmas", [1.0, "4e-1"], 'not [1.0, "4e-1"]; write 0.4 for "4e-1"'),
        ("sigmas", 1.0, "takes list[float] | None, not 1.0; write a list"),
    ],
)
def test_a_value_of_another_type(
    fault: Callable[..., str], name: str, value: Any, words: str
) -> None:
    found = fault("FluxPipeline", **{name: value})
    assert found.startswith(f"prompts[1]: {name}: FluxPipeline ")
    assert found.endswith(words)


@pytest.mark.parametrize("value", ["yes", 1])
def test_a_value_that_is_not_true_or_false(fault: Callable[..., str], value: Any) -> None:
    found = fault("SanaPipeline", clean_caption=value)
    assert found.endswith(f"takes bool, not {json.dumps(value)}; write true or false")


def test_values_that_a_pipeline_takes(fault: Callable[..., str]) -> None:
    assert fault("FluxPipeline", guidance_scale=4, true_cfg_scale=1.5, sigmas=[1, 0.5]) == ""
    assert fault("StableDiffusionXLPipeline", original_size=[64, 64], clip_skip=1) == ""
    assert fault("SanaPipeline", clean_caption=False, negative_prompt="fog") == ""


def test_null_where_a_pipeline_looks_for_it(fault: Callable[..., str]) -> None:
    assert fault("SanaPipeline", complex_human_instruction=None) == ""
    assert fault("SanaSprintPipeline", intermediate_timesteps=None, num_inference_steps=4) == ""
    assert fault("StableDiffusionPipeline", negative_prompt=None, height=None, width=None) == ""
    found = fault("StableDiffusionPipeline", guidance_scale=None)
    assert found.endswith("takes float, not null; leave it out, or write a number")
    for name in ("num_inference_steps", "guidance_scale"):  # HunyuanDiT's annotations are wrong
        assert "not null" in fault("HunyuanDiTPipeline", **{name: None})


@pytest.mark.parametrize("text", ["1e+300", "-1e300", "1e-7", "4e0", "28", "1.5e3", "1e16", "7e22"])
def test_a_number_that_is_proposed_is_one_for_yaml(text: str) -> None:
    assert yaml.safe_load(_finite_number(text)) == float(text)


@pytest.fixture
def with_scheduler(tmp_path: Path, plan: Callable[..., Plan]) -> Callable[..., str]:
    """What `check` says of parameters, for Stable Diffusion with a scheduler."""

    def found(scheduler: str, **parameters: Any) -> str:
        index = {"_class_name": "StableDiffusionPipeline", "scheduler": ["diffusers", scheduler]}
        (tmp_path / "model_index.json").write_text(json.dumps(index))
        (tmp_path / "scheduler").mkdir(exist_ok=True)
        config = tmp_path / "scheduler" / "scheduler_config.json"
        config.write_text(json.dumps({"_class_name": scheduler, "num_train_timesteps": 1000}))
        try:
            made = plan(model=str(tmp_path), parameters=parameters, prompts=["a"])
            check(made, ModelConfigs.read(tmp_path))
        except ModelError as error:
            return str(error).partition("parameters: ")[2]
        return ""

    return found


def test_what_a_scheduler_does_not_take(with_scheduler: Callable[..., str]) -> None:
    assert with_scheduler("DDIMScheduler", num_inference_steps=1000) == ""
    assert with_scheduler("PNDMScheduler", num_inference_steps=1001) == (
        "num_inference_steps 1001: PNDMScheduler was trained with 1000; use 1000 or fewer"
    )
    assert with_scheduler("DDIMScheduler", timesteps=[999, 500]).startswith(
        "timesteps: DDIMScheduler takes none; leave them out"
    )
    assert "sigmas: DDIMScheduler takes none" in with_scheduler("DDIMScheduler", sigmas=[1.0])
    assert with_scheduler("EulerDiscreteScheduler", timesteps=[999, 500.5]) == ""
    assert with_scheduler("EulerDiscreteScheduler", timesteps=[]).startswith(
        "timesteps: must not be empty"
    )
    both = {"timesteps": [999], "sigmas": [1.0]}
    assert "exclude each other" in with_scheduler("EulerDiscreteScheduler", **both)
    assert with_scheduler("MyOwnScheduler", timesteps=[1]) == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clip_skip", 1.5),
        ("original_size", [64]),
        ("original_size", [64, 64.5]),
        ("original_size", [[64, 64]]),
        ("crops_coords_top_left", 0),
    ],
)
def test_numbers_and_lists_that_do_not_fit(
    fault: Callable[..., str], name: str, value: Any
) -> None:
    found = fault("StableDiffusionXLPipeline", **{name: value})
    assert found.startswith(f"prompts[1]: {name}: StableDiffusionXLPipeline takes ")
