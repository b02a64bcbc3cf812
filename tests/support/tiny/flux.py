"""FLUX."""

from pathlib import Path
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from support.tiny.model import Model, square
from support.tiny.parts import tokenizer, vae

__all__ = ["MODELS", "flux"]


def flux(
    folder: Path,
    *,
    heads: int = 4,
    width: int = 8,
    layers: int = 1,
    double_layers: int | None = None,
    seed: int = 0,
) -> Path:
    """A FLUX pipeline of about 50,000 weights: 8 px a latent, 16 px a token; `layers` of each
    kind, unless `double_layers` says how many are double."""
    torch.manual_seed(seed)
    doubles = layers if double_layers is None else double_layers
    FluxPipeline(**components(heads, width, layers, doubles)).save_pretrained(folder)
    return folder


def components(
    heads: int = 4, width: int = 8, layers: int = 1, double_layers: int = 1
) -> dict[str, Any]:
    size = 32
    clip = CLIPTextConfig(
        vocab_size=64, hidden_size=size, intermediate_size=size, num_hidden_layers=1,
        num_attention_heads=4, max_position_embeddings=77, eos_token_id=1, bos_token_id=0,
        pad_token_id=0, projection_dim=size,
    )  # fmt: skip
    t5 = T5Config(
        vocab_size=64, d_model=size, d_kv=8, d_ff=size, num_layers=1, num_heads=4,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    transformer = FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_single_layers=layers, num_layers=double_layers,
        attention_head_dim=width, num_attention_heads=heads, joint_attention_dim=size,
        pooled_projection_dim=size, guidance_embeds=False, axes_dims_rope=(2, 2, width - 4),
    )  # fmt: skip
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(),
        "vae": vae(),
        "text_encoder": CLIPTextModel(clip),
        "tokenizer": tokenizer(77),
        "text_encoder_2": T5EncoderModel(t5),
        "tokenizer_2": tokenizer(64),
        "transformer": transformer,
    }


MODELS = {
    "FluxPipeline": Model(
        components,
        square(32, max_sequence_length=32, true_cfg_scale=3.0),
        {"height": 48, "width": 32},
    )
}
