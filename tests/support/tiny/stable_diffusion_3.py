"""Stable Diffusion 3."""

from pathlib import Path
from typing import Any

import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from transformers import CLIPTextConfig, CLIPTextModelWithProjection, T5Config, T5EncoderModel

from support.tiny.model import Model, square
from support.tiny.parts import tokenizer, vae

__all__ = ["MODELS", "stable_diffusion_3"]


def stable_diffusion_3(folder: Path, *, seed: int = 0) -> Path:
    """A Stable Diffusion 3 pipeline: classifier-free guidance, 8 px a latent, 16 px a token."""
    torch.manual_seed(seed)
    StableDiffusion3Pipeline(**components()).save_pretrained(folder)
    return folder


def components() -> dict[str, Any]:
    size = 32
    clip = CLIPTextConfig(
        vocab_size=64, hidden_size=size, intermediate_size=size, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=77, eos_token_id=1, bos_token_id=0,
        pad_token_id=0, projection_dim=size,
    )  # fmt: skip
    t5 = T5Config(
        vocab_size=64, d_model=2 * size, d_kv=8, d_ff=size, num_layers=1, num_heads=4,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    transformer = SD3Transformer2DModel(
        sample_size=32, patch_size=2, in_channels=4, out_channels=4, num_layers=2,
        attention_head_dim=8, num_attention_heads=4, caption_projection_dim=32,
        joint_attention_dim=2 * size, pooled_projection_dim=2 * size, pos_embed_max_size=32,
    )  # fmt: skip
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(),
        "vae": vae(),
        "text_encoder": CLIPTextModelWithProjection(clip),
        "tokenizer": tokenizer(77),
        "text_encoder_2": CLIPTextModelWithProjection(clip),
        "tokenizer_2": tokenizer(77),
        "text_encoder_3": T5EncoderModel(t5),
        "tokenizer_3": tokenizer(77),
        "transformer": transformer,
    }


CALL = square(32, max_sequence_length=32)
MODELS = {
    "StableDiffusion3Pipeline": Model(components, CALL, {"height": 48, "width": 32}),
    "StableDiffusion3PAGPipeline": Model(
        components, {**CALL, "pag_scale": 3.0}, {"height": 48, "width": 32}
    ),
}
