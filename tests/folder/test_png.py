"""Images that anybody may have written: nothing in them runs, and nothing is raised."""

import zlib
from pathlib import Path

import numpy as np
import pytest

from runner.folder.png import encode, read_text, whole

PICTURE = encode(np.zeros((4, 4, 3), np.uint8), {"prompt": "a cat"}, 1)
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\nshowpage\n"
EMPTY_PROFILE = bytes(4) + b"iCCP" + zlib.crc32(b"iCCP").to_bytes(4, "big")


# Pillow gives PostScript to Ghostscript, whatever the file's name says.
def test_no_program_is_started_for_a_picture_of_another_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ghostscript = tmp_path / "gs"
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    (tmp_path / "image.png").write_bytes(EPS)
    assert whole(EPS) is None
    assert read_text(tmp_path / "image.png", is_whole=True) is None
    assert not (tmp_path / "started").exists()


# Found by a fuzzer: Pillow raises an IndexError for it.
def test_an_odd_chunk_is_damage(tmp_path: Path) -> None:
    assert whole(PICTURE) is not None
    odd = PICTURE[:-12] + EMPTY_PROFILE + PICTURE[-12:]
    assert whole(odd) is None
