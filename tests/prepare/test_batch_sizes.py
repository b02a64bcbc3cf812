"""`batch_size: auto`: which sizes are tried, what is taken, and that it stays."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FluxPipeline
from support.launch import FAST

from runner.errors import InterruptedRunError
from runner.launch.stop import Stop
from runner.plan import Plan, Task, batch_limit
from runner.prepare import batch_sizes as probe
from runner.render import pipeline
from runner.render.results import DroppedError
from runner.strategies import ContextParallel, DataParallel, DeviceMap


class Machine:
    """Makes batches in a time of its own, which `probe` reads as the clock's."""

    def __init__(self, seconds: Callable[[int, int], float], most: float = 99) -> None:
        self.seconds = seconds  # of a batch: pixels of an image, images
        self.most = most  # images that find memory
        self.now = 0.0
        self.tried: list[tuple[str, int, int]] = []  # size, images, steps

    def tries(self, tasks: Sequence[Task]) -> bool:
        values = tasks[0].parameters
        height, width = values.get("height", 1024), values.get("width", 1024)
        name = f"{width}x{height}"
        self.tried.append((name, len(tasks), values["num_inference_steps"]))
        self.now += self.seconds(height * width, len(tasks))
        return len(tasks) <= self.most

    def prepare(self, batches: Any) -> None: ...
    def render(self, tasks: Any, degraded: Any = ()) -> Any: ...


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, int]]:
    def find(machine: Machine, plan: Plan, replicas: int = 1) -> dict[str, int]:
        monkeypatch.setattr(probe.time, "perf_counter", lambda: machine.now)
        return probe.probe(machine, plan.tasks(), replicas, Stop(20.0), tmp_path / "trial")

    return find


def images(count: int, height: int = 64, width: int = 64, **values: Any) -> dict[str, Any]:
    size = {"height": height, "width": width, "num_images_per_prompt": count}
    return {"prompt": "a cat", "parameters": {**size, **values}}


Find = Callable[..., dict[str, int]]
Make = Callable[..., Plan]


def test_doubled_while_that_gains(found: Find, plan: Make) -> None:
    some = plan(model="demo", prompts=[images(100)])
    gains_to_eight = Machine(lambda _, count: 10 + 1.0 * count if count <= 8 else 3.0 * count)
    assert found(gains_to_eight, some) == {"64x64": 8}
    assert found(Machine(lambda _, count: 1.0 * count), some) == {"64x64": 1}
    assert found(Machine(lambda *_: 1.0), some) == {"64x64": probe.LARGEST}


def test_what_finds_no_memory_is_not_taken(found: Find, plan: Make) -> None:
    some = plan(model="demo", prompts=[images(100)])
    assert found(Machine(lambda *_: 1.0, most=6), some) == {"64x64": 4}
    assert found(Machine(lambda *_: 1.0, most=0), some) == {"64x64": 1}


def test_no_more_than_there_are_and_enough_for_every_replica(found: Find, plan: Make) -> None:
    eager = Machine(lambda *_: 1.0)
    assert found(eager, plan(model="demo", prompts=[images(5)])) == {"64x64": 4}
    many = plan(model="demo", prompts=[images(64)])
    assert found(eager, many, replicas=2) == {"64x64": 4}
    assert found(eager, many, replicas=64) == {"64x64": 1}
    eager.tried.clear()
    assert found(eager, plan(model="demo", prompts=["a cat"])) == {"default": 1}
    assert not eager.tried


def test_like_sizes_are_tried_as_one_and_in_few_steps(found: Find, plan: Make) -> None:
    sizes = [(64, 64), (56, 72), (32, 32), (128, 128)]
    prompts = [images(40, *size, num_inference_steps=2 + size[0]) for size in sizes]
    machine = Machine(lambda pixels, count: 1000 + pixels * count)
    found_sizes = found(machine, plan(model="demo", prompts=prompts))
    assert list(found_sizes) == ["128x128", "64x64", "32x32"]
    assert found_sizes["128x128"] <= found_sizes["64x64"] <= found_sizes["32x32"]
    assert {steps for *_, steps in machine.tried} == {probe.STEPS}
    assert batch_limit(found_sizes, "72x56") == found_sizes["64x64"]
    assert batch_limit(found_sizes, "64x128") == found_sizes["128x128"]
    assert batch_limit(found_sizes, "default") == 1
    assert batch_limit({"default": 3}, "64x64") == 3
    over = {"64x64": 8, "32x32": 16}
    assert [batch_limit(over, name) for name in ("128x64", "128x128", "256x256")] == [4, 2, 1]
    assert batch_limit({}, "default") == batch_limit({}, "64x64") == 1


def test_a_size_that_the_pipeline_chooses(found: Find, plan: Make) -> None:
    some = plan(model="other", prompts=["a cat"] * 9)
    assert found(Machine(lambda *_: 1.0), some) == {"default": 8}


