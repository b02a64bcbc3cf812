"""Contact sheets: every image in its place, in one strip after another."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.jobs import Job

from runner.cli import main
from runner.folder.paths import OutputFolder
from runner.gallery.png_stream import PngStream
from runner.gallery.sheet import layout, write_sheet
from runner.manifest.schema import OutputSpec

IMAGES = 17


def row(index: int, **values: Any) -> dict[str, Any]:
    return {"index": index, "prompt_index": 0, "state": "done", **values}


def indices(made: Any) -> list[list[int | None]]:
    return [[cell and cell["index"] for cell in cells] for _, cells in made.lines]


def test_a_png_in_strips_is_the_same_picture() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (50, 7, 3), np.uint8)
    file = io.BytesIO()
    stream = PngStream(file, (7, 50), {"Software": "here"})
    for strip in np.array_split(pixels, 4):
        stream.add(Image.fromarray(strip))
    stream.close()
    with Image.open(file) as image:
        assert np.array_equal(np.asarray(image), pixels)
        assert image.info["Software"] == "here"


def test_images_in_index_order_about_as_wide_as_high() -> None:
    made = layout([row(index) for index in range(7)], None)
    assert indices(made) == [[0, 1, 2], [3, 4, 5], [6]]
    assert indices(layout([row(index) for index in range(7)], 5)) == [[0, 1, 2, 3, 4], [5, 6]]


def test_a_sweep_by_its_axes() -> None:
    points = [{"time": time, "steps": steps} for time in "ab" for steps in (4, 8, 12)]
    made = layout([row(index, sweep=point) for index, point in enumerate(points)], None)
    assert made.heads == [("steps 4",), ("steps 8",), ("steps 12",)]
    assert made.lines[1][0] == ("time b",)
    assert indices(made) == [[0, 1, 2], [3, 4, 5]]


def test_lines_of_several_prompts_have_their_number() -> None:
    rows = [row(index, prompt_index=index // 2, sweep={"steps": index % 2}) for index in range(4)]
    assert [label for label, _ in layout(rows, None).lines] == [("prompt 0",), ("prompt 1",)]
    assert [label for label, _ in layout(rows[:2], None).lines] == [()]


def test_cells_are_as_high_as_the_images(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path, OutputSpec())
    rows = []
    for index in range(4):
        name = f"{index:06d}.png"
        Image.new("RGB", (96, 32)).save(tmp_path / name)
        sides = {"width": 96, "height": 32}
        rows.append(row(index, file_name=name, fingerprint=f"{index:032x}", **sides))
    for size, width, height in ((None, 96, 32 + 18), (48, 48, 16)):  # with its number, or without
        write_sheet(folder, rows, tmp_path / "wide.png", 2, size)
        with Image.open(tmp_path / "wide.png") as sheet:
            assert sheet.size == (8 + 2 * (width + 8), 2 * (height + 8) + 8)


def test_variations_of_a_point_stand_below_each_other() -> None:
    rows = [row(index, id="cat", sweep={"steps": (4, 8)[index // 2]}) for index in (0, 1, 3)]
    made = layout(rows, None)
    assert indices(made) == [[0, 3], [1, None]]
    assert [label for label, _ in made.lines] == [("cat",), ("cat",)]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    job = Job(tmp_path_factory.mktemp("sheet"), images=IMAGES)
    assert job.run(hooks={"raise": ["prompt 4"]}).code == 3
    return job


@pytest.mark.parametrize("name", ["sheet.png", "sheet.webp"])
def test_every_image_is_in_its_place(job: Job, name: str, tmp_path: Path) -> None:
    words = ["sheet", str(job.manifest), "--size", "16", "--columns", "4", "--file", name]
    assert main(words) == 0
    with Image.open(tmp_path / name) as sheet:
        pixels = np.asarray(sheet.convert("RGB")).astype(int)
    assert pixels.shape == (5 * (16 + 8) + 8, 8 + 4 * (16 + 8), 3)
    for index in range(IMAGES):
        x, y = 8 + 24 * (index % 4), 8 + 24 * (index // 4)
        cell = pixels[y : y + 16, x : x + 16]
        wanted = np.full((16, 16, 3), (0xEF, 0xED, 0xE8))
        if index != 4:
            wanted = np.asarray(Image.open(job.output / f"{index:06d}.png")).astype(int)
        if name.endswith(".png"):
            assert np.array_equal(cell, wanted), index
        else:
            assert abs(cell - wanted).mean() < 60, index  # noise is the worst for WebP
    assert main(words) == 0  # over a sheet of its own


def test_other_files_are_left_alone(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photo = tmp_path / "photo.png"
    Image.new("RGB", (4, 4)).save(photo)
    before = photo.read_bytes()
    assert main(["sheet", str(job.manifest), "--file", str(photo)]) == 2
    assert "no contact sheet; use another --file" in capsys.readouterr().err
    assert photo.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--file", "a.gif"], "write a name that ends with .png or .webp"),
        (["--size", "2000"], "not a whole number from 1 to 1024"),
        (["--size", "1024", "--columns", "1", "--file", "a.webp"], "a smaller --size, or a .png"),
    ],
)
def test_refusals(
    job: Job, words: list[str], wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["sheet", str(job.manifest), *words])
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert wanted in capsys.readouterr().err


def test_a_folder_without_images(
    manifest: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = manifest(model="demo", prompts=["a cat"])
    for command in ("sheet", "report"):
        assert main([command, str(path)]) == 2
        assert "run" in capsys.readouterr().err
