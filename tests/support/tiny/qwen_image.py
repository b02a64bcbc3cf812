"""Qwen-Image."""

from pathlib import Path
from typing import Any

import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from support.tiny.model import Model, square
from support.tiny.parts import lively, qwen_vae, tokenizer

__all__ = ["MODELS", "qwen_image"]


def qwen_image(folder: Path, *, heads: int = 4, width: int = 8, seed: int = 0) -> Path:
    """A Qwen-Image pipeline: 8 px a latent, 16 px a token, the text as long as the prompt."""
    torch.manual_seed(seed)
    QwenImagePipeline(**components(heads, width)).save_pretrained(folder)
    return folder


def components(heads: int = 4, width: int = 8) -> dict[str, Any]:
    size = 32
    text = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 64, "hidden_size": size, "intermediate_size": size,
            "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
            "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 0,
            "rope_scaling": {"mrope_section": [1, 1, 2], "rope_type": "default", "type": "default"},
        },
        vision_config={
            "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2,
            "out_hidden_size": size,
        },
        image_token_id=61, video_token_id=62, vision_start_token_id=60, vision_end_token_id=63,
    )  # fmt: skip
    transformer = QwenImageTransformer2DModel(
        patch_size=2, in_channels=16, out_channels=4, num_layers=2, attention_head_dim=width,
        num_attention_heads=heads, joint_attention_dim=size, guidance_embeds=False,
        axes_dims_rope=(2, 2, width - 4),
    )  # fmt: skip
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(),
        "vae": qwen_vae(),
        "text_encoder": Qwen2_5_VLForConditionalGeneration(text),
        "tokenizer": tokenizer(1100),
        "transformer": transformer,
    }


def lively_components() -> dict[str, Any]:
    """As above, but a text changes the image by much more."""
    parts = components()
    lively(parts["transformer"], r"txt_in|to_out\.0\.weight", 4.0)
    lively(parts["vae"], r"decoder\.conv_out\.weight", 8.0)
    return parts


MODELS = {
    "QwenImagePipeline": Model(
        lively_components,
        square(32, max_sequence_length=32, true_cfg_scale=3.0),
        {"height": 48, "width": 32},
    )
}
