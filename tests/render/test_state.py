"""What is around a pipeline changes nothing of it, and neither does an image."""

import copy
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from support.families import cogview_4, deepfloyd_if, kandinsky_3, quiet, sana
from support.tiny import tokenizer

from runner.launch.stop import Stop
from runner.model.text_memory import TextMemory
from runner.model.truncation import Truncation
from runner.plan import Task
from runner.render.memory import vae_in_float32
from runner.render.pipeline import Pipeline
from runner.render.results import Image, Result
from runner.strategies import DataParallel

SMALL = {"height": 32, "width": 32, "num_inference_steps": 2}
OF_SANA = {**SMALL, "use_resolution_binning": False, "max_sequence_length": 16}
OF_DEEPFLOYD = {**SMALL, "clean_caption": False}
PROMPTS = ("a cat", "a red fox in the snow", "the moon on the hill")


def renderer(pipe: Any, **options: Any) -> Pipeline:
    return Pipeline(
        pipe,
        device=torch.device("cpu"),
        dtype="float32",
        strategy=DataParallel(),
        stop=Stop(20),
        **options,
    )


def task(index: int, parameters: Any) -> Task:
    return Task(index, index, PROMPTS[index], index, parameters)


def pixels(results: list[Result]) -> np.ndarray:
    assert all(isinstance(result, Image) for result in results), results
    return np.stack([result.pixels for result in results if isinstance(result, Image)])


# Case 4.
def test_what_a_call_sets_on_its_tokenizer_reaches_it() -> None:
    parameters = {**OF_SANA, "complex_human_instruction": None}
    plain = sana()
    for index, prompt in enumerate(PROMPTS):
        generator = torch.Generator("cpu").manual_seed(index)
        expected = np.asarray(plain(prompt, generator=generator, **parameters).images[0])
        (result,) = renderer(sana()).render([task(index, parameters)]).results
        assert isinstance(result, Image)
        assert np.abs(result.pixels.astype(int) - expected).max() <= 1


class Parts:
    """As much of a pipeline as is needed to be watched."""

    def __init__(self, **components: Any) -> None:
        self.components = components
        vars(self).update(components)


def test_a_watched_tokenizer_is_the_tokenizer() -> None:
    plain = tokenizer(6)
    pipe = Parts(tokenizer=tokenizer(6))
    watched, kind = pipe.tokenizer, type(plain)
    truncation = Truncation(pipe)
    assert isinstance(watched, kind)
    assert type(watched).__name__ == kind.__name__
    assert inspect.signature(watched) == inspect.signature(plain)
    assert len(watched) == len(plain)
    watched.padding_side = "left"
    watched.mark = 1
    del watched.mark
    assert not hasattr(watched, "mark")
    texts, how = ["a cat on the moon in the sea", "a"], {"padding": "max_length", "max_length": 5}
    assert watched(texts, truncation=True, **how).input_ids[1] == [0, 0, 0, 3, 1]
    assert truncation.of(0) == {"tokenizer": "moon in the sea"}
    truncation.clear()
    for other in (copy.deepcopy(watched), pickle.loads(pickle.dumps(watched))):
        assert type(other) is kind
        assert other(["a"], **how).input_ids == [[0, 0, 0, 3, 1]]
        other(texts, truncation=True, **how)
    assert truncation.of(0) == {}


def test_an_encoder_with_a_memory_is_the_encoder() -> None:
    encoder = sana().text_encoder
    forward, memory = encoder.forward, TextMemory()
    memory.watch("text_encoder", encoder)
    assert inspect.signature(encoder.forward) == inspect.signature(forward)
    assert encoder.forward.__name__ == "forward"
    assert encoder.forward.__self__ is encoder
    tokens = torch.tensor([[5, 6, 1]])
    for other in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        assert other.forward.__self__ is other
        with torch.no_grad():
            for weight in other.parameters():
                weight.zero_()
            assert not other(tokens).last_hidden_state.any()
    assert memory.bytes == 0


