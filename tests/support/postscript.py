"""A stand-in for Ghostscript, and a picture for which Pillow would start it."""

from pathlib import Path

import pytest

__all__ = ["EPS", "plant_ghostscript"]

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\nshowpage\n"


def plant_ghostscript(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `gs` on the path, and the file that is there once it was started."""
    program, started = folder / "gs", folder / "started"
    program.write_text(f"#!/bin/sh\ntouch {started}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    return started
