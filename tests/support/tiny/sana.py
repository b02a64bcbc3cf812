"""Sana, and Sana Sprint."""

from typing import Any

from diffusers import (
    AutoencoderDC,
    DPMSolverMultistepScheduler,
    SanaTransformer2DModel,
    SCMScheduler,
)

from support.tiny.model import Model, square
from support.tiny.parts import SIZE, filled, gemma_text, gemma_tokenizer

__all__ = ["MODELS"]


def sana(**of_transformer: Any) -> dict[str, Any]:
    """2 px a latent, one latent a token. The tokenizer is saved padding left, and the call sets
    it to the right."""
    transformer = SanaTransformer2DModel(
        patch_size=1, in_channels=4, out_channels=4, num_layers=2, num_attention_heads=2,
        attention_head_dim=8, num_cross_attention_heads=2, cross_attention_head_dim=8,
        cross_attention_dim=16, caption_channels=SIZE, sample_size=32, **of_transformer,
    )  # fmt: skip
    return {
        "scheduler": DPMSolverMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
        "vae": autoencoder(),
        "text_encoder": gemma_text(),
        "tokenizer": gemma_tokenizer(),
        "transformer": filled(transformer, "caption_norm", 1.0),
    }


def sprint() -> dict[str, Any]:
    parts = sana(qk_norm="rms_norm_across_heads", guidance_embeds=True)
    return {**parts, "scheduler": SCMScheduler()}


def autoencoder() -> AutoencoderDC:
    return AutoencoderDC(
        in_channels=3, latent_channels=4, attention_head_dim=2,
        encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(8, 8), decoder_block_out_channels=(8, 8),
        encoder_qkv_multiscales=((), (5,)), decoder_qkv_multiscales=((), (5,)),
        encoder_layers_per_block=(1, 1), decoder_layers_per_block=(1, 1),
        downsample_block_type="conv", upsample_block_type="interpolate",
        decoder_norm_types="rms_norm", decoder_act_fns="silu", scaling_factor=0.41407,
    )  # fmt: skip


CALL = square(32, max_sequence_length=64, use_resolution_binning=False)
OWN = {"height": 64, "width": 32}
PLAIN = {**CALL, "complex_human_instruction": None}
MODELS = {
    "SanaPipeline": Model(sana, PLAIN, OWN),
    "SanaPAGPipeline": Model(sana, {**PLAIN, "pag_scale": 2.0}, OWN),
    "SanaSprintPipeline": Model(sprint, PLAIN, OWN, negative=False),
}
