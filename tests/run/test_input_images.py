"""Input images: found by name, known by content, and the images that diffusers makes from them."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from diffusers.utils import load_image
from PIL import Image
from support.bench import Bench
from support.conformance import SEED
from support.launch import FAST, lines, pixels, stamps
from support.launches import Launcher
from support.tiny.parts import filled

from runner.cli import main
from runner.errors import ExitCode, FolderError, ManifestError, ModelError, StrategyError

SIZES = {"a": (48, 48), "b": (48, 48), "c": (40, 56), "d": (48, 48)}
STRENGTH = {**FAST, "num_inference_steps": 4, "strength": 0.6}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    draw = np.random.default_rng(1)
    for name, (width, height) in SIZES.items():
        small = draw.integers(0, 255, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(small).resize((width, height)).save(folder / f"{name}.png")
        stripe = np.zeros((height, width), np.uint8)
        stripe[:, : width // 2] = 255
        Image.fromarray(stripe).save(folder / f"{name}-mask.png")
    return folder


@pytest.fixture
def edits(bench: Bench, photos: Path) -> Bench:
    """Two images of one input image each."""
    prompts = [
        {"prompt": "a cat", "image": "photos/a.png"},
        {"prompt": "a red fox", "image": "photos/b.png"},
    ]
    bench.values |= {"pipeline": "image-to-image", "parameters": STRENGTH, "prompts": prompts}
    return bench


def plain(flux: Path, folder: Path, prompts: list[dict[str, Any]], name: str) -> list[Any]:
    """By diffusers alone, one call an image."""
    pipe = getattr(diffusers, name).from_pretrained(flux, dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    made = []
    for place, prompt in enumerate(prompts):
        images = {
            key: load_image(str(folder / file)) for key, file in prompt.items() if key != "prompt"
        }
        generator = torch.Generator("cpu").manual_seed(SEED + place)
        output = pipe(prompt["prompt"], **images, **STRENGTH, generator=generator)
        made.append(np.asarray(output.images[0]).astype(np.int16))
    return made


@pytest.mark.parametrize("task", ["image-to-image", "inpaint"])
def test_images_are_those_of_plain_diffusers(
    ranks: Launcher,
    flux: Path,
    photos: Path,
    tmp_path: Path,
    manifest: Callable[..., Path],
    task: str,
) -> None:
    """One process and two, batches of one and three, of which one has images of two sizes."""
    name = {"image-to-image": "FluxImg2ImgPipeline", "inpaint": "FluxInpaintPipeline"}[task]
    prompts = [{"prompt": f"a {word} cat", "image": f"photos/{word}.png"} for word in "abcd"]
    if task == "inpaint":
        for prompt in prompts:
            prompt["mask_image"] = prompt["image"].replace(".png", "-mask.png")
    expected = plain(flux, tmp_path, prompts, name)
    values = {"model": str(flux), "pipeline": task, "seed": SEED, "parameters": STRENGTH}
    for size in (1, 3):
        path = manifest(**values, batch_size=size, prompts=prompts)
        found = []
        for world in (1, 2):
            output = tmp_path / f"out-{size}-{world}"
            assert ranks(world, path, "--output", output).codes == [0] * world
            found.append(pixels(output))
            rows = lines(output / "metadata.jsonl")
            assert [row["batch_size"] for row in rows] == ([1] * 4 if size == 1 else [3, 3, 1, 3])
        assert found[0] == found[1]
        for place, image in enumerate(expected):
            made = np.asarray(Image.open(output / f"{place:06d}.png")).astype(np.int16)
            assert np.abs(made - image).max() <= 1


def test_resume_and_changed_content(edits: Bench, photos: Path) -> None:
    assert edits.run() == ExitCode.COMPLETE
    before = stamps(edits.output)
    # Another name of the same content is the same image.
    (photos / "a.png").rename(photos / "z.png")
    edits.values["prompts"][0]["image"] = "photos/z.png"
    assert edits.run() == ExitCode.COMPLETE
    assert stamps(edits.output) == before
    shutil.copy(photos / "d.png", photos / "z.png")
    with pytest.raises(FolderError, match=r"prompts\[0\]\.photos/a\.png → |image 0"):
        edits.run()
    assert edits.run(regenerate=True) == ExitCode.COMPLETE
    after = stamps(edits.output)
    assert [name for name in after if after[name] != before[name]] == ["000000.png"]


def test_the_class_counts_for_the_fingerprint(edits: Bench) -> None:
    task = edits.plan()["tasks"][0]["fingerprint"]
    edits.values["pipeline"] = "FluxKontextPipeline"
    edits.values["parameters"] = {**FAST, "max_area": 32 * 32}
    other = edits.plan()["tasks"][0]["fingerprint"]
    assert task != other


def test_columns_and_paths_from_the_prompt_file(edits: Bench, tmp_path: Path) -> None:
    assert edits.run() == ExitCode.COMPLETE
    lists = tmp_path / "lists"
    lists.mkdir()
    rows = [{"prompt": p["prompt"], "image": f"../{p['image']}"} for p in edits.values["prompts"]]
    (lists / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = edits.plan()
    edits.values["prompts"] = {"file": "lists/list.jsonl"}
    after = edits.plan()
    assert after["places"]["stay"] == 2
    assert [t["parameters"] for t in after["tasks"]] == [t["parameters"] for t in before["tasks"]]
    assert edits.run() == ExitCode.COMPLETE


def test_a_copied_folder_needs_its_input_images(
    edits: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "list.csv").write_text("prompt,image\na cat,photos/a.png\na fox,photos/b.png\n")
    edits.values["prompts"] = {"file": "list.csv"}
    assert edits.run() == ExitCode.COMPLETE
    copy = shutil.copytree(edits.output, tmp_path / "elsewhere" / "copy")
    path = str(copy / "manifest.yaml")
    assert main(["verify", path]) == 0  # where the files still are
    shutil.move(tmp_path / "photos", tmp_path / "other" / "photos")
    assert main([path]) == 2
    assert "photos/a.png: No such file" in capsys.readouterr().err
    (copy / "000001.png").unlink()
    before = pixels(edits.output)
    assert main([path, "--set", f"inputs={tmp_path / 'other'}"]) == 0
    assert pixels(copy) == before


def test_an_image_is_made_again(
    edits: Bench, tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert edits.run() == ExitCode.COMPLETE
    image = edits.output / "000000.png"
    assert main(["remake", str(image)]) == 2  # of a model in a local folder
    model = ["--set", f"model={edits.values['model']}"]
    assert main(["remake", str(image), *model]) == 0
    assert ": exact, beside" in capsys.readouterr().out
    alone = shutil.copy(image, tmp_path / "alone.png")
    assert main(["remake", str(alone), *model]) == 2
    assert "was made from photos/a.png; name the folder" in capsys.readouterr().err
    assert main(["remake", str(alone), *model, "--set", f"inputs={tmp_path}"]) == 0
    shutil.copy(photos / "b.png", photos / "a.png")
    assert main(["remake", str(alone), *model, "--set", f"inputs={tmp_path}"]) == 2
    assert "a.png is not the image that it was made from" in capsys.readouterr().err


def test_a_file_that_breaks_off_fails_its_image_alone(edits: Bench, photos: Path) -> None:
    path = photos / "b.png"
    path.write_bytes(path.read_bytes()[:-200])
    edits.values["batch_size"] = 2
    assert edits.run() == ExitCode.FAILED
    (failure,) = lines(edits.output / "failures.jsonl")
    assert (failure["index"], failure["kind"]) == (1, "input")
    assert failure["error"].startswith("photos/b.png: cannot be read as an image: ")


def note(photos: Path) -> None:
    (photos / "a.png").write_text("no image")


def pipe(photos: Path) -> None:
    (photos / "a.png").unlink()
    os.mkfifo(photos / "a.png")


def sixteen_bits(photos: Path) -> None:
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(photos / "a.png")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (note, "photos/a.png: is no image that can be read"),
        (sixteen_bits, "photos/a.png: has more than 8 bits a colour; save it with 8"),
        (lambda photos: (photos / "a.png").unlink(), "photos/a.png: No such file or directory"),
        (pipe, "photos/a.png: is no file"),
    ],
)
def test_files_that_plan_refuses(
    edits: Bench, photos: Path, change: Callable[[Path], None], words: str
) -> None:
    change(photos)
    for act in (edits.plan, edits.run):
        with pytest.raises((ManifestError, ModelError), match=words):
            act()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"pipeline": None}, "FluxPipeline takes no image; add pipeline: image-to-image"),
        ({"pipeline": "inpaint"}, "FluxInpaintPipeline needs mask_image, an input image; add mask"),
        ({"pipeline": "FluxImg2ImagePipeline"}, "did you mean FluxImg2ImgPipeline?"),
        ({"pipeline": "WanPipeline"}, "makes videos"),
        ({"pipeline": "FluxControlNetPipeline"}, "needs controlnet, which this model lacks"),
        ({"prompts": ["a cat"]}, "FluxImg2ImgPipeline needs image, an input image; add image"),
        ({"strategy": {"kind": "device_map", "phases": True}}, "phases takes no input images"),
        (
            {"strategy": {"kind": "context_parallel", "ulysses_degree": 1}},
            "context_parallel takes no input images",
        ),
    ],
)
def test_what_plan_refuses(edits: Bench, values: dict[str, Any], words: str) -> None:
    edits.values = {key: v for key, v in {**edits.values, **values}.items() if v is not None}
    if values.get("pipeline", "") is None:
        edits.values["parameters"] = FAST
    with pytest.raises((ModelError, StrategyError), match=words):
        edits.plan()


def test_a_folder_of_images_is_paired_by_name(
    edits: Bench, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captions = tmp_path / "captions"
    captions.mkdir()
    for name in "ab":
        (captions / f"{name}.txt").write_text(f"a {name} cat")
    edits.values |= {"images": "photos", "prompts": {"file": "captions"}}
    tasks = edits.plan()["tasks"]
    assert [task["parameters"]["image"] for task in tasks] == ["photos/a.png", "photos/b.png"]
    assert edits.run() == ExitCode.COMPLETE
    before = pixels(edits.output)
    recorded = str(edits.output / "manifest.yaml")
    (edits.output / "000001.png").unlink()
    assert main([recorded]) == 0
    assert pixels(edits.output) == before
    (captions / "z.txt").write_text("a z cat")
    edits.values["prompts"] = [{"file": "captions"}, "no id"]
    with pytest.raises(ManifestError) as refused:
        edits.plan()
    assert "z.txt: image: no image is named z in the folder" in str(refused.value)
    assert "prompts[1]: image: images pairs prompts with files by their ids" in str(refused.value)
    shutil.copy(photos / "a.png", photos / "a.JPG")
    with pytest.raises(ManifestError, match=r"a.JPG and photos/a.png have one name; keep one"):
        edits.plan()


@pytest.fixture(scope="module")
def controlnet(flux: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny one for the tiny FLUX pipeline."""
    transformer = diffusers.FluxTransformer2DModel.from_pretrained(flux, subfolder="transformer")
    torch.manual_seed(1)
    net = diffusers.FluxControlNetModel.from_transformer(
        transformer, num_layers=1, num_single_layers=1, attention_head_dim=8,
        num_attention_heads=4, load_weights_from_transformer=False,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("controlnet") / "net"
    filled(net, "controlnet_|blocks", 0.3).save_pretrained(folder)
    return folder


def test_a_controlnet_beside_the_model(
    edits: Bench, flux: Path, controlnet: Path, photos: Path, tmp_path: Path
) -> None:
    own = Path(shutil.copytree(controlnet, tmp_path / "net"))
    prompts = [{"prompt": f"a {name}", "control_image": f"photos/{name}.png"} for name in "ab"]
    del edits.values["pipeline"]
    edits.values |= {
        "model": {"id": str(flux), "controlnet": "net"},
        "parameters": {**FAST, "controlnet_conditioning_scale": 1},
        "prompts": prompts,
    }
    assert edits.run() == ExitCode.COMPLETE
    net = diffusers.FluxControlNetModel.from_pretrained(controlnet)
    pipe = diffusers.FluxControlNetPipeline.from_pretrained(flux, controlnet=net)
    pipe.set_progress_bar_config(disable=True)
    for place, prompt in enumerate(prompts):
        generator = torch.Generator("cpu").manual_seed(3 + place)
        image = load_image(str(tmp_path / prompt["control_image"]))
        output = pipe(prompt["prompt"], control_image=image, **FAST, generator=generator)
        made = np.asarray(Image.open(edits.output / f"{place:06d}.png")).astype(np.int16)
        assert np.abs(made - np.asarray(output.images[0])).max() <= 1
    before = edits.plan()
    assert before["places"]["stay"] == 2
    filled(net, "controlnet_x_embedder", 0.5).save_pretrained(own)
    changed = edits.plan()["tasks"][0]["fingerprint"]
    assert changed != before["tasks"][0]["fingerprint"]
    edits.values["strategy"] = "device_map"
    with pytest.raises(StrategyError, match="device_map places no ControlNet yet"):
        edits.plan()
    (own / "config.json").unlink()
    with pytest.raises(ModelError, match=r"model.controlnet: no config.json in .*/net"):
        edits.plan()
    edits.values["model"]["controlnet"] = "no-net"
    with pytest.raises(ManifestError, match=r"model.controlnet: no folder .*/no-net; download it"):
        edits.plan()
