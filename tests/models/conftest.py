"""Launches that have every family's modules imported already."""

from collections.abc import Iterator

import pytest
from support.launches import Launcher


@pytest.fixture(scope="session")
def ranks() -> Iterator[Launcher]:
    launcher = Launcher("support.tiny:preload")
    yield launcher
    launcher.close()
