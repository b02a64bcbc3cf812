"""Every random number of an image comes from its own generator, whatever the scheduler draws."""

import copy
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from diffusers.schedulers import (
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchLCMScheduler,
)
from support.families import quiet
from support.launch import FAST, lines, pixels
from support.launches import Launcher
from support.tiny import stable_diffusion_3

from runner.launch.stop import Stop
from runner.plan import Task
from runner.render.noise import Noise
from runner.render.pipeline import Pipeline
from runner.render.results import Image
from runner.strategies import DataParallel

PROMPTS = ("a cat", "a red fox", "the moon", "a dog")
TASKS = [Task(i, i, prompt, 40 + i, FAST) for i, prompt in enumerate(PROMPTS)]
SDE = {
    "algorithm_type": "sde-dpmsolver++",
    "prediction_type": "flow_prediction",
    "use_flow_sigmas": True,
}


@pytest.fixture(scope="session")
def sd3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stable_diffusion_3(tmp_path_factory.mktemp("models") / "sd3")


def loaded(folder: Path, scheduler: Any = None) -> Any:
    pipe = quiet(diffusers.DiffusionPipeline.from_pretrained(folder))
    if scheduler is not None:
        pipe.register_modules(scheduler=scheduler)
    return pipe


def renderer(pipe: Any) -> Pipeline:
    return Pipeline(
        pipe, device=torch.device("cpu"), dtype="float32", strategy=DataParallel(), stop=Stop(20)
    )


def images(rendering: Pipeline, *tasks: Task) -> np.ndarray:
    results = rendering.render(tasks).results
    assert all(isinstance(result, Image) for result in results), results
    return np.stack([one.pixels for one in results if isinstance(one, Image)])


class Careless(FlowMatchEulerDiscreteScheduler):
    """Draws from torch's default generator, and knows no other."""

    def step(self, model_output: Any, timestep: Any, sample: Any, return_dict: bool = True) -> Any:
        sample = super().step(model_output, timestep, sample, return_dict=False)[0]
        return (sample + 0.5 * torch.randn_like(sample),)


# Case 2: FLUX, Qwen-Image and SD3 give their schedulers no generator.
MAKERS: dict[str, tuple[str, Callable[[], Any]]] = {
    "flux lcm": ("flux", FlowMatchLCMScheduler),
    "flux stochastic": ("flux", lambda: FlowMatchEulerDiscreteScheduler(stochastic_sampling=True)),
    "sd3 sde": ("sd3", lambda: DPMSolverMultistepScheduler(**SDE)),
    "flux careless": ("flux", Careless),
}


@pytest.mark.parametrize("name", MAKERS)
def test_an_image_is_the_same_whenever_it_is_made(
    name: str, flux: Path, sd3: Path, caplog: pytest.LogCaptureFixture
) -> None:
    family, scheduler = MAKERS[name]
    folder = {"flux": flux, "sd3": sd3}[family]
    rendering = renderer(loaded(folder, scheduler()))
    before = torch.random.get_rng_state()
    one_by_one = np.concatenate([images(rendering, task) for task in TASKS])
    assert np.abs(np.diff(one_by_one.astype(int), axis=0)).max() > 20
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(99)
    assert np.array_equal(images(rendering, TASKS[3]), one_by_one[3:])
    fresh = renderer(loaded(folder, scheduler()))
    together = images(fresh, *TASKS[1:])
    assert np.abs(together.astype(int) - one_by_one[1:]).max() <= 1
    is_careless = name == "flux careless"
    assert fresh.noise.is_shared == is_careless
    assert ("images are made one at a time" in caplog.text) == is_careless
    if is_careless:
        assert np.array_equal(together, one_by_one[1:])
        caplog.clear()
        images(fresh, *TASKS)
        assert not fresh.tries(TASKS)
        assert caplog.text == ""


def test_noise_that_was_right_stays(flux: Path) -> None:
    """Without noise at each step nothing is drawn but the first latents."""
    for task in TASKS[:2]:
        generator = torch.Generator("cpu").manual_seed(task.seed)
        plain = loaded(flux)(task.prompt, generator=generator, **FAST).images[0]
        assert np.array_equal(images(renderer(loaded(flux)), task)[0], np.asarray(plain))


def test_a_scheduler_stays_the_object_that_it_is() -> None:
    class Parts:
        scheduler = EulerDiscreteScheduler()

    plain, pipe = EulerDiscreteScheduler(), Parts()
    noise = Noise(pipe, ("scheduler",), torch.device("cpu"))
    scheduler = pipe.scheduler
    assert type(scheduler) is EulerDiscreteScheduler  # as Bria's call asks
    assert inspect.signature(scheduler.step) == inspect.signature(plain.step)
    assert vars(scheduler).keys() - {"step"} == vars(plain).keys()
    assert scheduler.config == plain.config
    sample = torch.ones(1, 4, 8, 8)

    def stepped(one: Any, **given: Any) -> torch.Tensor:
        one.set_timesteps(4)
        one.scale_model_input(sample, one.timesteps[0])
        found: torch.Tensor = one.step(sample, one.timesteps[0], sample, s_churn=4.0, **given)[0]
        return found

    def seeded() -> torch.Generator:
        return torch.Generator().manual_seed(3)

    expected = stepped(plain, generator=seeded())
    with noise.of(seeded()):
        other = copy.deepcopy(scheduler)  # as pipelines do that make sound too
        assert torch.equal(stepped(other), expected)
        assert other.step_index == 1
        assert scheduler.step_index is None
    with noise.of(seeded()):
        assert torch.equal(stepped(scheduler), expected)
    with noise.of(torch.Generator().manual_seed(4)):
        assert torch.equal(stepped(scheduler, generator=seeded()), expected)
    assert not noise.is_shared


def test_processes_batches_and_resumes_give_one_picture(
    flux: Path, tmp_path: Path, ranks: Launcher
) -> None:
    """The same command with another number of processes, again, and after images were removed."""
    model = tmp_path / "model"
    loaded(flux, FlowMatchLCMScheduler()).save_pretrained(model)

    def run(name: str, processes: int, batch: int) -> dict[str, bytes]:
        path = tmp_path / f"{name}.yaml"
        values = {"model": str(model), "seed": 3, "parameters": FAST, "prompts": list(PROMPTS)}
        values |= {"output": str(tmp_path / name), "batch_size": batch}
        path.write_text(json.dumps(values))
        ended = ranks(processes, path, folder=tmp_path)
        assert ended.codes == [0] * processes, ended.words
        return pixels(tmp_path / name)

    first = run("first", 1, 3)
    assert run("second", 2, 3) == first
    for name in ("000001.png", "000003.png"):
        (tmp_path / "first" / name).unlink()
    assert run("first", 2, 3) == first
    alone = run("alone", 2, 1)
    for name, data in alone.items():
        apart = np.frombuffer(data, np.uint8).astype(int) - np.frombuffer(first[name], np.uint8)
        assert np.abs(apart).max() <= 1
    made = lines(tmp_path / "first" / "metadata.jsonl")
    assert [line["batch_size"] for line in made] == [3, 3, 3, 1]
    assert {tuple(line["degraded"]) for line in made} == {()}
