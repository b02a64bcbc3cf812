"""Shared fixtures: manifests on disk, one saved tiny model, real launches."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import PYTHONPATH
from support.launch import plan_of
from support.launches import Launcher
from support.reaper import pytest_configure  # noqa: F401  (a hook)

from runner.manifest.load import load
from runner.plan import Plan


@pytest.fixture(autouse=True, scope="session")
def offline() -> None:
    """No test may ask a hub. Every process computes with one thread, and imports the runner from
    this repository, in any working directory."""
    os.environ["PYTHONPATH"] = PYTHONPATH
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["OMP_NUM_THREADS"] = "1"


# The default output folder is below the working directory. Tests work elsewhere, each in its own
# folder, so that none sees what `make run` or another test left in outputs/.
@pytest.fixture(autouse=True, scope="session")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with contextlib.chdir(tmp_path_factory.mktemp("elsewhere")):
        yield


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny FLUX pipeline, saved once."""
    from support import tiny

    return tiny.flux(tmp_path_factory.mktemp("models") / "flux")


@pytest.fixture
def manifest(tmp_path: Path) -> Callable[..., Path]:
    """Write a manifest, from YAML text or from values, and return its path."""

    def write(text: str = "", /, name: str = "job.yaml", **values: Any) -> Path:
        path = tmp_path / name
        path.write_text(text or json.dumps(values, ensure_ascii=False), encoding="utf-8")
        return path

    return write


@pytest.fixture
def plan(manifest: Callable[..., Path]) -> Callable[..., Plan]:
    """The plan of a manifest's text."""

    def make(text: str = "", /, **values: Any) -> Plan:
        loaded = load(manifest(text, **values))
        return plan_of(loaded)

    return make


@pytest.fixture(scope="session")
def ranks() -> Iterator[Launcher]:
    """Forks launches of several ranks (launches.py)."""
    launcher = Launcher()
    yield launcher
    launcher.close()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tiny pipelines: flux and qwen."""
    from support import tiny

    folder = tmp_path_factory.mktemp("tiny")
    tiny.flux(folder / "flux")
    tiny.qwen_image(folder / "qwen")
    return folder
