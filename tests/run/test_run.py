"""Whole runs of one process with a tiny real model: resume, changes, failures, reports."""

import contextlib
import functools
import gc
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import runner.images
import torch
from PIL import Image, ImageOps, PngImagePlugin
from support.jobs import wait_for
from support.launch import FAST, lines, pixels, stamps, summary
from transformers import CLIPTextModel

from runner.cli import main
from runner.commands import plan as planned
from runner.commands.plan import show
from runner.commands.status import status
from runner.errors import (
    ExitCode,
    FolderError,
    InterruptedRunError,
    ManifestError,
    ModelError,
    RunnerError,
    StrategyError,
)
from runner.folder.lock import guard
from runner.folder.paths import HEADER
from runner.launch.stop import Stop
from runner.launch.world import World
from runner.manifest.load import load, parse
from runner.model import text_memory as encoders
from runner.prepare import batch_sizes as probe
from runner.prepare.prepare import Job
from runner.render import load as load_module
from runner.render.fake import FakePipeline
from runner.render.pipeline import Pipeline
from runner.render.results import DroppedError
from runner.run import run

Write = Callable[..., Path]
PROMPTS = ["a cat", "a red fox", "no", "the sun", "a dog"]


class Bench:
    """A manifest over the tiny model, changed key by key, and runs of it."""

    def __init__(self, write: Write, flux: Path, home: Path) -> None:
        self.write = write
        self.output = home / "out"
        self.values: dict[str, Any] = {
            "model": str(flux),
            "seed": 3,
            "parameters": dict(FAST),
            "prompts": list(PROMPTS),
        }

    def job(self, **options: Any) -> Job:
        return Job(load(self.write(**self.values)), self.output, **options)

    def run(self, **options: Any) -> ExitCode:
        return run(self.job(**options), World(), Stop(20))

    def status(
        self, limit: int | None = None, shard: tuple[int, int] | None = None
    ) -> dict[str, Any]:
        return status(load(self.write(**self.values)), self.output, limit, shard)

    def plan(self) -> dict[str, Any]:
        with contextlib.redirect_stdout(StringIO()) as out:
            show(load(self.write(**self.values)), self.output, 1, as_json=True)
        return dict(json.loads(out.getvalue()))


@pytest.fixture
def bench(manifest: Write, flux: Path, tmp_path: Path) -> Bench:
    return Bench(manifest, flux, tmp_path)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], None]:
    """Make the pipeline raise, or give the value, for the prompts named."""
    real = Pipeline.images

    def fail(faults: dict[str, Any]) -> None:
        def images(self: Pipeline, tasks: Any) -> Any:
            made = real(self, tasks)
            for place, task in enumerate(tasks):
                fault = faults.get(task.prompt)
                if isinstance(fault, BaseException):
                    raise fault
                if fault is not None:
                    made[place] = fault
            return made

        monkeypatch.setattr(Pipeline, "images", images)

    return fail


def test_a_run_makes_a_dataset_and_says_so(bench: Bench) -> None:
    bench.values["prompts"][2] = {"prompt": "a\tb\nc 🦊", "seed": 9, "parameters": {"height": 48}}
    assert bench.run() is ExitCode.COMPLETE
    assert sorted(pixels(bench.output)) == [f"{i:06d}.png" for i in range(5)]
    made = lines(bench.output / "metadata.jsonl")
    assert [line["index"] for line in made] == list(range(5))
    assert [line["seed"] for line in made] == [3, 4, 9, 6, 7]
    assert made[2]["prompt"] == "a\tb\nc 🦊"
    assert (made[2]["width"], made[2]["height"]) == (32, 48)
    told = summary(bench.output)
    assert (told["outcome"], told["done"], told["made"], told["missing"]) == ("complete", 5, 5, 0)
    [replica] = told["replicas"]
    assert (replica["replica"], replica["images"]) == (0, 5)
    spent = replica["start_s"] + replica["busy_s"] + replica["idle_s"]
    assert spent == pytest.approx(told["seconds"], abs=0.01)
    assert 0 < replica["busy_s"] < told["seconds"]
    assert not (bench.output / "failures.jsonl").exists()
    folder = datasets.load_dataset("imagefolder", data_dir=str(bench.output), split="train")
    assert folder["prompt"] == [line["prompt"] for line in made]
    assert folder[2]["image"].size == (32, 48)


# Case 3, and "enough to make it again".
def test_an_image_alone_makes_itself_again(bench: Bench) -> None:
    import json

    bench.values["prompts"] = [{"prompt": "a cat", "parameters": {"num_images_per_prompt": 4}}]
    bench.run()
    seeds = [line["seed"] for line in lines(bench.output / "metadata.jsonl")]
    assert len(set(seeds)) == 4
    with Image.open(bench.output / "000002.png") as image:
        text = dict(image.info)
    again = Bench(bench.write, Path(json.loads(text["model"])["id"]), bench.output.parent)
    again.output = bench.output.parent / "again"
    again.values["prompts"] = [
        {
            "prompt": text["prompt"],
            "seed": int(text["seed"]),
            "parameters": json.loads(text["parameters"]),
        }
    ]
    again.values["parameters"] = {}
    again.run()
    assert pixels(again.output)["000000.png"] == pixels(bench.output)["000002.png"]


def test_the_same_again_touches_nothing_and_loads_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run()
    before = stamps(bench.output)

    def load_again(*_: object) -> None:
        raise AssertionError("a model was loaded for nothing")

    monkeypatch.setattr("runner.render.load.load", load_again)
    assert bench.run() is ExitCode.COMPLETE
    assert stamps(bench.output) == before