def state(pipe: Any) -> dict[str, Any]:
    """All that a call could have changed."""
    found: dict[str, Any] = {}
    for name, component in pipe.components.items():
        values = getattr(component, "__dict__", {})
        # What transformers notes at the first call begins with _output.
        plain = {
            key: value
            for key, value in values.items()
            if is_setting(value) and not key.startswith("_output")
        }
        found[name] = (id(component), type(component).__name__, plain)
        if isinstance(component, torch.nn.Module):
            found[f"{name} weights"] = [weight.dtype for weight in component.parameters()]
            found[f"{name} is its own"] = component.__dict__.get("decode")
    scheduler = pipe.scheduler
    found["config"] = dict(scheduler.config)
    found["values"] = {key: repr(value) for key, value in vars(scheduler).items()}
    return found


def is_setting(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


FAMILIES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "sana": (sana, OF_SANA),
    "deepfloyd": (deepfloyd_if, OF_DEEPFLOYD),
    "kandinsky": (kandinsky_3, {**SMALL, "height": 64, "width": 64}),
    "cogview": (cogview_4, {**SMALL, "max_sequence_length": 64}),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_an_image_leaves_the_pipeline_as_it_was(family: str) -> None:
    make, parameters = FAMILIES[family]
    pipe = make()
    rendering = renderer(pipe)
    before = state(pipe)
    for index in range(2):
        pixels(rendering.render([task(index, parameters)]).results)
        assert state(pipe) == before


def test_what_a_failed_call_left_is_put_back(flux: Path) -> None:
    """As where the decoder runs out of memory after the call has put it into float32."""
    pipe = quiet(diffusers.FluxPipeline.from_pretrained(flux, dtype=torch.bfloat16))
    pipe.vae.decoder.conv_out.to(torch.float32)  # some models keep a few layers so
    rendering, scheduler = renderer(pipe), pipe.scheduler
    parameters = {**SMALL, "max_sequence_length": 16}
    before = state(pipe)

    def decode(*_: Any, **__: Any) -> Any:
        pipe.vae.to(torch.float32)
        pipe.vae.enable_tiling()
        pipe.tokenizer.padding_side = "left"
        pipe.scheduler.config.shift = 7.0
        pipe.scheduler = diffusers.FlowMatchHeunDiscreteScheduler.from_config(scheduler.config)
        raise RuntimeError("not today")

    pipe.vae.decode = decode
    (failed,) = rendering.render([task(0, parameters)]).results
    assert not isinstance(failed, Image)
    assert failed.error == "RuntimeError: not today"
    del pipe.vae.decode
    assert state(pipe) == before


def test_decoding_in_float32_leaves_the_decoder_as_it_was(flux: Path) -> None:
    pipe = quiet(diffusers.FluxPipeline.from_pretrained(flux, dtype=torch.bfloat16))
    pipe.vae.decoder.conv_out.to(torch.float32)
    own = pipe.vae.decode
    pipe.vae.decode = own
    before = state(pipe)
    with vae_in_float32(pipe):
        assert inspect.signature(pipe.vae.decode) == inspect.signature(own)
        assert {weight.dtype for weight in pipe.vae.parameters()} == {torch.float32}
    assert state(pipe) == before


# Case 8.
@pytest.mark.parametrize("family", ["kandinsky", "cogview"])
def test_batch_mates_do_not_change_an_image(family: str) -> None:
    make, parameters = FAMILIES[family]
    texts = ("a cat", "a red fox on the hill in the snow under the moon and the red sun in the sea")
    tasks = [Task(i, i, text, i, parameters) for i, text in enumerate(texts)]
    rendering = renderer(make())
    assert not rendering.tries(tasks)
    prepared: list[Any] = []
    rendering.pipe.prepare = prepared.extend  # as of a pipeline that makes several calls at once
    rendering.prepare([tasks])
    assert [call["prompt"] for call in prepared] == list(texts)
    together = rendering.render(tasks).results
    assert [r.made["batch_size"] for r in together if isinstance(r, Image)] == [1, 1]
    assert [r.made["degraded"] for r in together if isinstance(r, Image)] == [[], []]
    alone = [result for one in tasks for result in renderer(make()).render([one]).results]
    assert np.array_equal(pixels(together), pixels(alone))
