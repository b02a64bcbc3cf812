"""device_map on two pretended GPUs: whatever the budget, the images of plain diffusers, or a
refusal before weights load."""

import json
from pathlib import Path
from typing import Any

import pytest
from support import tiny
from support.budgets import ALL
from support.launches import Launcher

# Of each family the budgets at which images failed, or a component was left to the host.
SOME = {"sd3": (8, 15), "flux": (16,), "qwen": (9, 11)}


@pytest.fixture(scope="session")
def folders(models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    sd3 = tiny.stable_diffusion_3(tmp_path_factory.mktemp("families") / "sd3")
    return {"flux": models / "flux", "qwen": models / "qwen", "sd3": sd3}


def _check(
    ranks: Launcher, folder: Path, family: str, numbers: Any, tmp_path: Path, least: int
) -> None:
    answer = tmp_path / "answer.json"
    ended = ranks(
        1, family, folder, answer, *numbers,
        function="support.budgets:main", environment={"FAKE_GPUS": "2"}, timeout_s=600,
    )  # fmt: skip
    assert ended.codes == [0], ended.words
    found = {int(number): made for number, made in json.loads(answer.read_text()).items()}
    # A larger budget is never worse, and none leaves a component to the host.
    assert [*found] == [number for number in numbers if number >= min(found)]
    assert all(difference <= 1 / 255 for difference, _ in found.values()), found
    assert all(hosted == [] for _, hosted in found.values()), found
    assert min(found) <= least


@pytest.mark.parametrize("family", SOME)
def test_some_budgets(
    ranks: Launcher, folders: dict[str, Path], tmp_path: Path, family: str
) -> None:
    _check(ranks, folders[family], family, SOME[family], tmp_path, least=SOME[family][0])


@pytest.mark.slow
@pytest.mark.parametrize("family", SOME)
def test_every_budget_is_right_or_refused(
    ranks: Launcher, folders: dict[str, Path], tmp_path: Path, family: str
) -> None:
    _check(ranks, folders[family], family, range(1, ALL + 1), tmp_path, least=ALL // 2)
