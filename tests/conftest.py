"""Fixtures that several test files share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from launches import Launcher


@pytest.fixture(scope="session")
def launch() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    launcher.close()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tiny pipelines: flux and qwen."""
    import tiny

    folder = tmp_path_factory.mktemp("models")
    tiny.flux(folder / "flux")
    tiny.qwen_image(folder / "qwen")
    return folder