# Case 26.
def test_broken_files_are_made_again_and_just_those(bench: Bench) -> None:
    bench.run()
    good, before = pixels(bench.output), stamps(bench.output)
    half = (bench.output / "000002.png").read_bytes()
    (bench.output / "000002.png").write_bytes(half[: len(half) // 2])
    (bench.output / "000003.png").write_bytes(b"")
    (bench.output / "000001.png").unlink()
    left_over = bench.output / ".000001.png.dead0000.0a0b0c0d.part"
    left_over.write_bytes(b"x")
    assert bench.run() is ExitCode.COMPLETE
    assert pixels(bench.output) == good
    after = stamps(bench.output)
    assert {name for name in after if after[name] != before[name]} == {
        "000001.png",
        "000002.png",
        "000003.png",
    }
    assert not left_over.exists()
    assert summary(bench.output)["made"] == 3


def test_after_an_unclean_end_files_are_read_whole(bench: Bench) -> None:
    bench.run()
    good, before = pixels(bench.output), stamps(bench.output)
    (journal,) = (bench.output / ".runner" / "journal").glob("*.jsonl")
    whole = journal.read_bytes().splitlines(keepends=True)
    # The process died in the middle of its line for image 4, and a block of image 1 was lost.
    journal.write_bytes(b"".join(whole[:4]) + whole[4][:10])
    data = bytearray((bench.output / "000001.png").read_bytes())
    data[-40] ^= 0xFF
    (bench.output / "000001.png").write_bytes(data)
    assert bench.run() is ExitCode.COMPLETE
    assert pixels(bench.output) == good
    after = stamps(bench.output)
    assert {name for name in after if after[name] != before[name]} == {"000001.png"}
    assert len(lines(bench.output / "metadata.jsonl")) == 5


# Case 28, invariant 7.
def test_a_changed_prompt_is_named_and_regenerated_alone(bench: Bench) -> None:
    bench.run()
    before = stamps(bench.output)
    bench.values["prompts"][1] = "a blue fox"
    with pytest.raises(FolderError, match="1: the manifest changed since.*--regenerate"):
        bench.run()
    assert stamps(bench.output) == before
    assert bench.run(regenerate=True) is ExitCode.COMPLETE
    after = stamps(bench.output)
    assert {name for name in after if after[name] != before[name]} == {"000001.png"}
    assert lines(bench.output / "metadata.jsonl")[1]["prompt"] == "a blue fox"
    assert bench.run() is ExitCode.COMPLETE
    assert stamps(bench.output) == after


def test_a_prompt_put_first_and_other_steps_are_named(bench: Bench) -> None:
    bench.run()
    bench.values["prompts"].insert(0, "snow")
    with pytest.raises(FolderError, match="0, 1, 2, 3, 4: the manifest changed"):
        bench.run()
    bench.values["prompts"].pop(0)
    bench.values["parameters"]["num_inference_steps"] = 3
    with pytest.raises(FolderError, match="0, 1, 2, 3, 4: the manifest changed"):
        bench.run()


def test_a_shortened_list_and_a_longer_one(bench: Bench) -> None:
    bench.run()
    before = stamps(bench.output)
    bench.values["prompts"] = PROMPTS[:3]
    with pytest.raises(FolderError, match=r"000003.png, 000004.png: beyond the end"):
        bench.run()
    assert stamps(bench.output) == before
    assert bench.run(regenerate=True) is ExitCode.COMPLETE
    assert set(stamps(bench.output)) == {"000000.png", "000001.png", "000002.png"}
    bench.values["prompts"] = [*PROMPTS, "snow"]
    assert bench.run() is ExitCode.COMPLETE
    assert len(pixels(bench.output)) == 6


# Case 23, 21: files that the runner did not write.
def test_files_of_others_are_never_overwritten(bench: Bench) -> None:
    bench.output.mkdir()
    theirs = bench.output / "000002.png"
    Image.new("RGB", (8, 8)).save(theirs)
    before = theirs.read_bytes()
    for options in ({}, {"regenerate": True}):
        with pytest.raises(FolderError, match="000002.png in .*not written by the runner"):
            bench.run(**options)
    assert theirs.read_bytes() == before
    theirs.unlink()
    (bench.output / "holiday.png").write_bytes(b"mine")
    assert bench.run() is ExitCode.COMPLETE
    assert (bench.output / "holiday.png").read_bytes() == b"mine"


def test_a_picture_put_in_place_of_an_image_is_not_removed(bench: Bench) -> None:
    bench.run()
    path = bench.output / "000001.png"
    with Image.open(path) as image:
        words = PngImagePlugin.PngInfo()
        for key, value in image.text.items():
            words.add_itxt(key, value)
        edited = ImageOps.invert(image)
    for save in (
        lambda: Image.new("RGB", (64, 64)).save(path, "JPEG"),
        lambda: path.write_text("x"),
        lambda: edited.save(path, pnginfo=words),  # as an editor does that keeps our words
    ):
        save()
        before = path.read_bytes()
        with pytest.raises(FolderError, match="000001.png in .*not written by the runner"):
            bench.run()
        assert path.read_bytes() == before


def test_an_edited_picture_of_the_same_size_is_not_replaced(bench: Bench) -> None:
    bench.values |= {"output": {"png_level": 0}, "prompts": ["a cat", "a red fox"]}
    bench.run()
    path, other = bench.output / "000000.png", bench.output / "000001.png"
    size, before = path.stat().st_size, other.read_bytes()
    with Image.open(path) as image:
        words = PngImagePlugin.PngInfo()
        for key, value in image.text.items():
            words.add_itxt(key, value)
        ImageOps.invert(image).save(path, pnginfo=words, compress_level=0)
    edited = path.read_bytes()
    assert len(edited) == size
    bench.values["seed"] = 9
    assert bench.run(regenerate=True) is ExitCode.FAILED
    [failed] = lines(bench.output / "failures.jsonl")
    assert (failed["index"], failed["kind"]) == (0, "taken")
    assert path.read_bytes() == edited
    assert other.read_bytes() != before


def test_a_limited_run_leaves_what_it_was_not_asked_for(bench: Bench) -> None:
    bench.run()
    path = bench.output / "000004.png"
    path.write_bytes(b"")
    bench.run(limit=2)
    assert path.read_bytes() == b""
    bench.run()
    assert path.stat().st_size > 0


def test_after_a_part_the_rest_is_another_command(bench: Bench) -> None:
    bench.run(limit=2)
    assert bench.status(limit=2)["exit_code"] == 0
    told = bench.status()
    assert told["exit_code"] == 75
    assert "run without --limit" in told["sentence"]
    assert "same command" not in told["sentence"]


def test_hidden_files_of_the_user_stay(bench: Bench) -> None:
    """And numbers that no image folder has."""
    bench.values["output"] = {"images_per_folder": 2}
    bench.output.mkdir()
    for name in ("7", "\u0667\u0667\u0667\u0667\u0667\u0667"):
        (bench.output / name).write_bytes(b"mine")
    theirs = bench.output / ".movie.2024.mkv.part"
    theirs.write_bytes(b"mine")
    bench.run()
    assert theirs.read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["metadata.jsonl", "manifest.yaml", "summary.json"])
def test_reports_of_others_are_never_overwritten(bench: Bench, name: str) -> None:
    bench.output.mkdir()
    (bench.output / name).write_text("theirs")
    with pytest.raises(FolderError, match=f"{name}: was not written by the runner"):
        bench.run()
    assert (bench.output / name).read_text() == "theirs"


def test_reports_put_there_after_a_refused_run_are_not_overwritten(bench: Bench) -> None:
    """The refused run left a folder `.runner`, which says nothing about who wrote the rest."""
    bench.values["dtype"] = "float16"
    with pytest.raises(StrategyError):
        bench.run()
    theirs = bench.output / "metadata.jsonl"
    theirs.write_text('{"file_name": "a.png", "text": "mine"}\n')
    bench.values["dtype"] = "float32"
    with pytest.raises(FolderError, match=r"metadata.jsonl: was not written by the runner"):
        bench.run()
    assert "mine" in theirs.read_text()


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("metadata.jsonl", Path.mkdir),
        ("summary.json", Path.mkdir),
        ("failures.jsonl", os.mkfifo),
        ("manifest.yaml", Path.mkdir),
        (".runner", Path.touch),
        (".runner/locks", Path.touch),
        (".runner/locks/guard", os.mkfifo),
        (".runner/stop", Path.mkdir),
        (".runner/locks/all.json", os.mkfifo),
        ("000001", Path.touch),
        ("000000/000001.png", os.mkfifo),
        ("", Path.touch),
    ],
)
def test_names_of_ours_that_are_something_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str, make: Callable[[Path], None]
) -> None:
    """A folder or a pipe instead of a file, a file instead of a folder: one line, and no hang."""
    monkeypatch.setattr("runner.folder.lock.DEAD_AFTER_S", 0.5)
    monkeypatch.setattr("runner.folder.lock.is_alive.__defaults__", (0.5,))
    bench.values["output"] = {"images_per_folder": 2}
    path = bench.output / name
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)
    if name.endswith("all.json"):  # a lock of nobody
        assert bench.run(limit=1) is ExitCode.COMPLETE
        return
    with pytest.raises(FolderError, match=re.escape(path.name)):
        bench.run()
    if name not in (".runner/stop", "000000/000001.png"):
        with pytest.raises(FolderError, match=re.escape(path.name)):
            bench.status()


