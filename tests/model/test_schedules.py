"""Which schedulers a pipeline's call can set: read from the source, shown by tests/models."""

import pytest

from runner.model.schedules import schedule_fault
from runner.model.signature import pipeline_call

FLOW = {"use_flow_sigmas": True}


@pytest.mark.parametrize(
    ("pipeline", "scheduler", "config", "word"),
    [
        ("FluxPipeline", "FlowMatchHeunDiscreteScheduler", {}, "sigmas"),
        ("FluxPipeline", "DPMSolverMultistepScheduler", {}, "sigmas"),
        ("FluxPipeline", "SASolverScheduler", FLOW, "mu"),
        ("QwenImagePipeline", "DPMSolverMultistepScheduler", FLOW, "sigmas"),
        ("ZImagePipeline", "FlowMatchHeunDiscreteScheduler", {}, "mu"),
        ("SanaSprintPipeline", "FlowMatchEulerDiscreteScheduler", {}, "max_timesteps"),
        ("LatentConsistencyModelPipeline", "DDIMScheduler", {}, "original_inference_steps"),
    ],
)
def test_a_scheduler_that_does_not_take_what_the_call_gives(
    pipeline: str, scheduler: str, config: dict[str, bool], word: str
) -> None:
    call = pipeline_call(pipeline)
    assert call is not None
    fault = schedule_fault(call, scheduler, config)
    assert f"{pipeline} gives its scheduler {word}, which {scheduler} does not take; use" in fault
    remedy = fault.rpartition(" ")[2]
    assert schedule_fault(call, remedy, {}) == ""


@pytest.mark.parametrize(
    ("pipeline", "scheduler", "config"),
    [
        ("FluxPipeline", "FlowMatchEulerDiscreteScheduler", {}),
        ("FluxPipeline", "DPMSolverMultistepScheduler", FLOW),  # then it gives no sigmas
        ("QwenImagePipeline", "UniPCMultistepScheduler", FLOW),
        ("StableDiffusionPipeline", "HeunDiscreteScheduler", {}),
        ("StableDiffusion3Pipeline", "FlowMatchHeunDiscreteScheduler", {}),  # mu where it shifts
        ("FluxPipeline", "ItsOwnScheduler", {}),  # its source is not read
    ],
)
def test_one_that_does_or_may(pipeline: str, scheduler: str, config: dict[str, bool]) -> None:
    call = pipeline_call(pipeline)
    assert call is not None
    assert schedule_fault(call, scheduler, config) == ""
