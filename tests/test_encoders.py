"""Texts are encoded once, and what comes out depends on nothing else."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import FAST
from diffusers import FluxPipeline

from runner import encoders
from runner.encoders import encode_once


@pytest.fixture
def pipe(flux: Path) -> Any:
    loaded = FluxPipeline.from_pretrained(flux, dtype=torch.float32)
    loaded.set_progress_bar_config(disable=True)
    return loaded


def count_calls(pipe: Any) -> dict[str, int]:
    """Rows that really pass each encoder, before it is wrapped."""
    seen: dict[str, int] = {"text_encoder": 0, "text_encoder_2": 0}
    for name in seen:
        real = getattr(pipe, name).forward

        def forward(
            input_ids: torch.Tensor,
            attention_mask: Any = None,
            output_hidden_states: Any = None,
            name: str = name,
            real: Any = real,
        ) -> Any:
            seen[name] += len(input_ids)
            return real(input_ids, output_hidden_states=output_hidden_states)

        getattr(pipe, name).forward = forward
    return seen


def images(pipe: Any, prompts: list[str], **values: Any) -> torch.Tensor:
    generators = [torch.Generator("cpu").manual_seed(i) for i in range(len(prompts))]
    return pipe(prompts, generator=generators, output_type="pt", **FAST, **values).images


def test_each_text_passes_once(pipe: Any) -> None:
    seen = count_calls(pipe)
    encode_once(pipe)
    negative = {"negative_prompt": ["snow"] * 2, "true_cfg_scale": 2.0}
    for prompts in (["a cat", "a dog"], ["a dog", "a fox"], ["a cat", "a cat"]):
        images(pipe, prompts, **negative)
    assert seen == {"text_encoder": 4, "text_encoder_2": 4}


def test_results_are_those_of_encoding_alone(pipe: Any) -> None:
    plain = [images(pipe, [prompt]) for prompt in ("a cat", "a red fox")]
    encode_once(pipe)
    assert torch.equal(images(pipe, ["a cat"]), plain[0])
    assert torch.equal(images(pipe, ["a red fox"]), plain[1])
    assert torch.equal(images(pipe, ["a cat"]), plain[0])
    batch = pipe.encode_prompt(["a cat", "a red fox"], None, max_sequence_length=16)
    alone = pipe.encode_prompt(["a red fox"], None, max_sequence_length=16)
    assert torch.equal(batch[0][1:], alone[0])
    assert torch.equal(batch[1][1:], alone[1])


def test_what_a_pipeline_gets_is_its_own(pipe: Any) -> None:
    encode_once(pipe)
    first = pipe.encode_prompt(["a cat"], None, max_sequence_length=16)
    kept = first[0].clone()
    first[0].zero_()
    assert torch.equal(pipe.encode_prompt(["a cat"], None, max_sequence_length=16)[0], kept)


def test_memory_is_bounded(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encode_once(pipe)
    remembering = pipe.text_encoder_2.forward
    pipe.encode_prompt(["a cat"], None, max_sequence_length=16)
    one = remembering.bytes
    assert one > 0
    remembering.kept_bytes = 3 * one
    for number in range(10):
        pipe.encode_prompt(["cat " * number], None, max_sequence_length=16)
    assert len(remembering.known) == 3
    assert remembering.bytes == 3 * one
    monkeypatch.setattr(encoders, "KEPT_TEXTS", 2)
    for number in range(10):
        pipe.encode_prompt(["dog " * number], None, max_sequence_length=16)
    assert len(remembering.known) == 2
    assert remembering.bytes == 2 * one
    assert encoders.KEPT_BYTES == 2**30


def test_other_arguments_are_other_results_and_odd_ones_pass(pipe: Any) -> None:
    encode_once(pipe)
    encoder = pipe.text_encoder_2
    tokens = torch.tensor([[5, 6, 1]])
    plain = encoder(tokens)
    hidden = encoder(tokens, output_hidden_states=True)
    assert plain.hidden_states is None
    assert len(hidden.hidden_states) == 2
    assert torch.equal(hidden.last_hidden_state, plain.last_hidden_state)
    embedded = encoder(inputs_embeds=encoder.get_input_embeddings()(tokens))
    assert torch.allclose(embedded.last_hidden_state, plain.last_hidden_state, atol=1e-6)
