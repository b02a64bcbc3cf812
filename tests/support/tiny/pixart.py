"""PixArt-α and PixArt-Σ."""

from typing import Any

from diffusers import DDIMScheduler, PixArtTransformer2DModel

from support.tiny.model import Model, square
from support.tiny.parts import SIZE, filled, small_vae, t5_text, t5_tokenizer, vae

__all__ = ["MODELS"]


def pixart(sample_size: int = 16) -> dict[str, Any]:
    """2 px a latent, 4 px a token."""
    transformer = PixArtTransformer2DModel(
        sample_size=sample_size, num_layers=2, patch_size=2, attention_head_dim=8,
        num_attention_heads=3, caption_channels=SIZE, in_channels=4, cross_attention_dim=24,
        out_channels=8,
        attention_bias=True, activation_fn="gelu-approximate", num_embeds_ada_norm=1000,
        norm_type="ada_norm_single", norm_elementwise_affine=False, norm_eps=1e-6,
    )  # fmt: skip
    return {
        "transformer": filled(transformer, "proj_out"),
        "vae": small_vae(),
        "scheduler": DDIMScheduler(),
        "text_encoder": t5_text(),
        "tokenizer": t5_tokenizer(),
    }


def binned() -> dict[str, Any]:
    """8 px a latent. The call makes the nearest of a few sizes of about 256² px, and cuts that to
    the size asked."""
    return {**pixart(sample_size=32), "vae": vae()}


CALL = square(32, max_sequence_length=32, use_resolution_binning=False, clean_caption=False)
OWN = {"height": 48, "width": 32}
MODELS = {
    "PixArtAlphaPipeline": Model(pixart, CALL, OWN),
    "PixArtSigmaPipeline": Model(pixart, CALL, OWN),
    "PixArtSigmaPipeline/binned": Model(binned, {**CALL, "use_resolution_binning": True}, OWN),
    "PixArtSigmaPAGPipeline": Model(pixart, {**CALL, "pag_scale": 2.0}, OWN),
}
