"""What a run leaves in its folder, and how it calls the pipeline for it."""

import gc
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from support.bench import PROMPTS, Bench
from support.launch import lines, pixels, plan_of, summary
from support.launches import Launcher

from runner.cli import main
from runner.errors import ExitCode
from runner.folder import png
from runner.launch.stop import Stop
from runner.launch.world import World
from runner.manifest.load import load
from runner.model.signature import as_call_values
from runner.plan import Task
from runner.render import load as load_module
from runner.render.load import load as load_pipeline
from runner.render.pipeline import Pipeline


def test_a_run_makes_a_dataset_and_says_so(bench: Bench) -> None:
    bench.values["prompts"][2] = {"prompt": "a\tb\nc 🦊", "seed": 9, "parameters": {"height": 48}}
    assert bench.run() is ExitCode.COMPLETE
    assert sorted(pixels(bench.output)) == [f"{i:06d}.png" for i in range(5)]
    made = lines(bench.output / "metadata.jsonl")
    assert [line["index"] for line in made] == list(range(5))
    assert [line["seed"] for line in made] == [3, 4, 9, 6, 7]
    assert made[2]["prompt"] == "a\tb\nc 🦊"
    assert (made[2]["width"], made[2]["height"]) == (32, 48)
    report = summary(bench.output)
    assert (report["outcome"], report["done"], report["made"], report["missing"]) == (
        "complete",
        5,
        5,
        0,
    )
    [replica] = report["replicas"]
    assert (replica["replica"], replica["images"]) == (0, 5)
    spent = replica["start_s"] + replica["busy_s"] + replica["idle_s"]
    assert spent == pytest.approx(report["seconds"], abs=0.01)
    assert 0 < replica["busy_s"] < report["seconds"]
    assert not (bench.output / "failures.jsonl").exists()
    folder = datasets.load_dataset("imagefolder", data_dir=str(bench.output), split="train")
    assert folder["prompt"] == [line["prompt"] for line in made]
    assert folder[2]["image"].size == (32, 48)


# Case 24.
def test_nothing_of_a_prompt_reaches_a_name(bench: Bench) -> None:
    prompts = ["x" * 2000, "🦊" * 100, "f/2.8 ../../etc", "a\tb\nc", 'a "quoted": thing', "../../x"]
    bench.values["prompts"] = prompts
    assert bench.run() is ExitCode.COMPLETE
    assert sorted(p.name for p in bench.output.iterdir()) == sorted(
        [".runner", "manifest.yaml", "metadata.jsonl", "summary.json"]
        + [f"{i:06d}.png" for i in range(6)]
    )
    assert [line["prompt"] for line in lines(bench.output / "metadata.jsonl")] == prompts


# Case 41.
def test_the_dtype_is_that_of_every_component(bench: Bench) -> None:
    bench.values["dtype"] = "bf16"
    loaded = load(bench.write(**bench.values)).manifest
    pipeline = load_pipeline(
        loaded, Path(loaded.model.id), device=torch.device("cpu"), stop=Stop(1), world=World()
    )
    kinds = {
        parameter.dtype
        for part in pipeline.pipe.components.values()
        if isinstance(part, torch.nn.Module)
        for parameter in part.parameters()
    }
    assert kinds == {torch.bfloat16}


# Case 5.
def test_noise_comes_from_cpu_generators(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Generator] = []
    manifest = load(bench.write(**bench.values)).manifest
    pipeline = load_pipeline(
        manifest, Path(manifest.model.id), device=torch.device("cpu"), stop=Stop(1), world=World()
    )

    class Recorder:
        def __call__(self, **arguments: Any) -> Any:
            given = arguments["generator"]
            seen.extend(given if isinstance(given, list) else [given])
            count = len(arguments["prompt"]) if isinstance(arguments["prompt"], list) else 1
            return type("Output", (), {"images": torch.zeros(count, 3, 8, 8)})

    pipeline.pipe = Recorder()
    pipeline._has_callback = False
    tasks = list(plan_of(load(bench.write(**bench.values))).tasks())
    pipeline.images(tasks[:3])
    pipeline.images(tasks[:1])
    assert [generator.device.type for generator in seen] == ["cpu"] * 4
    assert [generator.initial_seed() for generator in seen] == [3, 4, 5, 3]


