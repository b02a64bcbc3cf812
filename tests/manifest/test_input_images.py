"""Sizes of input images, by their headers."""

from pathlib import Path

import pytest
from PIL import Image
from support.postscript import EPS, plant_ghostscript

from runner.manifest.input_images import FORMATS, InputFaultError, InputFiles
from runner.render.inputs import _opened


def test_a_photo_is_as_large_as_it_is_shown(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    Image.new("RGB", (40, 24)).save(tmp_path / "turned.jpg", exif=exif)
    Image.new("RGB", (40, 24)).save(tmp_path / "plain.webp")
    Image.new("P", (40, 24)).save(tmp_path / "palette.png", exif=exif)
    files = InputFiles(str(tmp_path))
    assert files.size("turned.jpg") == (24, 40)
    assert files.size("plain.webp") == (40, 24)
    assert files.size("palette.png") == (24, 40)


def test_only_the_header_of_a_png_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.effect_noise((64, 48), 80).save(path)
    path.write_bytes(path.read_bytes()[:200])
    assert InputFiles(str(tmp_path)).size("a.png") == (64, 48)


def test_what_was_found_in_a_file_is_held_on_to(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"one")
    files = InputFiles(str(tmp_path))
    first = files.sha256("a.png")
    path.write_bytes(b"two")
    assert files.sha256("a.png") == first
    with pytest.raises(InputFaultError, match="changed since the job began"):
        files.read("a.png")


# Pillow gives PostScript to Ghostscript, whatever the file's name says.
def test_no_program_is_started_for_an_input_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = plant_ghostscript(tmp_path, monkeypatch)
    (tmp_path / "a.png").write_bytes(EPS)
    files = InputFiles(str(tmp_path))
    with pytest.raises(InputFaultError, match="is no image that can be read"):
        files.size("a.png")
    with pytest.raises(InputFaultError, match="cannot be read as an image"):
        _opened(files, "a.png")
    assert not started.exists()


@pytest.mark.parametrize("kind", FORMATS)
def test_the_kinds_of_files(kind: str, tmp_path: Path) -> None:
    Image.new("RGB", (40, 24)).save(tmp_path / "a", kind)
    files = InputFiles(str(tmp_path))
    assert files.size("a") == _opened(files, "a").size == (40, 24)
