"""Families with FLUX's layout of tokens: Chroma, Bria, Bria FIBO, Ovis, LongCat."""

from typing import Any

from diffusers import (
    AutoencoderKLWan,
    BriaFiboTransformer2DModel,
    BriaTransformer2DModel,
    ChromaTransformer2DModel,
    FlowMatchEulerDiscreteScheduler,
    LongCatImageTransformer2DModel,
    OvisImageTransformer2DModel,
)
from transformers import Qwen3Model, SmolLM3Config, SmolLM3ForCausalLM

from support.tiny.model import Model, square
from support.tiny.parts import (
    SIZE,
    lively,
    qwen3_config,
    qwen_tokenizer,
    qwen_vl_text,
    t5_text,
    t5_tokenizer,
    vae,
)

__all__ = ["MODELS"]

WIDTHS: dict[str, Any] = {
    "patch_size": 1, "in_channels": 16, "num_layers": 1, "num_single_layers": 1,
    "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": SIZE,
}  # fmt: skip


def chroma() -> dict[str, Any]:
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(),
        "vae": vae(),
        "text_encoder": t5_text(),
        "tokenizer": t5_tokenizer(),
        "transformer": ChromaTransformer2DModel(
            **WIDTHS, axes_dims_rope=(4, 4, 8), approximator_hidden_dim=32, approximator_layers=1,
            approximator_num_channels=16,
        ),
    }  # fmt: skip


def bria() -> dict[str, Any]:
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(),
        "vae": vae(shift_factor=0, scaling_factor=0.5),
        "text_encoder": t5_text(),
        "tokenizer": t5_tokenizer(),
        "transformer": BriaTransformer2DModel(
            **WIDTHS, pooled_projection_dim=None, axes_dims_rope=(0, 8, 8)
        ),
    }


def bria_fibo() -> dict[str, Any]:
    text = SmolLM3Config(
        vocab_size=128256,
        hidden_size=SIZE,
        intermediate_size=SIZE,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        eos_token_id=0,
        bos_token_id=0,
    )  # fmt: skip  (the call takes token 128000 for an empty text)
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(),
        "vae": AutoencoderKLWan(
            base_dim=8, decoder_base_dim=8, num_res_blocks=1, out_channels=12, in_channels=12,
            patch_size=2, scale_factor_spatial=16, scale_factor_temporal=4, z_dim=16,
            temperal_downsample=[False, True, True], dim_mult=[1, 1, 1, 1], is_residual=True,
        ),
        "text_encoder": lively(SmolLM3ForCausalLM(text)),
        "tokenizer": qwen_tokenizer(),
        "transformer": BriaFiboTransformer2DModel(
            **{**WIDTHS, "joint_attention_dim": 2 * SIZE}, text_encoder_dim=SIZE,
            pooled_projection_dim=None, axes_dims_rope=(0, 8, 8),
        ),
    }  # fmt: skip


def ovis() -> dict[str, Any]:
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(),
        "vae": vae(),
        "text_encoder": lively(Qwen3Model(qwen3_config())),
        "tokenizer": qwen_tokenizer(),
        "transformer": lively(
            OvisImageTransformer2DModel(**WIDTHS, out_channels=16, axes_dims_rope=(4, 4, 8)),
            r"context_embedder\.weight|to_out",
            3.0,
        ),
    }


def longcat() -> dict[str, Any]:
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(),
        "vae": vae(latent_channels=16),
        "text_encoder": qwen_vl_text(),
        "tokenizer": qwen_tokenizer(),
        "text_processor": qwen_tokenizer(),
        "transformer": LongCatImageTransformer2DModel(
            **{**WIDTHS, "in_channels": 64}, pooled_projection_dim=SIZE, axes_dims_rope=(4, 4, 8)
        ),
    }


CALL, OWN = square(32, max_sequence_length=64), {"height": 48, "width": 32}
MODELS = {
    "ChromaPipeline": Model(chroma, CALL, OWN),
    "BriaPipeline": Model(bria, CALL, OWN),
    "BriaFiboPipeline": Model(bria_fibo, square(64), {"height": 96, "width": 64}),
    "OvisImagePipeline": Model(ovis, {**CALL, "max_sequence_length": 256}, OWN),
    "LongCatImagePipeline": Model(longcat, square(32, enable_prompt_rewrite=False), OWN),
}
