"""A scheduler in place of the model's own: for all prompts, for one, through a sweep."""

import json
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from diffusers import StableDiffusionPipeline
from PIL import Image
from support import tiny
from support.bench import Bench
from support.launch import lines, pixels
from support.launches import Launcher

from runner.cli import main
from runner.errors import ExitCode
from runner.folder.png import read_text

KARRAS = {"name": "DPMSolverMultistepScheduler", "use_karras_sigmas": True}
# One draws noise at each step; one is the model's own.
SWEPT: list[Any] = ["EulerAncestralDiscreteScheduler", KARRAS, None]
CALL = {"height": 32, "width": 32, "num_inference_steps": 3, "guidance_scale": 4.0}
TEXTS = ["a fox", "the moon over a green hill"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("StableDiffusionPipeline", tmp_path_factory.mktemp("models") / "sd")


def swept(bench: Bench, model: Path) -> Path:
    bench.values |= {
        "model": str(model),
        "parameters": CALL,
        "prompts": TEXTS,
        "batch_size": 2,
        "output": str(bench.output),
        "sweep": {"product": {"scheduler": SWEPT}},
    }
    return bench.write(**bench.values)


def plain(model: Path) -> list[Any]:
    """The same images by diffusers alone, as its documents exchange a scheduler."""
    pipe = StableDiffusionPipeline.from_pretrained(model, dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    own, images = pipe.scheduler, []
    for text in TEXTS:
        for value in SWEPT:
            options = {"name": value} if isinstance(value, str) else dict(value or {})
            name = options.pop("name", type(own).__name__)
            pipe.scheduler = getattr(diffusers, name).from_config(own.config, **options)
            generator = torch.Generator("cpu").manual_seed(3 + len(images))
            images += pipe(text, **CALL, generator=generator).images
    return images


def test_three_schedulers_in_one_sweep_are_those_of_diffusers(
    bench: Bench, model: Path, ranks: Launcher, tmp_path: Path
) -> None:
    path = swept(bench, model)
    assert bench.run() is ExitCode.COMPLETE
    made = lines(bench.output / "metadata.jsonl")
    expected = plain(model)
    for line, picture in zip(made, expected, strict=True):
        image = np.asarray(Image.open(bench.output / line["file_name"]), np.int16)
        assert np.abs(image - np.asarray(picture, np.int16)).max() <= 1, line["scheduler"]
    assert len({picture.tobytes() for picture in expected}) == 6
    own = json.loads((model / "scheduler/scheduler_config.json").read_text())["_class_name"]
    names = ["EulerAncestralDiscreteScheduler", "DPMSolverMultistepScheduler", own]
    assert [line["scheduler"] for line in made] == names * 2
    assert made[1]["parameters"]["scheduler"] == KARRAS
    assert made[1]["sweep"] == {"scheduler": KARRAS}
    assert "scheduler" not in made[2]["parameters"]
    assert len({line["fingerprint"] for line in made}) == 6
    shown = (read_text(bench.output / "000001.png") or {})["parameters"]
    assert "Sampler: DPMSolverMultistepScheduler, Schedule type: Karras" in shown

    two = tmp_path / "two"
    assert ranks(2, path, "--output", two, folder=tmp_path).codes == [0, 0]
    assert pixels(two) == pixels(bench.output)


def test_one_prompt_has_its_own_and_the_image_makes_itself_again(
    bench: Bench, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "list.csv"
    cell = json.dumps(KARRAS).replace('"', '""')
    table.write_text(f'prompt,scheduler\na fox,\na fox,"{cell}"\na fox,DDIMScheduler\n')
    bench.values |= {
        "model": str(model),
        "parameters": CALL,
        "prompts": {"file": "list.csv"},
        "scheduler": "EulerDiscreteScheduler",
        "seed": {"fixed": 5},
    }
    assert bench.run() is ExitCode.COMPLETE
    made = lines(bench.output / "metadata.jsonl")
    names = ["EulerDiscreteScheduler", "DPMSolverMultistepScheduler", "DDIMScheduler"]
    assert [line["scheduler"] for line in made] == names

    again = ["remake", str(bench.output / "000001.png"), "--set", f"model={model}"]
    assert main([*again, "--output", str(tmp_path / "again")]) == 0
    assert capsys.readouterr().out.endswith(f"exact, beside {bench.output / '000001.png'}\n")


def test_another_scheduler_is_another_image_and_the_refusal_says_which(
    bench: Bench, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.values |= {"model": str(model), "parameters": CALL, "prompts": ["a fox"]}
    assert bench.run() is ExitCode.COMPLETE
    path = bench.write(**{**bench.values, "scheduler": "DDIMScheduler"})
    assert main([str(path), "--output", str(bench.output)]) == ExitCode.REFUSED
    assert 'scheduler "DDIMScheduler", not given before' in capsys.readouterr().err
