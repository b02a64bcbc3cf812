"""max_memory on the CPU: whatever the budget, the images of the whole model, or a refusal before
weights load."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.phased_families import PARAMETERS, call, plain, source_of

from runner import demo
from runner.errors import ModelError, StrategyError
from runner.launch.world import World
from runner.model.configs import ModelConfigs
from runner.strategies import DeviceMap
from runner.strategies.estimate.places import Part, parts_of, placed
from runner.units import bytes_in

CPU = torch.device("cpu")
DEMO = {**demo.PARAMETERS, "height": 64, "width": 64}
BUDGETS = 10


def parts(folder: Path) -> list[Part]:
    configs = ModelConfigs.read(folder)
    return [part for name in configs.networks for part in parts_of(configs, name, torch.float32)]


def image(pipe: Any, parameters: dict[str, Any]) -> torch.Tensor:
    pipe.set_progress_bar_config(disable=True)
    found: torch.Tensor = pipe(**call(1, "a red fox", **parameters)).images
    return found


@pytest.mark.parametrize("family", ["demo", "sd-checked", "sdxl", "sd3", "flux", "qwen"])
def test_every_budget_is_right_or_refused(
    family_folder: Callable[[str], Path], family: str
) -> None:
    folder = family_folder(family)
    source = source_of(folder)
    parameters = {**PARAMETERS.get(family, DEMO), "num_inference_steps": 1}
    expected = image(plain(source), parameters)
    total = sum(part.size for part in parts(folder))
    right = 0
    for step in range(1, BUDGETS + 1):
        strategy = DeviceMap(max_memory={"cpu": max(1, total * step // BUDGETS)})
        try:
            pipe = strategy.load(source, CPU, World())
        except StrategyError:
            assert right == 0  # a larger budget is never worse
            continue
        right += 1
        found = image(pipe, parameters)
        assert found.shape == expected.shape
        assert float((found - expected).abs().max()) <= 2e-6
    assert right >= 2


def test_a_refusal_names_the_least_that_works(family_folder: Callable[[str], Path]) -> None:
    source = source_of(family_folder("sdxl"))
    with pytest.raises(StrategyError) as refused:
        DeviceMap(max_memory={"cpu": "1KB"}).load(source, CPU, World())
    least = re.search("use cpu: (.*) or more", str(refused.value))
    assert least
    strategy = DeviceMap(max_memory={"cpu": least[1]})
    expected = image(plain(source), PARAMETERS["sdxl"])
    assert torch.allclose(image(strategy.load(source, CPU, World()), PARAMETERS["sdxl"]), expected)
    less = bytes_in(least[1]) - 1000
    with pytest.raises(StrategyError):
        DeviceMap(max_memory={"cpu": less}).load(source, CPU, World())


@pytest.mark.parametrize("family", ["sd-checked", "flux"])
def test_phases_keep_to_the_budget(family_folder: Callable[[str], Path], family: str) -> None:
    source = source_of(family_folder(family))
    expected = image(plain(source), PARAMETERS[family])
    total = sum(part.size for part in parts(source.folder))
    pipe = DeviceMap(phases=True, max_memory={"cpu": total * 2 // 5}).load(source, CPU, World())
    assert float((image(pipe, PARAMETERS[family]) - expected).abs().max()) <= 2e-6


def test_parts_count_every_weight_once(family_folder: Callable[[str], Path]) -> None:
    for family in ("flux", "qwen", "sd-checked"):
        folder = family_folder(family)
        for name in ModelConfigs.read(folder).networks:
            component = source_of(folder).component(name)
            held = sum(one.numel() for one in component.parameters())
            held += sum(one.numel() for one in component.buffers())
            found = parts_of(ModelConfigs.read(folder), name, torch.float32)
            assert sum(part.size for part in found) == pytest.approx(4 * held, rel=0.05), name


def test_blocks_fill_device_after_device() -> None:
    whole = [Part("vae", "", 10, False)]
    blocks = [Part("t", "head", 10, False), *(Part("t", f"b.{i}", 30, True) for i in range(4))]
    found = placed([*whole, *blocks], {0: 50, 1: 40, "cpu": 30})
    assert found["vae"] == {"": 0}
    assert found["t"] == {"head": 0, "b.0": 0, "b.1": 1, "b.2": "cpu", "b.3": "disk"}
    assert placed(blocks, {0: 200}) == {"t": {"": 0}}
    with pytest.raises(StrategyError, match="10 MB of vae must lie on one GPU"):
        placed([Part("vae", "", 10**7, False)], {0: 100, "cpu": 10**9})


def test_a_class_that_is_not_installed_is_named(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text(
        '{"_class_name": "StableDiffusionPipeline", "safety_checker": ["stable_diffusion", "No"]}'
    )
    with pytest.raises(ModelError, match="safety_checker: stable_diffusion has no class No"):
        ModelConfigs.read(tmp_path).class_of("safety_checker")