def test_the_collector_is_off_while_models_load_and_on_after(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    load_weights = load_module.ModelSource.pipeline

    def watched(self: Any, **arguments: Any) -> Any:
        seen.append(gc.isenabled())
        return load_weights(self, **arguments)

    def images(self: Pipeline, tasks: Any) -> Any:
        seen.append(gc.isenabled())
        raise ValueError

    monkeypatch.setattr(Stop, "install", lambda self: None)  # leave the signals to pytest
    monkeypatch.setattr(load_module.ModelSource, "pipeline", watched)
    monkeypatch.setattr(Pipeline, "images", images)
    path = bench.write(**{**bench.values, "prompts": ["a cat"]})
    try:
        assert main(["run", str(path), "--output", str(bench.output)]) == 3
        assert seen == [False, True]
        assert main(["run", "none.yaml"]) == 2
        assert gc.isenabled()
    finally:
        gc.unfreeze()


# Case 68: here, encoding waits until the next batch has begun.
def test_the_next_batch_does_not_wait_for_the_writer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    second = threading.Event()
    make, encode = Pipeline.images, png.encode

    def images(self: Pipeline, tasks: Any) -> Any:
        calls.append(tasks[0].index)
        if len(calls) == 2:
            second.set()
        return make(self, tasks)

    def patient(*arguments: Any) -> bytes:
        if not second.wait(60):
            raise TimeoutError("the second batch waits for the first to be written")
        return encode(*arguments)

    monkeypatch.setattr(Pipeline, "images", images)
    monkeypatch.setattr(png, "encode", patient)
    bench.values["prompts"] = PROMPTS[:2]
    assert bench.run() is ExitCode.COMPLETE


def test_null_and_tuples_reach_the_call(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    images = Pipeline.images

    def noted(self: Pipeline, tasks: Sequence[Task]) -> Any:
        seen.append(self._arguments(tasks))
        return images(self, tasks)

    monkeypatch.setattr(Pipeline, "images", noted)
    bench.values |= {"batch_size": 2, "prompts": ["a cat", "a dog"]}
    bench.values["parameters"] |= {"sigmas": None, "negative_prompt": None}
    assert bench.run() == ExitCode.COMPLETE
    assert (seen[0]["sigmas"], seen[0]["negative_prompt"]) == (None, None)
    (first, _) = (bench.output / "metadata.jsonl").read_text().splitlines()
    assert json.loads(first)["parameters"]["sigmas"] is None
    assert as_call_values({"original_size": [64, 32], "sigmas": [1.0], "eta": 0}) == {
        "original_size": (64, 32),
        "sigmas": [1.0],
        "eta": 0,
    }


def test_a_sweep_is_the_same_on_any_number_of_processes(ranks: Launcher, tmp_path: Path) -> None:
    sweep = {
        "product": {"true_cfg_scale": [1.0, 2.0, 3.0], "what": ["house", "boat", "cat", "moon"]},
        "zip": {"height": [32, 64], "width": [64, 32]},
    }
    values = {"model": "demo", "seed": {"per": "prompt"}, "sweep": sweep, "prompts": ["a {what}"]}
    path = tmp_path / "sweep.yaml"
    path.write_text(json.dumps({**values, "parameters": {"num_inference_steps": 1}}))
    outputs = [tmp_path / "one", tmp_path / "two"]
    for size, output in enumerate(outputs, 1):
        assert ranks(size, path, "--output", output).codes == [0] * size
    wanted = pixels(outputs[0])
    assert len(wanted) == 24
    assert pixels(outputs[1]) == wanted
    rows = lines(outputs[0] / "metadata.jsonl")
    point = {"true_cfg_scale": 1.0, "what": "house", "height": 32, "width": 64}
    assert rows[0]["sweep"] == point
    assert rows[0]["prompt"] == "a house"
    assert len({json.dumps(row["sweep"]) for row in rows}) == 24
    assert png.read_text(outputs[0] / "000000.png")["sweep"] == json.dumps(point)
