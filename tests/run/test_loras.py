"""LoRAs with weights for all prompts, for one, through a sweep: as diffusers makes them."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FluxPipeline
from peft import LoraConfig, get_peft_model_state_dict
from PIL import Image
from support.bench import Bench
from support.launch import lines, pixels
from support.launches import Launcher

from runner.cli import main
from runner.demo import LORA_DIR, MODEL_DIR, PARAMETERS
from runner.errors import ExitCode
from runner.folder.png import read_text

STEPS = {"num_inference_steps": 2}
TEXT = "a red heart on a white background"
PAIR: list[dict[str, Any]] = [
    {"id": "demo", "file": "sepia.safetensors", "weight": 0.8},
    {"id": "other.safetensors", "weight": 0},
]
# A prompt's own weights → those of its image.
SETS: list[tuple[dict[str, float], dict[str, float]]] = [
    ({}, {"sepia": 0.8}),
    ({"sepia": 0}, {}),
    ({"other": 1.0}, {"sepia": 0.8, "other": 1.0}),
    ({"sepia": 0, "other": -0.5}, {"other": -0.5}),
    ({}, {"sepia": 0.8}),  # again, after others
]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another LoRA for the demo model: of random numbers, with another rank and other layers."""
    torch.manual_seed(0)
    pipe = FluxPipeline.from_pretrained(MODEL_DIR)
    layers = ["to_q", "to_v", "ff.net.2"]
    config = LoraConfig(r=2, lora_alpha=4, init_lora_weights=False, target_modules=layers)
    pipe.transformer.add_adapter(config)
    folder = tmp_path_factory.mktemp("loras")
    FluxPipeline.save_lora_weights(
        folder,
        transformer_lora_layers=get_peft_model_state_dict(pipe.transformer),
        transformer_lora_adapter_metadata={"r": 2, "lora_alpha": 4, "target_modules": layers},
        weight_name="other.safetensors",
    )
    return folder / "other.safetensors"


@pytest.fixture
def demo(bench: Bench, other: Path, tmp_path: Path) -> Bench:
    shutil.copy(other, tmp_path)
    bench.values |= {"model": "demo", "parameters": STEPS, "loras": PAIR, "seed": {"fixed": 3}}
    bench.values["output"] = str(bench.output)
    bench.values["prompts"] = [{"prompt": TEXT, "loras": own} for own, _ in SETS]
    return bench


def plain(other: Path, sets: list[Mapping[str, float]]) -> list[Any]:
    """By diffusers alone, with the adapters that its documents show."""
    pipe = FluxPipeline.from_pretrained(MODEL_DIR)
    pipe.set_progress_bar_config(disable=True)
    for file in (LORA_DIR / "sepia.safetensors", other):
        pipe.load_lora_weights(str(file.parent), weight_name=file.name, adapter_name=file.stem)
    images = []
    for weights in sets:
        if weights:
            pipe.enable_lora()
            pipe.set_adapters([*weights], [*weights.values()])
        else:
            pipe.disable_lora()
        generator = torch.Generator().manual_seed(3)
        images += pipe(TEXT, **{**PARAMETERS, **STEPS}, generator=generator).images
    return images


def apart(folder: Path, expected: list[Any]) -> int:
    """The largest difference of a byte, over all images."""
    found = [np.asarray(Image.open(path), np.int16) for path in sorted(folder.glob("*.png"))]
    pairs = zip(found, expected, strict=True)
    return max(int(np.abs(image - np.asarray(other, np.int16)).max()) for image, other in pairs)


def test_two_loras_with_weights_of_their_own_for_each_prompt(
    demo: Bench, ranks: Launcher, other: Path, tmp_path: Path
) -> None:
    assert demo.run() is ExitCode.COMPLETE
    expected = plain(other, [weights for _, weights in SETS])
    assert apart(demo.output, expected) <= 1
    assert len({image.tobytes() for image in expected}) == 4
    made = lines(demo.output / "metadata.jsonl")
    assert [line["parameters"].get("loras", {}) for line in made] == [w for _, w in SETS]
    assert len({line["fingerprint"] for line in made}) == 4

    one, two, path = tmp_path / "one", tmp_path / "two", demo.write(**demo.values)
    assert ranks(1, path, "--output", one, folder=tmp_path).codes == [0]
    assert ranks(2, path, "--output", two, folder=tmp_path).codes == [0, 0]
    assert pixels(two) == pixels(one)  # both on one thread a process


