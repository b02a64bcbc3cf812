"""What `device_map` makes of a model under many budgets, in a process with pretended GPUs."""

import json
from pathlib import Path

import torch

from runner.errors import StrategyError
from runner.launch.world import World
from runner.model.configs import ModelConfigs
from runner.render.load import quiet_libraries
from runner.strategies import DeviceMap
from runner.strategies.estimate.places import parts_of
from support import fake_accelerator
from support.phased_families import PARAMETERS, call, plain, source_of

ALL = 22  # budgets: from a 22nd of the model for each of two GPUs to all of it


def main(arguments: list[str]) -> int:
    """Arguments: a family, its folder, a file, and numbers of budgets. For each that is not refused
    the file gets the largest difference from plain diffusers on a CPU, and the components that no
    GPU holds any part of."""
    family, folder, answer, *numbers = arguments
    quiet_libraries()
    source = source_of(Path(folder))
    parameters = {**PARAMETERS[family], "num_inference_steps": 1}
    expected = plain(source)(**call(1, "a red fox", **parameters)).images
    configs = ModelConfigs.read(source.folder)
    parts = [part for name in configs.networks for part in parts_of(configs, name, torch.float32)]
    total = sum(part.size for part in parts)
    fake_accelerator.install()
    found = {}
    for number in map(int, numbers):
        each = total * number // ALL
        strategy = DeviceMap(max_memory={"0": each, "1": each})
        try:
            pipe = strategy.load(source, torch.device("cuda", 0), World())
        except StrategyError:
            continue
        made = pipe(**call(1, "a red fox", **parameters)).images.cpu()
        found[number] = (float((made - expected).abs().max()), _without_gpu(pipe))
    Path(answer).write_text(json.dumps(found), encoding="utf-8")
    return 0


def _without_gpu(pipe: object) -> list[str]:
    """The components that lie on no GPU at all."""
    models = {
        name: component
        for name, component in pipe.components.items()  # type: ignore[attr-defined]
        if isinstance(component, torch.nn.Module)
    }
    return [
        name
        for name, component in models.items()
        if not any(isinstance(device, int) for device in component.hf_device_map.values())
    ]
