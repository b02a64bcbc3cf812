"""Schedulers that no image could be made with: refused before weights load, with the right one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import tiny

from runner.errors import ModelError, StrategyError
from runner.model.configs import ModelConfigs
from runner.plan import Plan
from runner.prepare.preflight import check
from runner.prepare.setup import check_setup
from runner.strategies import DeviceMap, XDit


@pytest.fixture(scope="module")
def diffusion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("StableDiffusionPipeline", tmp_path_factory.mktemp("models") / "sd")


@pytest.fixture
def fault(plan: Callable[..., Plan]) -> Callable[..., str]:
    def found(model: Path, scheduler: Any, **others: Any) -> str:
        made = plan(model=str(model), scheduler=scheduler, prompts=["a"], **others)
        try:
            check(made, ModelConfigs.read(model))
        except ModelError as error:
            return str(error).partition(": scheduler: ")[2]
        return ""

    return found


@pytest.mark.parametrize(
    ("scheduler", "words"),
    [
        ("DDIMSchedular", "DDIMSchedular: diffusers 0.42.1 has none of this name; did you mean "),
        ("euler_a", "did you mean EulerAncestralDiscreteScheduler?"),
        (
            {"name": "DDIMScheduler", "clip_samples": True},
            "DDIMScheduler takes no clip_samples; did you mean clip_sample?",
        ),
        (
            {"name": "DDIMScheduler", "clip_sample": "yes"},
            'clip_sample: DDIMScheduler takes bool, not "yes"',
        ),
        (
            {"name": "DDIMScheduler", "beta_schedule": "linaer"},
            "linaer is not implemented for",
        ),
        (
            {"name": "EulerDiscreteScheduler", "use_karras_sigmas": True, "use_beta_sigmas": True},
            "can be used; change its options",
        ),
        (
            "FlowMatchEulerDiscreteScheduler",
            "FlowMatchEulerDiscreteScheduler cannot stand for this model's ",
        ),
    ],
)
def test_refused_for_diffusion(
    fault: Callable[..., str], diffusion: Path, scheduler: Any, words: str
) -> None:
    found = fault(diffusion, scheduler)
    assert words in found
    assert "\n" not in found


def test_good_for_diffusion(fault: Callable[..., str], diffusion: Path) -> None:
    for scheduler in (
        "LCMScheduler",
        {"name": "DDIMScheduler", "beta_schedule": "linear"},
        {"name": "DPMSolverMultistepScheduler", "algorithm_type": "sde-dpmsolver++"},
    ):
        assert fault(diffusion, scheduler) == ""


def test_flow_matching_needs_its_own(fault: Callable[..., str], flux: Path) -> None:
    assert "not made for flow matching" in fault(flux, "DDIMScheduler")
    assert fault(flux, "DDIMScheduler").endswith(
        "; use one of FlowMatchEulerDiscreteScheduler, FlowMatchLCMScheduler"
    )
    found = fault(flux, "DPMSolverMultistepScheduler")
    remedy = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}
    assert "use_flow_sigmas: true, prediction_type: flow_prediction}" in found
    assert fault(flux, {"name": "DPMSolverMultistepScheduler", **remedy}) == ""
    assert "gives its scheduler sigmas" in fault(flux, "FlowMatchHeunDiscreteScheduler")


def test_steps_are_counted_by_the_scheduler_that_is_used(
    plan: Callable[..., Plan], diffusion: Path
) -> None:
    many = {"num_inference_steps": 5000}
    made = plan(model=str(diffusion), parameters=many, scheduler="DDIMScheduler", prompts=["a"])
    with pytest.raises(ModelError, match="DDIMScheduler was trained with 1000"):
        check(made, ModelConfigs.read(diffusion))


def test_strategies_that_cannot_change_it(plan: Callable[..., Plan]) -> None:
    two = plan(model="demo", prompts=["a", {"prompt": "b", "scheduler": "FlowMatchLCMScheduler"}])
    with pytest.raises(StrategyError, match="with phases all images are begun together"):
        check_setup(two, DeviceMap(phases=True))
    with pytest.raises(StrategyError, match="xdit brings its own form"):
        check_setup(two, XDit(ulysses_degree=2))
    check_setup(two, DeviceMap())
    one = plan(model="demo", prompts=["a"], scheduler="FlowMatchLCMScheduler")
    check_setup(one, DeviceMap(phases=True))
