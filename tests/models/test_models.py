"""Every pipeline class and strategy: the images of plain diffusers, or a refusal by `plan`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import tiny
from support.conformance import Case, Fault, Plain, plain
from support.findings import Finding, look, look_at_strategy
from support.launches import Launcher

# A handful that differ in what may go wrong, in a few seconds each: for `make test`.
FAST = (
    "StableDiffusionXLPipeline",
    "SanaPipeline",
    "IFPipeline",
    "CogView4Pipeline",
    "Flux2KleinPipeline/distilled",
)


def classes() -> list[Any]:
    return [
        pytest.param(name, marks=() if name in FAST else pytest.mark.models) for name in tiny.MODELS
    ]


@pytest.mark.parametrize("name", classes())
def test_images_are_those_of_plain_diffusers(
    ranks: Launcher, tmp_path: Path, settle: Callable[..., None], trusts_table: bool, name: str
) -> None:
    case = Case(tiny.save(name, tmp_path / "model"), tiny.MODELS[name])
    expected = expectation(ranks, case, tmp_path / "plain")
    found = {"data_parallel": look(ranks, case, tmp_path, expected, trusts_table=trusts_table)}
    if isinstance(expected, Plain) and found["data_parallel"].is_right:
        found |= strategies(ranks, case, tmp_path, expected)
    settle("pipelines", name, found)


def expectation(ranks: Launcher, case: Case, folder: Path) -> Plain | Fault:
    try:
        return plain(ranks, case, folder)
    except Fault as fault:
        return fault


def strategies(ranks: Launcher, case: Case, folder: Path, expected: Plain) -> dict[str, Finding]:
    """`device_map` on a CPU: what finds no room lies on disk."""
    size = sum(file.stat().st_size for file in case.model.rglob("*.safetensors"))
    budgets = [{"cpu": size // 10}, {"cpu": size * 3 // 4}]
    kind = {"kind": "device_map"}
    wanted = {
        "phases": [{**kind, "phases": True}],
        "device_map": [{**kind, "max_memory": budget} for budget in budgets],
    }
    return {
        name: look_at_strategy(ranks, case, folder / name, expected, several)
        for name, several in wanted.items()
    }
