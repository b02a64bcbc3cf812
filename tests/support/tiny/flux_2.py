"""FLUX.2 Klein, with a language model for a text encoder."""

from typing import Any

from diffusers import (
    AutoencoderKLFlux2,
    FlowMatchEulerDiscreteScheduler,
    Flux2Transformer2DModel,
)
from transformers import Qwen3ForCausalLM

from support.tiny.model import Model, square
from support.tiny.parts import SIZE, lively, qwen3_config, qwen_tokenizer

__all__ = ["MODELS"]


def klein() -> dict[str, Any]:
    """8 px a latent, 16 px a token; the text is what three layers of the encoder give."""
    transformer = Flux2Transformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=3 * SIZE, timestep_guidance_channels=32,
        axes_dims_rope=(4, 4, 4, 4), guidance_embeds=False,
    )  # fmt: skip
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(),
        "vae": flux_2_vae(),
        "text_encoder": lively(Qwen3ForCausalLM(qwen3_config())),
        "tokenizer": qwen_tokenizer(512),
        "transformer": lively(transformer, "time_guidance_embed|context_embedder", 4.0),
        "is_distilled": False,
    }


def distilled() -> dict[str, Any]:
    return {**klein(), "is_distilled": True}


def key_value() -> dict[str, Any]:
    parts = klein()
    del parts["is_distilled"]
    return parts


def flux_2_vae() -> AutoencoderKLFlux2:
    return AutoencoderKLFlux2(
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(4, 4, 4, 4), layers_per_block=1, latent_channels=4,
        norm_num_groups=2, use_quant_conv=False, use_post_quant_conv=False,
    )  # fmt: skip


CALL = square(32, max_sequence_length=96, text_encoder_out_layers=[0, 1, 2])
OWN = {"height": 48, "width": 32}
MODELS = {
    "Flux2KleinPipeline": Model(klein, {**CALL, "guidance_scale": 4.0}, OWN, negative=False),
    "Flux2KleinPipeline/distilled": Model(distilled, CALL, OWN, negative=False),
    "Flux2KleinKVPipeline": Model(key_value, CALL, OWN, negative=False),
}
