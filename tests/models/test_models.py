"""Every pipeline class: the images of plain diffusers, or a refusal by `plan`."""

from pathlib import Path

import pytest
from support import tiny
from support.conformance import Case
from support.findings import look
from support.launches import Launcher

FAST = ("StableDiffusionXLPipeline",)


@pytest.mark.parametrize("name", tiny.MODELS)
def test_images_are_those_of_plain_diffusers(
    ranks: Launcher, tmp_path: Path, name: str, record_property
) -> None:
    model = tiny.save(name, tmp_path / "model")
    found = look(ranks, Case(model, tiny.MODELS[name]), tmp_path)
    print(f"{name}: {found.outcome} {found.reason}")
    assert found.is_right, f"{name}: {found.reason}"