def test_links_in_the_folder_are_not_followed(bench: Bench, tmp_path: Path) -> None:
    bench.output.mkdir()
    outside = tmp_path / "outside.png"
    outside.write_bytes(b"theirs")
    (bench.output / "000000.png").symlink_to(outside)
    (bench.output / "000001.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(FolderError, match="000000.png, 000001.png in .*not written"):
        bench.run()
    assert outside.read_bytes() == b"theirs"
    assert not (tmp_path / "nowhere.png").exists()


# Cases 27, 34.
def test_a_failure_is_recorded_and_tried_again(bench: Bench, failing: Any) -> None:
    failing({"no": ValueError("bad <b>prompt</b>"), "the sun": RuntimeError("x")})
    assert bench.run() is ExitCode.FAILED
    assert sorted(pixels(bench.output)) == ["000000.png", "000001.png", "000004.png"]
    failed = lines(bench.output / "failures.jsonl")
    assert [(f["index"], f["kind"]) for f in failed] == [(2, "error"), (3, "error")]
    assert failed[0]["error"] == "ValueError: bad <b>prompt</b>"
    told = summary(bench.output)
    assert (told["outcome"], told["failed"], told["exit_code"]) == ("failed", 2, 3)
    assert bench.status()["exit_code"] == 3
    before = stamps(bench.output)
    failing({})
    assert bench.run() is ExitCode.COMPLETE
    assert not (bench.output / "failures.jsonl").exists()
    assert {name: stamps(bench.output)[name] for name in before} == before
    assert summary(bench.output)["made"] == 2


# Case 32.
def test_values_that_are_not_finite_are_no_image(bench: Bench, failing: Any) -> None:
    failing({"no": torch.nan})
    assert bench.run() is ExitCode.FAILED
    assert not (bench.output / "000002.png").exists()
    (failed,) = lines(bench.output / "failures.jsonl")
    assert (failed["index"], failed["kind"]) == (2, "non-finite")


# Case 34: a limit.
def test_max_failures_stops_the_run(bench: Bench, failing: Any) -> None:
    failing({prompt: ValueError("all") for prompt in PROMPTS})
    bench.values["max_failures"] = 2
    assert bench.run() is ExitCode.FAILED
    # The writer records in the background: the batch after the limit may have begun.
    assert 2 <= len(lines(bench.output / "failures.jsonl")) <= 3
    assert summary(bench.output)["outcome"] == "failed"


def test_failures_of_earlier_launches_do_not_end_one(
    bench: Bench, failing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch that is stopped before it tried them again is to go on: a script runs it again."""
    failing({prompt: ValueError("all") for prompt in PROMPTS})
    bench.values["max_failures"] = 2
    assert bench.run() is ExitCode.FAILED

    def stopped(self: Pipeline, tasks: Any) -> Any:
        raise DroppedError

    monkeypatch.setattr(Pipeline, "images", stopped)
    assert bench.run() is ExitCode.INCOMPLETE
    assert summary(bench.output)["outcome"] == "interrupted"
    assert bench.status()["exit_code"] == 75


def test_a_launch_with_nothing_to_do_keeps_the_figures(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    bench.run()
    before = summary(bench.output)
    assert before["made"] == len(PROMPTS)
    assert len(before["replicas"]) == 1
    capfd.readouterr()
    assert bench.run() is ExitCode.COMPLETE
    assert summary(bench.output) == before
    assert "made now" not in capfd.readouterr().err


def test_prompts_that_change_while_they_are_made(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, real = tmp_path / "list.txt", Pipeline.images
    file.write_text("a cat\na dog\na fox\n")
    bench.values["prompts"] = {"file": "list.txt"}

    def images(self: Pipeline, tasks: Any) -> Any:
        file.write_text("a cat\na hen\na fox\n")
        return real(self, tasks)

    monkeypatch.setattr(Pipeline, "images", images)
    with pytest.raises(InterruptedRunError, match="list.txt:2: not what it was"):
        bench.run()
    told = summary(bench.output)
    assert (told["outcome"], told["done"], told["missing"]) == ("interrupted", 1, 2)
    assert any("list.txt:2: not what" in error for error in told["errors"])
    file.write_text("a cat\na dog\na fox\n")
    monkeypatch.setattr(Pipeline, "images", real)
    assert bench.run() is ExitCode.COMPLETE


# Case 33: a batch that fails is made one by one; what it was is in the record.
def test_a_failed_batch_is_split(bench: Bench, failing: Any) -> None:
    bench.values["batch_size"] = 3
    failing({"a red fox": MemoryError("no room")})
    assert bench.run() is ExitCode.FAILED
    (failed,) = lines(bench.output / "failures.jsonl")
    assert (failed["index"], failed["kind"]) == (1, "out-of-memory")
    made = {line["index"]: line for line in lines(bench.output / "metadata.jsonl")}
    assert {index: line["degraded"] for index, line in made.items()} == {
        0: ["batch split"],
        2: ["batch split"],
        3: [],
        4: [],
    }


def test_a_part_of_a_batch_is_made_with_the_whole(bench: Bench) -> None:
    bench.values["batch_size"] = 3
    bench.run()
    good, before = pixels(bench.output), stamps(bench.output)
    (bench.output / "000001.png").unlink()
    bench.run()
    assert pixels(bench.output) == good
    changed = [name for name, stamp in stamps(bench.output).items() if stamp != before[name]]
    assert changed == ["000001.png"]


# Case 2: batches move the low bits at most.
def test_batches_do_not_move_the_picture(bench: Bench) -> None:
    bench.run()
    one = pixels(bench.output)
    for size in (2, 4):
        bench.values["batch_size"] = size
        bench.output = bench.output.parent / f"batch{size}"
        bench.run()
        for name, data in pixels(bench.output).items():
            here = np.frombuffer(data, np.uint8).astype(int)
            assert np.abs(here - np.frombuffer(one[name], np.uint8)).max() <= 1
        assert {line["batch_size"] for line in lines(bench.output / "metadata.jsonl")} <= {
            size,
            len(PROMPTS) % size,
        }


def test_found_once_recorded_and_used_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def found(renderer: Any, tasks: Any, replicas: int, *_: Any, **__: Any) -> dict[str, int]:
        asked.append(len([*tasks]))
        return {"default": 3}

    monkeypatch.setattr(probe, "probe", found)
    bench.values["batch_size"] = "auto"
    bench.values["prompts"] = [f"cat {number}" for number in range(7)]
    bench.run(limit=4)
    assert asked == [7]
    recorded = parse(bench.output / "manifest.yaml")[0]
    assert (recorded.batch_size, recorded.batch_sizes) == ("auto", {"default": 3})
    assert summary(bench.output)["launch"]["batch_sizes"] == {"default": 3}
    bench.run()
    bench.run(shard=(1, 2))
    assert asked == [7]
    sizes = [line["batch_size"] for line in lines(bench.output / "metadata.jsonl")]
    assert sizes == [3, 3, 3, 3, 3, 3, 1]


def test_a_part_of_the_plan_is_cut_from_the_batches_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "probe", lambda *_, **__: {"default": 2})
    bench.values["batch_size"] = "auto"
    bench.values["prompts"] = [f"cat {number}" for number in range(6)]
    bench.run(shard=(2, 2))
    assert [path.stem for path in sorted(bench.output.glob("*.png"))] == ["000002", "000003"]


def test_a_part_that_is_done_in_single_images_waits_for_the_batches_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "probe", lambda *_, **__: {"default": 2})
    bench.values["prompts"] = [f"cat {number}" for number in range(6)]
    bench.run(shard=(2, 2))  # 1, 3, 5
    bench.values["batch_size"] = "auto"
    bench.run(shard=(2, 2))  # 2 and 3 are its batch now
    assert bench.run(shard=(1, 2)) is ExitCode.COMPLETE
    assert len(pixels(bench.output)) == 6
    assert summary(bench.output)["outcome"] == "complete"


def test_a_complete_folder_needs_no_batches(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "probe", lambda *_, **__: pytest.fail("tried"))
    bench.run()
    bench.values["batch_size"] = "auto"
    assert bench.run() is ExitCode.COMPLETE
    assert bench.run(shard=(2, 2)) is ExitCode.COMPLETE


def test_status_knows_of_a_refusal(bench: Bench) -> None:
    bench.values["strategy"] = {"kind": "context_parallel", "ulysses_degree": 2}
    with pytest.raises(StrategyError) as refused:
        bench.run()
    with pytest.raises(RunnerError, match=re.escape(str(refused.value))) as told:
        bench.status()
    assert told.value.exit_code is ExitCode.REFUSED
    del bench.values["strategy"]
    assert bench.run() is ExitCode.COMPLETE
    assert bench.status()["exit_code"] == 0


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

    monkeypatch.setattr(Stop, "install", lambda self: None)  # signals stay pytest's
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


PHASES = {"kind": "device_map", "phases": True}


# Case 39: told once, with the images; the record says which words were dropped.
@pytest.mark.parametrize("strategy", ["data_parallel", PHASES])
def test_texts_that_a_tokenizer_cuts(
    bench: Bench, capfd: pytest.CaptureFixture[str], strategy: Any
) -> None:
    bench.values["strategy"] = strategy
    bench.values["batch_size"] = 2
    short, long = "a red fox in the snow", "a cat on a hill " * 4 + "under the moon " * 2
    unknown = "a cat on a hill " * 4 + "qwx"
    bench.values["prompts"] = [short, long, unknown]
    bench.values["parameters"] = {**FAST, "max_sequence_length": 18}
    assert bench.run() is ExitCode.COMPLETE
    told = [line for line in capfd.readouterr().err.splitlines() if "cut" in line]
    assert len(told) == 1
    assert "in 2 of the images (1, 2);" in told[0]
    fox, cat, qwx = lines(bench.output / "metadata.jsonl")
    assert "truncated" not in fox
    # CLIP's 77 tokens hold all of it; T5 gets 17 words and the end.
    assert cat["truncated"] == {"tokenizer_2": "on a hill under the moon under the moon"}
    assert qwx["truncated"] == {"tokenizer_2": "on a hill <unk>"}


def test_shards_that_end_together_leave_the_report_of_both(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one ends between the first one's look at the journals and its reports."""
    module = sys.modules["runner.run"]
    monkeypatch.setattr(load_module, "load", lambda *given: FakePipeline(given[4]))
    merge, waits = module.merge, threading.Event()
    other = threading.Thread(target=lambda: bench.run(shard=(2, 2)))

    def meanwhile(*given: Any) -> Any:
        record = merge(*given)
        if not other.ident:
            other.start()
            wait_for(lambda: waits.is_set() or not other.is_alive())
        return record

    def watched(path: Path, patience_s: float) -> Any:
        if threading.current_thread() is other:
            waits.set()
        return guard(path, patience_s)

    monkeypatch.setattr(module, "merge", meanwhile)
    monkeypatch.setattr(module, "guard", watched, raising=False)
    bench.run(shard=(1, 2))
    other.join(60)
    assert summary(bench.output)["outcome"] == "complete"
    assert [line["index"] for line in lines(bench.output / "metadata.jsonl")] == list(range(5))


def test_limit_and_shard_make_their_part(bench: Bench) -> None:
    assert bench.run(limit=2) is ExitCode.COMPLETE
    assert sorted(pixels(bench.output)) == ["000000.png", "000001.png"]
    assert summary(bench.output)["outcome"] == "limited"
    assert bench.status(limit=2)["exit_code"] == 0
    assert bench.status(limit=3)["exit_code"] == bench.status()["exit_code"] == 75
    assert "; 3 missing; 1 left of the 3 asked for; run" in bench.status(limit=3)["sentence"]
    assert "; 3 missing; 1 left of the 2 asked for; run" in bench.status(shard=(2, 2))["sentence"]
    assert not any("asked for" in bench.status(limit=n)["sentence"] for n in (2, None))
    assert bench.run(shard=(2, 2)) is ExitCode.COMPLETE
    assert sorted(pixels(bench.output)) == ["000000.png", "000001.png", "000003.png"]
    assert bench.run(shard=(1, 2)) is ExitCode.COMPLETE
    assert summary(bench.output)["outcome"] == "complete"


def test_a_drawn_seed_is_kept(bench: Bench) -> None:
    del bench.values["seed"]
    assert bench.run(limit=2) is ExitCode.COMPLETE
    assert bench.run() is ExitCode.COMPLETE
    seeds = [line["seed"] for line in lines(bench.output / "metadata.jsonl")]
    assert seeds == list(range(seeds[0], seeds[0] + 5))
    other = Bench(bench.write, Path(bench.values["model"]), bench.output.parent / "other")
    other.values = bench.values
    other.run(limit=1)
    assert lines(other.output / "metadata.jsonl")[0]["seed"] != seeds[0]
    (bench.output / "manifest.yaml").unlink()
    (bench.output / "000000.png").unlink()
    for ask in (bench.run, bench.status, bench.plan):
        with pytest.raises(FolderError, match=f"manifest.yaml.* is gone.*--set seed={seeds[0]},"):
            ask()
    assert not (bench.output / "manifest.yaml").exists()
    bench.values["seed"] = seeds[0]
    assert (bench.plan()["finished"], bench.plan()["remarks"]) == (4, [])


def test_image_folders_and_their_change(bench: Bench) -> None:
    bench.values["output"] = {"images_per_folder": 2}
    assert bench.run() is ExitCode.COMPLETE
    names = [line["file_name"] for line in lines(bench.output / "metadata.jsonl")]
    assert names == [f"{i // 2:06d}/{i:06d}.png" for i in range(5)]
    folder = datasets.load_dataset("imagefolder", data_dir=str(bench.output), split="train")
    assert folder["index"] == list(range(5))
    bench.values["output"] = {}
    with pytest.raises(FolderError, match=r"images_per_folder .*null \(000000/000000.png\)"):
        bench.run()
    assert bench.status()["exit_code"] == 2


def test_image_folders_that_come_when_all_records_are_gone(bench: Bench) -> None:
    """No image gets a second name."""
    bench.values["prompts"] = PROMPTS[:2]
    bench.run()
    shutil.rmtree(bench.output / ".runner")
    for path in (*bench.output.glob("*.json*"), bench.output / "manifest.yaml"):
        path.unlink()
    bench.values["output"] = {"images_per_folder": 1}
    with pytest.raises(FolderError, match=r"images_per_folder .*1 \(000000.png\)"):
        bench.run()


def test_a_folder_without_its_journals_is_adopted(bench: Bench) -> None:
    bench.run()
    before = stamps(bench.output)
    shutil.rmtree(bench.output / ".runner")
    assert bench.run() is ExitCode.COMPLETE
    assert stamps(bench.output) == before
    assert len(lines(bench.output / "metadata.jsonl")) == 5


def test_status_answers_as_a_run_would_and_loses_nothing(bench: Bench) -> None:
    bench.run()
    picture = bench.output / "000003.png"
    before = picture.read_bytes()
    picture.write_text("mine")
    told = bench.status()
    assert told["exit_code"] == 2
    assert "000003.png in" in told["sentence"]
    picture.write_bytes(before)
    shutil.rmtree(bench.output / ".runner")
    reports = {path: path.read_bytes() for path in bench.output.glob("*.json*")}
    (told, left) = (bench.status(), bench.output / "000004.png")
    assert (told["outcome"], told["done"], told["exit_code"]) == ("complete", 5, 0)
    left.unlink()
    told = bench.status()
    assert (told["done"], told["missing"], told["exit_code"]) == (4, 1, 75)
    bench.values["seed"] = 5
    assert bench.status()["exit_code"] == 2
    assert {path: path.read_bytes() for path in bench.output.glob("*.json*")} == reports
    assert not (bench.output / ".runner").exists()


def test_a_moved_model_and_a_changed_one(bench: Bench, tmp_path: Path) -> None:
    from support import tiny

    copy = shutil.copytree(bench.values["model"], tmp_path / "copy")
    bench.run()
    before = stamps(bench.output)
    bench.values["model"] = str(copy)
    assert bench.run() is ExitCode.COMPLETE
    assert stamps(bench.output) == before
    tiny.edit_json(copy / "scheduler" / "scheduler_config.json", shift=3.0)
    with pytest.raises(FolderError, match="the manifest changed"):
        bench.run()


# Case 37.
@pytest.mark.parametrize("name", ["negative_promt", "strength", "guidance"])
def test_parameters_that_the_call_does_not_take(bench: Bench, name: str) -> None:
    bench.values["prompts"][3] = {"prompt": "a cat", "parameters": {name: "x"}}
    with pytest.raises(ModelError, match=rf"prompts\[3\]: FluxPipeline takes no {name}"):
        bench.run()
    assert not pixels(bench.output)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"max_sequence_length": 513}, "greater than 512 but is 513; use max_sequence_length 512"),
        ({"true_cfg_scale": "4e0"}, 'takes float, not "4e0"; write 4.0'),
    ],
)
def test_values_that_the_call_would_refuse(bench: Bench, values: Any, words: str) -> None:
    bench.values["prompts"][1] = {"prompt": "a cat", "parameters": values}
    with pytest.raises(ModelError, match=rf"prompts\[1\]: .*{words}"):
        bench.run()
    assert not pixels(bench.output)


