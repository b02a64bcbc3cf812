"""Whole files or none, and names that are never overwritten."""

import errno
import os
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from runner.errors import DiskError
from runner.folder import files, names, png

PIXELS = np.arange(16 * 24 * 3, dtype=np.uint8).reshape(16, 24, 3)


# Invariant 3.
def test_create_never_overwrites_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "000001.png"
    files.create(path, (b"first",), "launch")
    with pytest.raises(FileExistsError):
        files.create(path, (b"second",), "launch")
    assert path.read_bytes() == b"first"
    assert [p.name for p in tmp_path.iterdir()] == ["000001.png"]
    files.replace(path, (b"th", b"ird"), "launch")
    assert path.read_bytes() == b"third"
    assert [p.name for p in tmp_path.iterdir()] == ["000001.png"]


def test_create_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "000001.png"
    files.create(path, (b"first",), "launch")
    with pytest.raises(FileExistsError):
        files.create(path, (b"second",), "launch")
    assert path.read_bytes() == b"first"
    assert [p.name for p in tmp_path.iterdir()] == ["000001.png"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("where", ["fsync", "link", "open"])
def test_a_broken_disk_leaves_no_partial_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, where: str
) -> None:
    def broken(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, where, broken)
    with pytest.raises(DiskError, match="run the same command again"):
        files.create(tmp_path / "000001.png", (b"data",), "launch")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["000001.png", "metadata.jsonl", "compared", "refused-1-of-2"])
def test_the_name_of_a_temporary_file_has_its_launch(tmp_path: Path, name: str) -> None:
    seen: list[str] = []

    def chunks() -> object:
        seen.extend(p.name for p in tmp_path.iterdir())
        yield b"x"

    files.create(tmp_path / name, chunks(), "5f3a90c2")  # type: ignore[arg-type]
    assert [files.temporary_launch(name) for name in seen] == ["5f3a90c2"]
    for name in ("000001.png", ".hidden", "a.part", ".x.part", "summary.json"):
        assert files.temporary_launch(name) is None


def test_names_are_a_function_of_the_index() -> None:
    assert names.image_name(12, None) == "000012.png"
    assert names.image_name(1_234_567, None) == "1234567.png"
    assert names.image_name(12_345, 1000) == "000012/012345.png"


# Case 68: the level changes size and time, never a pixel.
def test_png_keeps_pixels_and_text(tmp_path: Path) -> None:
    text = {"prompt": "a\tb\nc 🦊 é", "parameters": {"height": 16}, "fingerprint": "f" * 32}
    for level in (0, 1, 9):
        path = tmp_path / f"{level}.png"
        data = png.encode(PIXELS, text, level)
        done = png.commit(path, data, "launch")
        assert done == (len(data), zlib.crc32(data))
        with Image.open(path) as image:
            assert np.array_equal(np.asarray(image), PIXELS)
        crc = f"{zlib.crc32(PIXELS.tobytes()):08x}"
        wanted = {**text, "parameters": '{"height": 16}', "pixels": crc}
        assert png.read_text(path) == wanted
        assert png.read_text(path, is_whole=True) == wanted
    assert png.commit(path, data, "launch") is None


def test_a_cut_or_empty_image_is_no_image(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    data = png.encode(PIXELS, {"fingerprint": "f"}, 1)
    for cut in (0, 8, len(data) // 2, len(data) - 20):
        path.write_bytes(data[:cut])
        assert png.read_text(path, is_whole=True) is None