def test_a_killed_run_goes_on(demo: Bench, ranks: Launcher, tmp_path: Path) -> None:
    path, one, other = demo.write(**demo.values), tmp_path / "one", tmp_path / "killed"
    assert ranks(1, path, "--output", one, folder=tmp_path).codes == [0]
    whole = pixels(one)
    ended = ranks(
        1, path, "--output", other, patches=["support.patches:die_at_third_image"], folder=tmp_path
    )
    assert ended.codes == [-9]
    assert 0 < len(pixels(other)) < len(whole)
    assert ranks(1, path, "--output", other, folder=tmp_path).codes == [0]
    assert pixels(other) == whole


def test_one_set_for_all_is_fused_and_context_parallel_makes_the_same(
    demo: Bench, ranks: Launcher, other: Path, tmp_path: Path
) -> None:
    demo.values |= {"prompts": [TEXT], "loras": [{**PAIR[0]}, {**PAIR[1], "weight": 0.5}]}
    assert demo.run() is ExitCode.COMPLETE
    expected = plain(other, [{"sepia": 0.8, "other": 0.5}])
    assert apart(demo.output, expected) <= 1

    demo.values["strategy"] = {"kind": "context_parallel", "ulysses_degree": 2}
    demo.values["prompts"] = [TEXT, {"prompt": TEXT, "loras": {"sepia": 0.1}}]  # not fused
    path, two = demo.write(**demo.values), tmp_path / "two"
    assert ranks(2, path, "--output", two, folder=tmp_path).codes == [0, 0]
    assert apart(two, [*expected, *plain(other, [{"sepia": 0.1, "other": 0.5}])]) <= 1


def test_weights_from_a_sweep_and_from_a_column(demo: Bench, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(
        f'prompt,loras\n{TEXT},\n{TEXT},"{{""other"": 0.5}}"\n', encoding="utf-8"
    )
    demo.values |= {"prompts": {"file": "list.csv"}, "sweep": {"product": {"sepia": [0, 1]}}}
    tasks = demo.plan()["tasks"]
    assert [task["parameters"].get("loras", {}) for task in tasks] == [
        {},
        {"sepia": 1},
        {"other": 0.5},
        {"sepia": 1, "other": 0.5},
    ]
    demo.values["sweep"] = {"product": {"loras": [{}, {"other": 0.25}]}}
    tasks = demo.plan()["tasks"]
    assert [task["parameters"]["loras"] for task in tasks][:2] == [
        {"sepia": 0.8},
        {"sepia": 0.8, "other": 0.25},
    ]


def test_what_counts_is_its_content_not_its_name(demo: Bench, tmp_path: Path) -> None:
    """A copy of another name makes nothing anew; another content under that name does."""
    copy = tmp_path / "style.safetensors"
    shutil.copy(LORA_DIR / "sepia.safetensors", copy)
    demo.values |= {"prompts": [TEXT], "loras": [PAIR[0]]}
    assert demo.run() is ExitCode.COMPLETE
    demo.values["loras"] = [{"id": "style.safetensors", "weight": 0.8}]
    assert demo.plan()["finished"] == 1
    shutil.copy(tmp_path / "other.safetensors", copy)
    assert demo.plan()["finished"] == 0


def test_an_image_makes_itself_again(
    demo: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "style.safetensors"
    shutil.copy(LORA_DIR / "sepia.safetensors", copy)
    demo.values |= {"prompts": [TEXT], "loras": [{"id": "style.safetensors"}, PAIR[1]]}
    assert demo.run() is ExitCode.COMPLETE
    image = demo.output / "000000.png"
    assert main(["remake", str(image), "--output", str(tmp_path / "again")]) == 2
    assert "with a LoRA in a local file, style.safetensors; name it" in capsys.readouterr().err
    words = ["--set", f"loras.style={copy}", "--output", str(tmp_path / "again")]
    assert main(["remake", str(image), *words]) == 0
    assert f"exact, beside {image}" in capsys.readouterr().out
    wrong = ["--set", f"loras.style={tmp_path / 'other.safetensors'}"]
    assert main(["remake", str(image), *wrong]) == 2
    assert "loras.style: is not the LoRA that made" in capsys.readouterr().err


def test_an_image_says_what_its_loras_are(demo: Bench) -> None:
    demo.values |= {"prompts": [TEXT], "loras": [PAIR[0]]}
    assert demo.run() is ExitCode.COMPLETE
    found = json.loads((read_text(demo.output / "000000.png") or {})["loras"])
    assert found["sepia"]["id"] == "demo"
    assert found["sepia"]["file"] == "sepia.safetensors"
    assert len(found["sepia"]["contents"]) == 64