def test_sizes_that_the_model_would_round(bench: Bench) -> None:
    bench.values["prompts"][1] = {"prompt": "a cat", "parameters": {"height": 40}}
    with pytest.raises(ModelError, match=r"prompts\[1\]: height 40 .* 16.* use 32 or 48"):
        bench.run()


# Case 42.
def test_float16_needs_a_gpu(bench: Bench) -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is a GPU")
    bench.values["dtype"] = "half"
    with pytest.raises(StrategyError, match="float16 needs a GPU.*use float32 or bfloat16"):
        bench.run()


@pytest.mark.parametrize("strategy", ["data_parallel", PHASES])
def test_a_text_that_comes_again_is_encoded_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, strategy: Any
) -> None:
    real, rows = CLIPTextModel.forward, []

    @functools.wraps(real)
    def forward(self: Any, input_ids: torch.Tensor, **others: Any) -> Any:
        rows.append(len(input_ids))
        return real(self, input_ids, **others)

    monkeypatch.setattr(CLIPTextModel, "forward", forward)
    monkeypatch.setattr(encoders, "RECENT", 2)  # outputs: of the last text
    bench.values["strategy"] = strategy
    bench.values["prompts"] = ["a cat", "a dog", "a fox", "a cat"]
    assert bench.run() == 0
    assert sum(rows) == 3


