"""The picture is the one that the pipeline itself calls so, of the size that was asked for."""

from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image as PILImage
from support.families import deepfloyd_if, kandinsky_3

from runner.launch.stop import Stop
from runner.plan import Task
from runner.render.picture import as_tensor, output_type_of, to_pixels
from runner.render.pipeline import Pipeline
from runner.render.results import Failure, Image, Result
from runner.strategies import DataParallel

SMALL = {"height": 64, "width": 64, "num_inference_steps": 2}
PROMPTS = ("a cat", "a red fox in the snow", "the moon")


def rendered(pipe: Any, count: int = 3, **options: Any) -> list[Result]:
    renderer = Pipeline(
        pipe,
        device=torch.device("cpu"),
        dtype="float32",
        strategy=DataParallel(),
        stop=Stop(20),
        **{name: options.pop(name) for name in ("on_flagged",) if name in options},
    )
    tasks = [Task(i, i, PROMPTS[i], i, {**SMALL, **options}) for i in range(count)]
    return [result for task in tasks for result in renderer.render([task]).results]


def plain(pipe: Any, index: int, **options: Any) -> np.ndarray:
    generator = torch.Generator("cpu").manual_seed(index)
    image = pipe(PROMPTS[index], generator=generator, **{**SMALL, **options}).images[0]
    return np.asarray(image)


@pytest.mark.parametrize("make", [deepfloyd_if, kandinsky_3])
def test_pictures_are_those_of_the_pipeline_itself(make: Any) -> None:
    """These pipelines give tensors from -1 to 1, without watermark."""
    options = {"clean_caption": False} if make is deepfloyd_if else {}
    expected = [plain(make(), index, **options) for index in range(3)]
    for result, image in zip(rendered(make(), **options), expected, strict=True):
        assert isinstance(result, Image), result
        assert np.array_equal(result.pixels, image)


def test_tensors_are_asked_of_pipelines_that_make_the_same_picture_of_them(flux: Path) -> None:
    assert output_type_of(diffusers.FluxPipeline.from_pretrained(flux)) == "pt"
    assert output_type_of(deepfloyd_if()) == "pil"
    assert output_type_of(kandinsky_3()) == "pil"
    assert output_type_of(object()) == "pil"


def unsafe(images: Any, **_: Any) -> tuple[Any, list[bool], list[bool]]:
    return images, [True] * len(images), [False] * len(images)


@pytest.mark.parametrize(("policy", "kind"), [("fail", "flagged"), ("skip", "skipped")])
def test_what_the_checker_of_deepfloyd_finds_is_flagged(policy: str, kind: str) -> None:
    def checked(**options: Any) -> Result:
        pipe = deepfloyd_if()
        pipe.run_safety_checker = lambda image, device, dtype: unsafe(image)
        return rendered(pipe, 1, clean_caption=False, **options)[0]

    kept = checked()
    assert isinstance(kept, Image)
    assert kept.made["flagged"] == "safety checker"
    judged = checked(on_flagged=policy)
    assert isinstance(judged, Failure)
    assert (judged.kind, judged.error) == (kind, "flagged: safety checker")


def test_a_picture_of_what_is_not_finite_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = deepfloyd_if()
    step = type(pipe.scheduler).step

    def broken(scheduler: Any, *given: Any, generator: Any = None, **named: Any) -> list[Any]:
        return [step(scheduler, *given, generator=generator, **named)[0] * float("nan")]

    monkeypatch.setattr(type(pipe.scheduler), "step", broken)
    (result,) = rendered(pipe, 1, clean_caption=False)
    assert isinstance(result, Failure)
    assert (result.kind, result.error) == (
        "non-finite",
        "the image has values that are not finite",
    )


# Cases 7 and 52.
@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "asked for width 64 and height 64, but the pipeline made 16 × 16 (width × height)"),
        ({"width": None}, "asked for height 64, but"),
        ({"width": 16}, "asked for height 64, but"),
    ],
)
def test_another_size_than_asked_is_a_failure(flux: Path, asked: Any, words: str) -> None:
    pipe = diffusers.FluxPipeline.from_pretrained(flux)
    pipe.set_progress_bar_config(disable=True)
    call = pipe.image_processor.postprocess
    pipe.image_processor.postprocess = lambda image, **how: call(image[..., :16, :16], **how)
    parameters = {**SMALL, "max_sequence_length": 16, **asked}
    given = {name: value for name, value in parameters.items() if value is not None}
    renderer = Pipeline(
        pipe, device=torch.device("cpu"), dtype="float32", strategy=DataParallel(), stop=Stop(20)
    )
    (result,) = renderer.render([Task(0, 0, "a cat", 0, given)]).results
    assert isinstance(result, Failure)
    assert result.kind == "wrong-size"
    assert result.error.startswith(words)
    assert ("give both height and width" in result.error) == ("width" not in given)


def test_channels_and_range_are_checked() -> None:
    grey = PILImage.new("L", (8, 4), 200)
    assert to_pixels(as_tensor([grey], 1))[0].shape == (1, 4, 8, 3)
    assert to_pixels(as_tensor([PILImage.new("RGBA", (8, 4))], 1))[0].shape == (1, 4, 8, 4)
    assert to_pixels(as_tensor(torch.zeros(2, 1, 4, 8), 2))[0].shape == (2, 4, 8, 3)
    with pytest.raises(TypeError, match="5 channels"):
        as_tensor(torch.zeros(1, 5, 4, 8), 1)
    with pytest.raises(TypeError, match="are I;16, neither"):
        as_tensor([PILImage.new("I;16", (8, 4))], 1)
    for wrong in (None, [], [grey], torch.zeros(1, 3, 2, 4, 8), [[grey, grey]]):
        with pytest.raises(TypeError, match="one image a prompt"):
            as_tensor(wrong, 2)
    with pytest.raises(ValueError, match="values from -1 to 1, not 0 to 1"):
        to_pixels(torch.linspace(-1, 1, 96).reshape(1, 3, 4, 8))
    pixels, finite = to_pixels(torch.tensor([[0.0], [float("inf")]]).reshape(2, 1, 1, 1))
    assert (pixels.max(), finite) == (0, [True, False])
