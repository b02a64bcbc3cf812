"""Images that anybody may have written: nothing in them runs, and nothing is raised."""

import zlib
from pathlib import Path

import numpy as np
import pytest
from support.postscript import EPS, plant_ghostscript

from runner.folder.png import encode, read_text, whole

PICTURE = encode(np.zeros((4, 4, 3), np.uint8), {"prompt": "a cat"}, 1)
EMPTY_PROFILE = bytes(4) + b"iCCP" + zlib.crc32(b"iCCP").to_bytes(4, "big")


# Pillow gives PostScript to Ghostscript, whatever the file's name says.
def test_no_program_is_started_for_a_picture_of_another_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = plant_ghostscript(tmp_path, monkeypatch)
    (tmp_path / "image.png").write_bytes(EPS)
    assert whole(EPS) is None
    assert read_text(tmp_path / "image.png", is_whole=True) is None
    assert not started.exists()


# Found by a fuzzer: Pillow raises an IndexError for it.
def test_an_odd_chunk_is_damage(tmp_path: Path) -> None:
    assert whole(PICTURE) is not None
    odd = PICTURE[:-12] + EMPTY_PROFILE + PICTURE[-12:]
    assert whole(odd) is None
