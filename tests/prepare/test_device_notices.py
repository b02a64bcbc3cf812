"""What makes a launch slow without a word is said."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from runner.launch.world import World
from runner.prepare import device_notices as module
from runner.prepare.device_notices import device_notices


@pytest.mark.parametrize(
    ("cuda", "words"),
    [(None, "this torch is built without CUDA"), ("13.0", "update the driver")],
)
def test_a_gpu_that_torch_cannot_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cuda: str | None, words: str
) -> None:
    manifest = SimpleNamespace(dtype="float32", strategy=SimpleNamespace(shares_node=False))
    assert [*device_notices(manifest, World())] == []  # type: ignore[arg-type]
    driver = tmp_path / "version"
    driver.touch()
    monkeypatch.setattr(module, "DRIVER", driver)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    (line,) = device_notices(manifest, World())  # type: ignore[arg-type]
    assert "an NVIDIA GPU is here, and the CPU makes the images" in line
    assert words in line
