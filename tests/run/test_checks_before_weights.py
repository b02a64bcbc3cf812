"""Values that the pipeline would refuse are found before any weights are loaded."""

from typing import Any

import pytest
import torch
from support.bench import Bench
from support.launch import pixels

from runner.errors import ModelError, StrategyError


# Case 37.
@pytest.mark.parametrize("name", ["negative_promt", "eta", "guidance"])
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
    words = r"prompts\[1\]: height 40: .* a multiple of 16; use 32 or 48"
    with pytest.raises(ModelError, match=words):
        bench.run()


# Case 42.
def test_float16_needs_a_gpu(bench: Bench) -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is a GPU")
    bench.values["dtype"] = "half"
    with pytest.raises(StrategyError, match="float16 needs a GPU.*use float32 or bfloat16"):
        bench.run()