def test_phases_tell_calls_apart_by_all_that_they_are_given(bench: Bench) -> None:
    bench.values["seed"] = {"fixed": 5}
    scales: list[dict[str, Any]] = [{"guidance_scale": 1.5}, {"num_inference_steps": 3}, {}]
    bench.values["prompts"] = [{"prompt": "a cat", "parameters": one} for one in scales]
    bench.run()
    plain = [pixels(bench.output / f"{index:06d}.png") for index in range(3)]
    bench.output, bench.values["strategy"] = bench.output / "phases", PHASES
    assert bench.run() == 0
    for index, image in enumerate(plain):
        assert np.array_equal(pixels(bench.output / f"{index:06d}.png"), image)


def test_phases_read_weights_once_a_window(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    failing: Callable[[dict[str, Any]], None],
) -> None:
    """Also where a call comes twice; where a batch fails, once more for each of its images."""
    loads, real = [], load_module.ModelSource.component

    def component(self: Any, name: str, **arguments: Any) -> Any:
        loads.append(name)
        return real(self, name, **arguments)

    monkeypatch.setattr(load_module.ModelSource, "component", component)
    bench.values.update(strategy=PHASES, seed={"fixed": 5}, batch_size=2)
    failing({"no": ValueError("no")})
    bench.values["prompts"] = ["no", *["a cat"] * 5, "a dog", "a fox"]
    assert bench.run() is ExitCode.FAILED
    assert len(loads) == 4 + 2 * 4
    assert [line["index"] for line in lines(bench.output / "failures.jsonl")] == [0]


