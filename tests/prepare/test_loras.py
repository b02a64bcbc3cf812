"""LoRAs that cannot work with the model: refused in one line, by the headers of their files."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from runner.demo import LORA_DIR, MODEL_DIR
from runner.errors import ManifestError, ModelError, StrategyError
from runner.model.configs import ModelConfigs
from runner.model.text_memory import TextMemory
from runner.plan import Plan
from runner.prepare.preflight import check
from runner.prepare.setup import check_setup
from runner.strategies import ContextParallel, DataParallel, DeviceMap, TensorParallel

LAYER = "transformer.transformer_blocks.0.attn.to_q"
KOHYA = "lora_unet_double_blocks_0_img_attn_proj"


def lora(layer: str = LAYER, inner: int = 128, outer: int = 128) -> dict[str, torch.Tensor]:
    return {
        f"{layer}.lora_A.weight": torch.zeros(2, inner),
        f"{layer}.lora_B.weight": torch.zeros(outer, 2),
    }


@pytest.fixture
def fault(plan: Callable[..., Plan], tmp_path: Path) -> Callable[..., str]:
    """What `check` says of a file with these tensors."""

    def found(tensors: Mapping[str, torch.Tensor], **metadata: str) -> str:
        save_file(dict(tensors), tmp_path / "x.safetensors", metadata or None)
        try:
            check(
                plan(model="demo", loras=["x.safetensors"], prompts=["a"]),
                ModelConfigs.read(MODEL_DIR),
            )
        except ModelError as error:
            return str(error)
        return ""

    return found


def test_good_ones(fault: Callable[..., str]) -> None:
    assert fault(lora()) == ""
    kohya = {
        f"{KOHYA}.lora_down.weight": torch.zeros(2, 128),
        f"{KOHYA}.lora_up.weight": torch.zeros(128, 2),
        f"{KOHYA}.alpha": torch.tensor(2.0),
    }
    assert fault(kohya) == ""


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"model.diffusion_model.x.weight": torch.zeros(2)}, "x.safetensors is no LoRA; use a"),
        ({f"{LAYER}.hada_w1_a": torch.zeros(2)}, "x.safetensors is a LoHa; use a LoRA"),
        ({**lora(), f"{LAYER}.dora_scale": torch.zeros(2)}, "is a DoRA in the form of other"),
        (lora(inner=64), f"does not fit: {LAYER} is 64 wide there, and 128 in this model"),
        (lora(outer=96), f"does not fit: {LAYER} is 96 wide there, and 128 in this model"),
        (lora(LAYER.replace("0", "7")), "this model has not 1 of its layers, such as "),
        (lora("unet.down_blocks.0.x"), "was made for another model"),
        (
            lora("text_encoder.encoder.layers.0.self_attn.q_proj"),
            "has layers of the text encoder, which need peft",
        ),
    ],
)
def test_refused(fault: Callable[..., str], tensors: Any, words: str) -> None:
    found = fault(tensors)
    assert words in found
    assert "job.yaml:1: loras[0]: x: " in found
    assert "\n" not in found


def test_the_file_says_what_it_was_made_for(fault: Callable[..., str]) -> None:
    found = fault(lora("unet.down_blocks.0.x"), ss_base_model_version="sdxl_base_v1-0")
    assert found.endswith("; the file says that it was trained for sdxl_base_v1-0")


def test_files_that_are_none(plan: Callable[..., Plan], tmp_path: Path) -> None:
    configs = ModelConfigs.read(MODEL_DIR)

    def refusal(**of_lora: Any) -> str:
        made = plan(model="demo", loras=[of_lora], prompts=["a"])
        with pytest.raises(ModelError) as caught:
            check(made, configs)
        return str(caught.value)

    (tmp_path / "x.bin").write_bytes(b"x")
    assert "not safetensors, and pickles can run code" in refusal(id="x.bin")
    whole = (LORA_DIR / "sepia.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[:-10])
    assert "it was cut off" in refusal(id="cut.safetensors")
    (tmp_path / "two").mkdir()
    for name in ("a", "b"):
        save_file(lora(), tmp_path / "two" / f"{name}.safetensors")
    assert "name its file: a.safetensors, b.safetensors" in refusal(id="./two")
    with pytest.raises(ManifestError, match="no file or folder"):
        plan(model="demo", loras=["none.safetensors"], prompts=["a"])


def test_names_and_weights(plan: Callable[..., Plan]) -> None:
    sepia = {"id": "demo", "file": "sepia.safetensors"}

    def refusal(**values: Any) -> str:
        with pytest.raises(ManifestError) as caught:
            plan(**{"model": "demo", "loras": [sepia], "prompts": ["a"], **values})
        return str(caught.value)

    assert "two have the name sepia; give each its own" in refusal(loras=[sepia, sepia])
    wrong = [{"prompt": "a", "loras": {"sepai": 1}}]
    assert "no LoRA is called sepai; did you mean sepia?" in refusal(prompts=wrong)
    assert "add it to loras" in refusal(prompts=wrong, loras=[])
    assert "is a number" in refusal(sweep={"product": {"sepia": ["much"]}})
    both = [{"prompt": "a", "loras": {"sepia": 1}}]
    assert "the sweep sets it" in refusal(prompts=both, sweep={"product": {"sepia": [1, 2]}})
    assert "write it beside parameters" in refusal(parameters={"loras": {"sepia": 1}})


def test_strategies(plan: Callable[..., Plan]) -> None:
    sepia = {"id": "demo", "file": "sepia.safetensors"}
    prompts = ["a", {"prompt": "b", "loras": {"sepia": 0.5}}]
    made = plan(model="demo", loras=[sepia], prompts=prompts)
    check_setup(made, DataParallel())
    check_setup(made, ContextParallel(ulysses_degree=2))
    for strategy in (DeviceMap(), TensorParallel(degree=2)):
        with pytest.raises(StrategyError, match="use data_parallel or context_parallel"):
            check_setup(made, strategy)
    made = plan(model="demo", loras=[sepia], prompts=prompts, compile=True)
    with pytest.raises(StrategyError, match="would be compiled anew"):
        check_setup(made, DataParallel())


def test_a_text_is_kept_for_the_weights_that_it_was_encoded_with() -> None:
    class Encoder(torch.nn.Module):
        factor = 1

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return input_ids * self.factor

    memory, encoder, tokens = TextMemory(), Encoder(), torch.ones(1, 3, dtype=torch.int64)
    memory.watch("text_encoder", encoder)
    assert encoder(tokens).sum() == 3
    encoder.factor, memory.made_with = 2, '{"words":1}'
    assert encoder(tokens).sum() == 6
    memory.made_with = ""
    assert encoder(tokens).sum() == 3
