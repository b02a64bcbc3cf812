"""The model that ships with the runner: what it needs to be called well, without loading it.

The folder `model` is a stock diffusers pipeline. The other files here made it: they import torch
and each other, nothing else of the runner.
"""

from pathlib import Path

from runner.demo.captions import FILLERS, WORDS

__all__ = ["LORA_DIR", "MODEL_DIR", "PARAMETERS", "SIZES", "WORDS", "knows"]

MODEL_DIR = Path(__file__).with_name("model")
LORA_DIR = Path(__file__).with_name("loras")

PARAMETERS: dict[str, int | float | str] = {
    "height": 128,
    "width": 128,
    "num_inference_steps": 8,
    "guidance_scale": 0.0,  # for models with a guidance input, which this one lacks
    "true_cfg_scale": 2.5,
    "negative_prompt": "",  # without it FLUX pipelines ignore true_cfg_scale
    "max_sequence_length": 32,
}

SIZES: frozenset[tuple[int, int]] = frozenset({(128, 128), (96, 160), (160, 96)})
"""The (height, width) pairs that the model was trained on."""


def knows(prompt: str) -> bool:
    """Whether the prompt has at least one word that means something to the model."""
    words = {word.strip(".,;:!?\"'()") for word in prompt.lower().split()}
    return bool(words & (WORDS - FILLERS))