# Case 41: the dtype asked for is the dtype of every component.
def test_the_dtype_is_that_of_every_component(bench: Bench) -> None:
    from runner.render.load import load as load_pipeline

    bench.values["dtype"] = "bf16"
    loaded = load(bench.write(**bench.values)).manifest
    pipeline = load_pipeline(
        loaded, Path(loaded.model.id), loaded.strategy, torch.device("cpu"), Stop(1), World()
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
    from runner.render.load import load as load_pipeline

    seen: list[torch.Generator] = []
    manifest = load(bench.write(**bench.values)).manifest
    pipeline = load_pipeline(
        manifest, Path(manifest.model.id), manifest.strategy, torch.device("cpu"), Stop(1), World()
    )

    class Recorder:
        def __call__(self, **arguments: Any) -> Any:
            given = arguments["generator"]
            seen.extend(given if isinstance(given, list) else [given])
            count = len(arguments["prompt"]) if isinstance(arguments["prompt"], list) else 1
            return type("Output", (), {"images": torch.zeros(count, 3, 8, 8)})

    from support.launch import plan_of

    pipeline.pipe = Recorder()
    pipeline._has_callback = False
    tasks = list(plan_of(load(bench.write(**bench.values))).tasks())
    pipeline.images(tasks[:3])
    pipeline.images(tasks[:1])
    assert [generator.device.type for generator in seen] == ["cpu"] * 4
    assert [generator.initial_seed() for generator in seen] == [3, 4, 5, 3]


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


def test_status_before_and_after(bench: Bench) -> None:
    told = bench.status()
    assert told["exit_code"] == 75
    assert told["sentence"].startswith("never run: 0 of 5 images")
    theirs = bench.output / "000002.png"
    theirs.parent.mkdir()
    theirs.write_bytes(b"mine")
    with pytest.raises(FolderError, match="000002.png in .*not written by the runner"):
        bench.status()
    theirs.unlink()
    bench.run()
    (bench.output / "000004.png").unlink()
    reports = [bench.output / "metadata.jsonl", bench.output / "summary.json"]
    before = [path.read_bytes() for path in reports]
    bench.values["prompts"][1] = "a blue fox"
    told = bench.status()
    assert told["exit_code"] == 2  # as a run would
    assert "would not make (1: the manifest changed since)" in told["sentence"]
    bench.values["prompts"][1:] = []
    assert bench.status()["exit_code"] == 2
    assert [path.read_bytes() for path in reports] == before
    bench.values["prompts"] = list(PROMPTS)
    told = bench.status()
    assert (told["outcome"], told["exit_code"], told["missing"]) == ("interrupted", 75, 1)
    assert len(lines(bench.output / "metadata.jsonl")) == 4
    assert bench.status(limit=4)["exit_code"] == 0
    before = [path.stat().st_ino for path in reports]
    assert bench.status()["exit_code"] == 75
    assert [path.stat().st_ino for path in reports] == before  # nothing new: only read


@pytest.fixture
def at_image(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], None]], None]:
    """Do something while a job is about to render its image of that number, the others written."""
    real = Pipeline.images

    def do(number: int, action: Callable[[], None]) -> None:
        def images(self: Pipeline, tasks: Any) -> Any:
            if tasks[0].index == number:
                action()
            return real(self, tasks)

        monkeypatch.setattr(Pipeline, "images", images)

    return do