def test_what_killed_the_process_is_not_tried_again(
    found: Find, plan: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Killed(Machine):
        def tries(self, tasks: Sequence[Task]) -> bool:
            if len(tasks) == 8:
                kept.append(note.read_text())
            return super().tries(tasks)

    some, note = plan(model="demo", prompts=[images(100)]), tmp_path / "trial"
    kept: list[str] = []
    assert found(Killed(lambda *_: 1.0), some) == {"64x64": probe.LARGEST}
    assert not note.exists()
    note.write_text(kept[0])  # as a process leaves it that is killed in a batch of 8
    assert found(Killed(lambda *_: 1.0), some) == {"64x64": probe.LARGEST}  # by whatever reason
    note.write_text(kept[-1])
    assert found(Machine(lambda *_: 1.0), some) == {"64x64": 4}
    assert "2 launches died while they tried 8 images of 64x64" in capsys.readouterr().err
    for junk in ("", "7", "[]", '{"size": 3}', '{"size": "64x64", "images": "x"}'):
        note.write_text(junk)
        assert found(Machine(lambda *_: 1.0), some) == {"64x64": probe.LARGEST}


def test_an_image_that_fails_of_itself_says_nothing(
    found: Find, plan: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing(Machine):
        def tries(self, tasks: Sequence[Task]) -> bool:
            return super().tries(tasks) and "bad" not in tasks[0].prompt

    good, bad = images(100), {**images(1), "prompt": "bad"}
    assert found(Failing(lambda *_: 1.0), plan(model="demo", prompts=[bad, bad, good])) == {
        "64x64": probe.LARGEST
    }
    assert found(Failing(lambda *_: 1.0), plan(model="demo", prompts=[bad] * 9)) == {"64x64": 1}
    assert "no image of 64x64 could be made" in capsys.readouterr().err


def test_compiling_is_not_timed(plan: Make, tmp_path: Path, monkeypatch: Any) -> None:
    class Compiling(Machine):
        def tries(self, tasks: Sequence[Task]) -> bool:
            self.now += 100.0 * (len(tasks) not in {count for _, count, _ in self.tried})
            return super().tries(tasks)

    some = plan(model="demo", prompts=[images(100)])
    for warms_up, size in ((False, 1), (True, probe.LARGEST)):
        machine = Compiling(lambda *_: 1.0)
        monkeypatch.setattr(probe.time, "perf_counter", lambda machine=machine: machine.now)
        given = (machine, some.tasks(), 1, Stop(20.0), tmp_path / "trial")
        assert probe.probe(*given, warms_up=warms_up) == {"64x64": size}


def test_stopped_meanwhile(plan: Make, tmp_path: Path) -> None:
    class Dropping(Machine):
        def tries(self, tasks: Sequence[Task]) -> bool:
            raise DroppedError

    some = plan(model="demo", prompts=["a cat"] * 9)
    with pytest.raises(InterruptedRunError, match="batch sizes were tried"):
        probe.probe(Dropping(lambda *_: 1.0), some.tasks(), 1, Stop(20.0), tmp_path / "trial")


def test_a_trial_ends_at_the_next_step_after_a_stop(flux: Path, plan: Make) -> None:
    """However much time is left: nobody waits for it."""
    pipe = FluxPipeline.from_pretrained(flux, dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    stop, real, steps = Stop(600.0), pipe.transformer.forward, list[int]()
    renderer = pipeline.Pipeline(
        pipe, device=torch.device("cpu"), dtype="float32", strategy=DataParallel(), stop=stop
    )

    def stopped(hidden_states: torch.Tensor, **values: Any) -> Any:
        steps.append(len(hidden_states))
        stop.request()
        return real(hidden_states, **values)

    pipe.transformer.forward = stopped
    (task,) = plan(model=str(flux), parameters=FAST, prompts=["a cat"]).tasks()
    with pytest.raises(DroppedError):
        renderer.tries([task])
    assert steps == [1]
    assert [type(result).__name__ for result in renderer.render([task]).results] == ["Image"]


def test_only_replicas_of_one_rank_try() -> None:
    assert DataParallel().tries_batches
    assert DeviceMap().tries_batches
    assert not DeviceMap(phases=True).tries_batches
    assert not ContextParallel(ulysses_degree=2).tries_batches


def test_the_real_pipeline_tells_whether_a_batch_can_be_made(flux: Path, plan: Make) -> None:
    pipe = FluxPipeline.from_pretrained(flux, dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    renderer = pipeline.Pipeline(
        pipe, device=torch.device("cpu"), dtype="float32", strategy=DataParallel(), stop=Stop(20.0)
    )
    tasks = [*plan(model=str(flux), parameters=FAST, prompts=["a cat"] * 4).tasks()]
    assert renderer.tries(tasks)
    real = pipe.transformer.forward

    def small(hidden_states: torch.Tensor, **values: Any) -> Any:
        if len(hidden_states) > 2:
            raise torch.OutOfMemoryError("no memory")
        return real(hidden_states, **values)

    pipe.transformer.forward = small
    assert not renderer.tries(tasks)
    assert renderer.tries(tasks[:2])
