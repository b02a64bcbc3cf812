"""Images that fail: recorded, counted, tried again by the next run."""

from typing import Any

import pytest
import torch
from support.bench import PROMPTS, Bench
from support.launch import lines, pixels, stamps, summary

from runner.errors import ExitCode
from runner.folder import png
from runner.render.pipeline import Pipeline
from runner.render.results import DroppedError


# Cases 27, 34.
def test_a_failure_is_recorded_and_tried_again(bench: Bench, failing: Any) -> None:
    failing({"no": ValueError("bad <b>prompt</b>"), "the sun": RuntimeError("x")})
    assert bench.run() is ExitCode.FAILED
    assert sorted(pixels(bench.output)) == ["000000.png", "000001.png", "000004.png"]
    failed = lines(bench.output / "failures.jsonl")
    assert [(f["index"], f["kind"]) for f in failed] == [(2, "error"), (3, "error")]
    assert failed[0]["error"] == "ValueError: bad <b>prompt</b>"
    report = summary(bench.output)
    assert (report["outcome"], report["failed"], report["exit_code"]) == ("failed", 2, 3)
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


# Case 68: an error of the writer fails that image.
def test_a_fault_of_the_writer_is_that_images_failure(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = png.encode

    def encode(pixels: Any, text: Any, level: int) -> bytes:
        if text["index"] == "4":
            raise ValueError("cannot be encoded")
        return real(pixels, text, level)

    monkeypatch.setattr(png, "encode", encode)
    assert bench.run() is ExitCode.FAILED
    (failed,) = lines(bench.output / "failures.jsonl")
    assert (failed["index"], failed["kind"]) == (4, "write")


# Case 33: a batch that fails is made one by one; the record says so.
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


# Case 34: max_failures.
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
    """A launch that is stopped before it retries them exits with 75: a script runs it again."""
    failing({prompt: ValueError("all") for prompt in PROMPTS})
    bench.values["max_failures"] = 2
    assert bench.run() is ExitCode.FAILED

    def stopped(self: Pipeline, tasks: Any) -> Any:
        raise DroppedError

    monkeypatch.setattr(Pipeline, "images", stopped)
    assert bench.run() is ExitCode.INCOMPLETE
    assert summary(bench.output)["outcome"] == "interrupted"
    assert bench.status()["exit_code"] == 75