def test_status_while_a_job_works(
    bench: Bench, at_image: Callable[[int, Callable[[], None]], None]
) -> None:
    told: list[dict[str, Any]] = []

    def ask() -> None:
        wait_for(lambda: bench.status()["done"] == 3)
        told.append(bench.status())
        assert not (bench.output / "metadata.jsonl").exists()

    at_image(3, ask)
    assert bench.run() is ExitCode.COMPLETE
    assert (told[0]["outcome"], told[0]["exit_code"], told[0]["made"]) == ("running", 75, 3)
    # The same rate as at the end: images made since the launch began.
    last = summary(bench.output)
    for one in (*told, last, bench.status()):
        rate = one["made"] / one["seconds"]
        assert one["images_per_second"] == pytest.approx(rate, rel=0.01)
    assert bench.status()["seconds"] == last["seconds"]


def test_status_and_a_run_agree_while_a_sibling_shard_writes(
    bench: Bench, at_image: Callable[[int, Callable[[], None]], None]
) -> None:
    told: list[dict[str, Any]] = []

    def sibling() -> None:
        wait_for(lambda: bench.status()["done"] == 1)
        assert bench.run(shard=(2, 2)) is ExitCode.COMPLETE
        told.extend([summary(bench.output), bench.status(shard=(2, 2)), bench.status()])

    at_image(2, sibling)
    assert bench.run(shard=(1, 2)) is ExitCode.COMPLETE
    assert [(one["done"], one["missing"]) for one in told] == [(3, 2)] * 3
    assert [one["made"] for one in told[:2]] == [2, 2]
    assert [one["exit_code"] for one in told] == [0, 0, 75]
    assert summary(bench.output)["done"] == bench.status()["done"] == 5


