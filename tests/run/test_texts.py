"""Texts are encoded once, cut texts are reported; in phases, weights are read once a window."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.bench import PHASES, Bench
from support.launch import FAST, lines, pixels
from transformers import CLIPTextModel

from runner.errors import ExitCode
from runner.model import text_memory as encoders
from runner.render import load as load_module


# Case 39: one message names the images; the record says which words were dropped.
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
    report = [line for line in capfd.readouterr().err.splitlines() if "cut" in line]
    assert len(report) == 1
    assert "in 2 of the images (1, 2);" in report[0]
    fox, cat, qwx = lines(bench.output / "metadata.jsonl")
    assert "truncated" not in fox
    # CLIP's 77 tokens hold all of it; T5 gets 17 words and the end.
    assert cat["truncated"] == {"tokenizer_2": "on a hill under the moon under the moon"}
    assert qwx["truncated"] == {"tokenizer_2": "on a hill <unk>"}


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
    monkeypatch.setattr(encoders, "RECENT", 2)  # keeps the outputs of the last text only
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
    """Also when two calls are equal. If a batch fails, once more for each of its images."""
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
