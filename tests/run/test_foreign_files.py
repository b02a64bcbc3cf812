"""Files in the output folder that the runner did not write are never overwritten or removed."""

from pathlib import Path

import pytest
from PIL import Image, ImageOps, PngImagePlugin
from support.bench import Bench
from support.launch import lines

from runner.errors import ExitCode, FolderError, StrategyError


# Cases 21, 23.
def test_files_of_others_are_never_overwritten(bench: Bench) -> None:
    bench.output.mkdir()
    theirs = bench.output / "000002.png"
    Image.new("RGB", (8, 8)).save(theirs)
    before = theirs.read_bytes()
    for options in ({}, {"regenerate": True}):
        with pytest.raises(FolderError, match="000002.png in .*not written by .*; move it away"):
            bench.run(**options)
    assert theirs.read_bytes() == before
    theirs.unlink()
    (bench.output / "holiday.png").write_bytes(b"mine")
    assert bench.run() is ExitCode.COMPLETE
    assert (bench.output / "holiday.png").read_bytes() == b"mine"


def test_a_picture_put_in_place_of_an_image_is_not_removed(bench: Bench) -> None:
    bench.run()
    path = bench.output / "000001.png"
    with Image.open(path) as image:
        words = PngImagePlugin.PngInfo()
        for key, value in image.text.items():
            words.add_itxt(key, value)
        edited = ImageOps.invert(image)
    for save in (
        lambda: Image.new("RGB", (64, 64)).save(path, "JPEG"),
        lambda: path.write_text("x"),
        lambda: edited.save(path, pnginfo=words),  # as in an editor that keeps text chunks
    ):
        save()
        before = path.read_bytes()
        with pytest.raises(FolderError, match="000001.png in .*not written by the runner"):
            bench.run()
        assert path.read_bytes() == before


def test_an_edited_picture_of_the_same_size_is_not_replaced(bench: Bench) -> None:
    bench.values |= {"output": {"png_level": 0}, "prompts": ["a cat", "a red fox"]}
    bench.run()
    path, other = bench.output / "000000.png", bench.output / "000001.png"
    size, before = path.stat().st_size, other.read_bytes()
    with Image.open(path) as image:
        words = PngImagePlugin.PngInfo()
        for key, value in image.text.items():
            words.add_itxt(key, value)
        ImageOps.invert(image).save(path, pnginfo=words, compress_level=0)
    edited = path.read_bytes()
    assert len(edited) == size
    bench.values["seed"] = 9
    assert bench.run(regenerate=True) is ExitCode.FAILED
    [failed] = lines(bench.output / "failures.jsonl")
    assert (failed["index"], failed["kind"]) == (0, "taken")
    assert path.read_bytes() == edited
    assert other.read_bytes() != before


def test_hidden_files_of_the_user_stay(bench: Bench) -> None:
    """Also files with numbers for names that no image folder has."""
    bench.values["output"] = {"images_per_folder": 2}
    bench.output.mkdir()
    for name in ("7", "\u0667\u0667\u0667\u0667\u0667\u0667"):
        (bench.output / name).write_bytes(b"mine")
    theirs = bench.output / ".movie.2024.mkv.part"
    theirs.write_bytes(b"mine")
    bench.run()
    assert theirs.read_bytes() == b"mine"


def test_links_in_the_folder_are_not_followed(bench: Bench, tmp_path: Path) -> None:
    bench.output.mkdir()
    outside = tmp_path / "outside.png"
    outside.write_bytes(b"theirs")
    (bench.output / "000000.png").symlink_to(outside)
    (bench.output / "000001.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(FolderError, match="000000.png, 000001.png in .*not written"):
        bench.run()
    assert outside.read_bytes() == b"theirs"
    assert not (tmp_path / "nowhere.png").exists()


@pytest.mark.parametrize("name", ["metadata.jsonl", "manifest.yaml", "summary.json"])
def test_reports_of_others_are_never_overwritten(bench: Bench, name: str) -> None:
    bench.output.mkdir()
    (bench.output / name).write_text("theirs")
    with pytest.raises(FolderError, match=f"{name}: was not written by the runner"):
        bench.run()
    assert (bench.output / name).read_text() == "theirs"


def test_reports_put_there_after_a_refused_run_are_not_overwritten(bench: Bench) -> None:
    """The refused run left a folder `.runner`, which says nothing about who wrote the rest."""
    bench.values["dtype"] = "float16"
    with pytest.raises(StrategyError):
        bench.run()
    theirs = bench.output / "metadata.jsonl"
    theirs.write_text('{"file_name": "a.png", "text": "mine"}\n')
    bench.values["dtype"] = "float32"
    with pytest.raises(FolderError, match=r"metadata.jsonl: was not written by the runner"):
        bench.run()
    assert "mine" in theirs.read_text()