def test_a_summary_with_a_launch_of_wrong_types(
    bench: Bench, at_image: Callable[[int, Callable[[], None]], None]
) -> None:
    told: list[dict[str, Any]] = []

    def ask() -> None:
        path, values = bench.output / "summary.json", summary(bench.output)
        wrong = ({"id": []}, {"started": "now"}, {"seconds": {}}, {"generation": None})
        for launch in (7, *({**values["launch"], **one} for one in wrong)):
            path.write_text(json.dumps({**values, "launch": launch}))
            told.append(bench.status())

    at_image(4, ask)
    bench.run()
    assert {one["outcome"] for one in told} == {"running"}
    assert len(told) == 5


def test_status_tells_of_images_without_a_manifest(bench: Bench) -> None:
    bench.run(limit=3)
    (bench.output / "manifest.yaml").unlink()
    told = bench.status()
    assert told["exit_code"] == 75
    assert "manifest.yaml is gone" in told["sentence"]
    assert "3 of 5 images" in told["sentence"]
    shutil.rmtree(bench.output / ".runner")
    assert bench.status() == told
    assert not (bench.output / ".runner").exists()


def test_a_prompt_file_that_changes_during_the_work(
    bench: Bench, at_image: Callable[[int, Callable[[], None]], None], tmp_path: Path
) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(PROMPTS))
    bench.values["prompts"] = {"file": "prompts.txt"}
    at_image(2, lambda: path.write_text("\n".join([*PROMPTS[:4], "a fish"])) and None)
    with pytest.raises(InterruptedRunError, match="prompts.txt:5: not what it was"):
        bench.run()
    path.write_text("\n".join([*PROMPTS, "added"]))
    assert bench.run() is ExitCode.COMPLETE
    assert (summary(bench.output)["made"], summary(bench.output)["done"]) == (2, 6)


# Case 11: a gap is never a success.
def test_a_lost_image_is_not_complete(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from runner.folder import png as images

    real = images.commit

    def forget(path: Path, data: bytes, launch: str) -> Any:
        done = real(path, data, launch)
        if path.name == "000003.png":
            path.unlink()
        return done

    monkeypatch.setattr(images, "commit", forget)
    assert bench.run() is ExitCode.INCOMPLETE
    assert summary(bench.output)["missing"] == 1


# Case 68: encoding waits here until the next batch has begun.
def test_the_next_batch_does_not_wait_for_the_writer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    second = threading.Event()
    make, encode = Pipeline.images, runner.images.encode

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
    monkeypatch.setattr(runner.images, "encode", patient)
    bench.values["prompts"] = PROMPTS[:2]
    assert bench.run() is ExitCode.COMPLETE


# Case 68: an error of the writer fails that image.
def test_a_fault_of_the_writer_is_that_images_failure(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runner.folder import png as images

    real = images.encode

    def encode(pixels: Any, text: Any, level: int) -> bytes:
        if text["index"] == "4":
            raise ValueError("cannot be encoded")
        return real(pixels, text, level)

    monkeypatch.setattr(images, "encode", encode)
    assert bench.run() is ExitCode.FAILED
    (failed,) = lines(bench.output / "failures.jsonl")
    assert (failed["index"], failed["kind"]) == (4, "write")


def test_a_folder_that_cannot_be_made(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    bench.output = tmp_path / "file" / "out"
    with pytest.raises(FolderError, match="Not a directory"):
        bench.run()


def test_a_broken_recorded_manifest_is_told(bench: Bench) -> None:
    bench.run()
    for text in ("model: [", "", "modle: x\n"):
        (bench.output / "manifest.yaml").write_text(HEADER + text)
        with pytest.raises(ManifestError, match=r"manifest.yaml: not as the runner wrote it"):
            bench.run()
    assert set(os.listdir(bench.output / ".runner" / "locks")) == {"guard", "report"}


def test_files_that_may_not_be_read(bench: Bench) -> None:
    bench.run()
    [journal] = (bench.output / ".runner" / "journal").iterdir()
    for path in (journal, bench.output / "000001.png"):
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("root may read everything")
        for ask in (bench.run, bench.status, bench.plan):
            with pytest.raises(FolderError, match=f"{path.name}: Permission denied"):
                ask()
        path.chmod(0o600)
        journal.unlink(missing_ok=True)


def test_a_plan_knows_what_is_there(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench.plan()["finished"] == 0
    bench.run(limit=3)
    before = stamps(bench.output)
    plan = bench.plan()
    assert (plan["finished"], plan["images"], plan["remarks"]) == (3, 5, [])
    bench.values["prompts"][1] = "a blue fox"
    plan = bench.plan()
    assert plan["finished"] == 2
    assert "a run would be refused" in plan["remarks"][0]
    assert "(1: the manifest changed since)" in plan["remarks"][0]
    assert stamps(bench.output) == before
    monkeypatch.setattr(planned, "LOOK_AT", 4)  # a long list is planned in seconds
    plan = bench.plan()
    assert plan["finished"] is None
    assert "was not looked at: more than 4 images" in plan["remarks"][0]
