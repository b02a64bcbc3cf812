"""Shared fixtures: manifests on disk, one saved tiny model, real launches."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launches import Launcher
from PIL import Image

from runner.manifest import Loaded, load
from runner.plan import Plan

FAST = {"height": 32, "width": 32, "num_inference_steps": 2, "max_sequence_length": 16}


@pytest.fixture(autouse=True, scope="session")
def offline() -> None:
    """Nothing in the tests may ask a hub, every process computes with one thread, and runs what
    lies here, wherever it works."""
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["OMP_NUM_THREADS"] = "1"


# Runs, plans and `status` look at the output folder, by default below where one is: no test
# meets what `make run` left in outputs/, or what another test did.
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
    import tiny

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


def plan_of(loaded: Loaded) -> Plan:
    return Plan(loaded.manifest, loaded.prompts, loaded.root)


def launch(
    arguments: Sequence[Any],
    *,
    nproc: int = 0,
    launcher: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = 240,
    program: Sequence[str] = ("-m", "runner"),
) -> subprocess.CompletedProcess[str]:
    """Run the runner in processes of its own: plain Python, or torchrun with `nproc` ranks."""
    command = command_line(arguments, nproc=nproc, launcher=launcher, program=program)
    return subprocess.run(
        command,
        env={**os.environ, **(env or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def command_line(
    arguments: Sequence[Any],
    *,
    nproc: int = 0,
    launcher: Sequence[str] = (),
    program: Sequence[str] = ("-m", "runner"),
) -> list[str]:
    if nproc and not launcher:
        run = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}")
        launcher = (sys.executable, *run)
    return [*(launcher or (sys.executable,)), *program, *map(str, arguments)]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def pixels(folder: Path) -> dict[str, bytes]:
    """Name → decoded pixels of every image in a folder."""
    return {
        path.name: np.asarray(Image.open(path)).tobytes() for path in sorted(folder.glob("*.png"))
    }


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Name → modification time and inode: equal means untouched."""
    return {
        path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.glob("*.png")
    }


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def summary(folder: Path) -> dict[str, Any]:
    values = json.loads((folder / "summary.json").read_text())
    assert isinstance(values, dict)
    return values


@pytest.fixture(scope="session")
def ranks() -> Iterator[Launcher]:
    """Launches of several ranks without a launcher (launches.py)."""
    launcher = Launcher()
    yield launcher
    launcher.close()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tiny pipelines: flux and qwen."""
    import tiny

    folder = tmp_path_factory.mktemp("tiny")
    tiny.flux(folder / "flux")
    tiny.qwen_image(folder / "qwen")
    return folder
