"""Texts are encoded once, and what comes out depends on nothing else."""

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FluxPipeline
from support.launch import FAST

from runner.model import text_memory as encoders
from runner.model.text_memory import text_memory


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
    text_memory(pipe)
    negative = {"negative_prompt": ["snow"] * 2, "true_cfg_scale": 2.0}
    for prompts in (["a cat", "a dog"], ["a dog", "a fox"], ["a cat", "a cat"]):
        images(pipe, prompts, **negative)
    assert seen == {"text_encoder": 4, "text_encoder_2": 4}


def test_results_are_those_of_encoding_alone(pipe: Any) -> None:
    plain = [images(pipe, [prompt]) for prompt in ("a cat", "a red fox")]
    text_memory(pipe)
    assert torch.equal(images(pipe, ["a cat"]), plain[0])
    assert torch.equal(images(pipe, ["a red fox"]), plain[1])
    assert torch.equal(images(pipe, ["a cat"]), plain[0])
    batch = pipe.encode_prompt(["a cat", "a red fox"], None, max_sequence_length=16)
    alone = pipe.encode_prompt(["a red fox"], None, max_sequence_length=16)
    assert torch.equal(batch[0][1:], alone[0])
    assert torch.equal(batch[1][1:], alone[1])


def test_what_a_pipeline_gets_is_its_own(pipe: Any) -> None:
    text_memory(pipe)
    first = pipe.encode_prompt(["a cat"], None, max_sequence_length=16)
    kept = first[0].clone()
    first[0].zero_()
    assert torch.equal(pipe.encode_prompt(["a cat"], None, max_sequence_length=16)[0], kept)


def encode(pipe: Any, *texts: str) -> None:
    for text in texts:
        pipe.encode_prompt([text], None, max_sequence_length=16)


def test_memory_is_bounded(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "RECENT", 6)  # outputs, two a text
    memory = text_memory(pipe)
    encode(pipe, "a cat")
    one = memory.bytes
    assert one > 0
    encode(pipe, *("cat " * number for number in range(2, 12)))
    assert memory.bytes == 3 * one
    with memory.keeping(returning=True):
        encode(pipe, *("dog " * number for number in range(1, 11)))
    assert memory.bytes == 13 * one
    assert encoders.KEPT_BYTES == 2**29


def test_bytes_are_bounded(pipe: Any, flux: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = text_memory(pipe)
    encode(pipe, "a cat")
    monkeypatch.setattr(encoders, "KEPT_BYTES", 3 * measured.bytes)
    again = FluxPipeline.from_pretrained(flux, dtype=torch.float32)
    memory = text_memory(again)
    encode(again, *("cat " * number for number in range(1, 10)))
    with memory.keeping(returning=True):
        encode(again, *("dog " * number for number in range(1, 10)))
    assert memory.bytes == 6 * measured.bytes  # three texts of each kind


def test_texts_that_come_again_are_kept(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "RECENT", 4)
    seen = count_calls(pipe)
    memory = text_memory(pipe)
    with memory.keeping(returning=True):
        encode(pipe, "a cat")
    encode(pipe, "a dog", "a fox", "dog fox", "fox dog")
    assert seen["text_encoder"] == 5
    encode(pipe, "a cat", "dog fox")
    assert seen["text_encoder"] == 5
    encode(pipe, "a dog")
    assert seen["text_encoder"] == 6


def test_a_recent_text_is_kept_once_it_comes_again(
    pipe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoders, "RECENT", 4)
    seen = count_calls(pipe)
    memory = text_memory(pipe)
    encode(pipe, "a cat")
    with memory.keeping(returning=True):
        encode(pipe, "a cat")
    encode(pipe, "a dog", "a fox", "dog fox", "a cat")
    assert seen["text_encoder"] == 4


def test_other_arguments_are_other_results_and_odd_ones_pass(pipe: Any) -> None:
    text_memory(pipe)
    encoder = pipe.text_encoder_2
    tokens = torch.tensor([[5, 6, 1]])
    plain = encoder(tokens)
    hidden = encoder(tokens, output_hidden_states=True)
    assert plain.hidden_states is None
    assert len(hidden.hidden_states) == 2
    assert torch.equal(hidden.last_hidden_state, plain.last_hidden_state)
    embedded = encoder(inputs_embeds=encoder.get_input_embeddings()(tokens))
    assert torch.allclose(embedded.last_hidden_state, plain.last_hidden_state, atol=1e-6)


def test_a_tensor_whose_rows_lie_elsewhere_is_not_cut() -> None:
    """Krea 2's positions are (3, B, L): three kinds of them, whatever B is."""
    seen: list[tuple[int, ...]] = []

    class Encoder(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor, position_ids: Any = None) -> torch.Tensor:
            seen.append(tuple(input_ids.shape))
            return input_ids + position_ids.sum(0)

    encoder = Encoder()
    encoders.TextMemory().watch("text_encoder", encoder)
    tokens, positions = torch.arange(12).reshape(3, 4), torch.arange(36).reshape(3, 3, 4)
    assert torch.equal(encoder(tokens, position_ids=positions), tokens + positions.sum(0))
    assert seen == [(3, 4)]
