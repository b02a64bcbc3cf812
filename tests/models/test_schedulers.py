"""Every scheduler that diffusers lets a pipeline have."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support import tiny
from support.conformance import Case
from support.findings import look_at_scheduler
from support.launches import Launcher

BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
SDE = {"algorithm_type": "sde-dpmsolver++"}

# Name → class and config.
DIFFUSION: dict[str, tuple[str, Mapping[str, Any]]] = {
    "DDIM": ("DDIMScheduler", BETAS),
    "DDPM": ("DDPMScheduler", BETAS),
    "PNDM": ("PNDMScheduler", {**BETAS, "skip_prk_steps": True}),
    "LMS": ("LMSDiscreteScheduler", BETAS),
    "Euler": ("EulerDiscreteScheduler", BETAS),
    "Euler ancestral": ("EulerAncestralDiscreteScheduler", BETAS),
    "Heun": ("HeunDiscreteScheduler", BETAS),
    "DPM++ 2M": ("DPMSolverMultistepScheduler", BETAS),
    "DPM++ 2M SDE": ("DPMSolverMultistepScheduler", {**BETAS, **SDE}),
    "DPM++ singlestep": ("DPMSolverSinglestepScheduler", BETAS),
    "DPM SDE": ("DPMSolverSDEScheduler", BETAS),
    "KDPM2": ("KDPM2DiscreteScheduler", BETAS),
    "KDPM2 ancestral": ("KDPM2AncestralDiscreteScheduler", BETAS),
    "DEIS": ("DEISMultistepScheduler", BETAS),
    "UniPC": ("UniPCMultistepScheduler", BETAS),
    "LCM": ("LCMScheduler", BETAS),
    "TCD": ("TCDScheduler", BETAS),
    "SA-Solver": ("SASolverScheduler", BETAS),
    "EDM Euler": ("EDMEulerScheduler", {}),
}
FLOWS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "flow Euler": ("FlowMatchEulerDiscreteScheduler", {"shift": 3.0}),
    "flow Euler stochastic": ("FlowMatchEulerDiscreteScheduler", {"stochastic_sampling": True}),
    "flow Heun": ("FlowMatchHeunDiscreteScheduler", {"shift": 3.0}),
    "flow LCM": ("FlowMatchLCMScheduler", {"shift": 3.0}),
    "flow DPM++ 2M": ("DPMSolverMultistepScheduler", FLOW),
    "flow DPM++ 2M SDE": ("DPMSolverMultistepScheduler", {**FLOW, **SDE}),
    "flow DPM++ singlestep": ("DPMSolverSinglestepScheduler", FLOW),
    "flow UniPC": ("UniPCMultistepScheduler", FLOW),
    "flow DEIS": ("DEISMultistepScheduler", FLOW),
    "flow SA-Solver": ("SASolverScheduler", FLOW),
}
FAMILIES = {
    "StableDiffusionPipeline": DIFFUSION,
    "StableDiffusionXLPipeline": DIFFUSION,
    "StableDiffusion3Pipeline": FLOWS,
    "FluxPipeline": FLOWS,
    "SanaPipeline": FLOWS,
    "QwenImagePipeline": FLOWS,
}
FAST = (("FluxPipeline", "flow LCM"), ("StableDiffusionPipeline", "Euler ancestral"))
PAIRS = [
    pytest.param(*pair, marks=() if pair in FAST else pytest.mark.models)
    for pair in ((name, scheduler) for name, found in FAMILIES.items() for scheduler in found)
]


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved")


@pytest.mark.parametrize(("name", "scheduler"), PAIRS)
def test_a_scheduler_changes_nothing_of_that(
    ranks: Launcher,
    saved: Path,
    tmp_path: Path,
    settle: Callable[..., None],
    name: str,
    scheduler: str,
) -> None:
    if not (saved / name).exists():
        tiny.save(name, saved / name)
    model = tmp_path / "model"
    shutil.copytree(saved / name, model)
    class_name, config = FAMILIES[name][scheduler]
    swap(model, class_name, config)
    like = tiny.MODELS[name]
    four = {**like.parameters, "num_inference_steps": 4}
    found = look_at_scheduler(ranks, Case(model, tiny.Model(like.components, four)), tmp_path)
    settle("schedulers", f"{name} {scheduler}", {"data_parallel": found})


def swap(model: Path, class_name: str, config: Mapping[str, Any]) -> None:
    """Give a saved pipeline another scheduler."""
    tiny.edit_json(model / "model_index.json", scheduler=["diffusers", class_name])
    file = model / "scheduler" / "scheduler_config.json"
    file.write_text("{}")
    tiny.edit_json(file, _class_name=class_name, **config)
