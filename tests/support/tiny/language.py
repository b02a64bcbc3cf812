"""Families with a language model for a text encoder: Z-Image, Krea 2, HunyuanImage, HiDream,
CogView 4, Lumina, Lumina 2, PRX."""

from typing import Any

from diffusers import (
    AutoencoderKLHunyuanImage,
    CogView4Transformer2DModel,
    FlowMatchEulerDiscreteScheduler,
    HiDreamImageTransformer2DModel,
    HunyuanImageTransformer2DModel,
    Krea2Transformer2DModel,
    Lumina2Transformer2DModel,
    LuminaNextDiT2DModel,
    PRXTransformer2DModel,
    ZImageTransformer2DModel,
)
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from transformers import (
    ByT5Tokenizer,
    GemmaConfig,
    GemmaForCausalLM,
    GlmConfig,
    GlmForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Model,
    Qwen3VLConfig,
    Qwen3VLModel,
)

from support.tiny.model import Model, square
from support.tiny.parts import (
    BYTES,
    SIZE,
    clip_text_projection,
    clip_tokenizer,
    filled,
    gemma_text,
    gemma_tokenizer,
    lively,
    qwen3_config,
    qwen_tokenizer,
    qwen_vae,
    qwen_vl_text,
    t5_text,
    t5_tokenizer,
    vae,
)

__all__ = ["MODELS"]

LANGUAGE: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": SIZE, "intermediate_size": SIZE, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0,
    "eos_token_id": 0, "bos_token_id": 0,
}  # fmt: skip


def z_image() -> dict[str, Any]:
    """8 px a latent, 16 px a token."""
    transformer = ZImageTransformer2DModel(
        all_patch_size=(2,), all_f_patch_size=(1,), in_channels=4, dim=32, n_layers=2,
        n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=SIZE, axes_dims=[8, 4, 4],
        axes_lens=[512, 32, 32],
    )  # fmt: skip
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(),
        "vae": vae(),
        "text_encoder": lively(Qwen3Model(qwen3_config())),
        "tokenizer": qwen_tokenizer(),
        "transformer": filled(transformer, "pad_token", 1.0),
    }


def krea_2() -> dict[str, Any]:
    text = Qwen3VLConfig(
        text_config={
            **LANGUAGE,
            "rope_scaling": {"mrope_section": [1, 1, 2], "rope_type": "default"},
        },
        vision_config={
            "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2,
            "out_hidden_size": SIZE, "deepstack_visual_indexes": [0],
        },
        image_token_id=505, video_token_id=506, vision_start_token_id=507, vision_end_token_id=508,
    )  # fmt: skip
    transformer = Krea2Transformer2DModel(
        in_channels=16, num_layers=2, attention_head_dim=8, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=32, timestep_embed_dim=8, text_hidden_dim=SIZE,
        num_text_layers=3, text_num_attention_heads=4, text_num_key_value_heads=2,
        text_intermediate_size=16, num_layerwise_text_blocks=1, num_refiner_text_blocks=1,
        axes_dims_rope=(4, 2, 2), rope_theta=1000.0,
    )  # fmt: skip
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, max_image_seq_len=6400
        ),
        "vae": lively(qwen_vae(), r"decoder\.conv_out\.weight", 8.0),
        "text_encoder": lively(Qwen3VLModel(text)),
        "tokenizer": qwen_tokenizer(),
        "transformer": lively(transformer, r"to_out\.0\.weight|txt_in.*weight", 4.0),
        "text_encoder_select_layers": (0, 1, 2),
    }


def hunyuan_image() -> dict[str, Any]:
    """Distilled: one call a step, guidance as an input. Texts in quotes have an encoder more."""
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=7.0),
        "vae": AutoencoderKLHunyuanImage(
            in_channels=3, out_channels=3, latent_channels=4, block_out_channels=(32, 32, 32, 32),
            layers_per_block=1, scaling_factor=0.5, spatial_compression_ratio=8, sample_size=128,
        ),
        "text_encoder": qwen_vl_text(num_hidden_layers=4),
        "tokenizer": qwen_tokenizer(2048),
        "text_encoder_2": t5_text(vocab_size=512),
        "tokenizer_2": ByT5Tokenizer(),
        "transformer": lively(HunyuanImageTransformer2DModel(
            in_channels=4, out_channels=4, num_attention_heads=4, attention_head_dim=8,
            num_layers=1, num_single_layers=1, num_refiner_layers=1, patch_size=(1, 1),
            guidance_embeds=True, text_embed_dim=SIZE, text_embed_2_dim=SIZE,
            rope_axes_dim=(4, 4),
        ), r"time_guidance_embed|context_embedder|add_v_proj", 6.0),
        "guider": None,
        "ocr_guider": None,
    }  # fmt: skip


def hidream() -> dict[str, Any]:
    """Four text encoders. The call scales every size to 128² px times its VAE's factor, 1 here."""
    llama = LlamaForCausalLM(LlamaConfig(**LANGUAGE, max_position_embeddings=512))
    transformer = HiDreamImageTransformer2DModel(
        patch_size=2, in_channels=4, out_channels=4, num_layers=1, num_single_layers=1,
        attention_head_dim=8, num_attention_heads=4, caption_channels=[SIZE, SIZE],
        text_emb_dim=2 * SIZE, num_routed_experts=4, num_activated_experts=2,
        axes_dims_rope=(4, 2, 2), max_resolution=(128, 128), llama_layers=(0, 1),
    )  # fmt: skip
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(),
        "vae": vae(
            down_block_types=("DownEncoderBlock2D",), up_block_types=("UpDecoderBlock2D",),
            block_out_channels=(4,),
        ),
        "text_encoder": clip_text_projection(max_position_embeddings=128),
        "tokenizer": clip_tokenizer(),
        "text_encoder_2": clip_text_projection(max_position_embeddings=128),
        "tokenizer_2": clip_tokenizer(),
        "text_encoder_3": t5_text(),
        "tokenizer_3": t5_tokenizer(),
        "text_encoder_4": lively(llama),
        "tokenizer_4": qwen_tokenizer(512),
        "transformer": filled(transformer, r"gate\.weight"),
    }  # fmt: skip


def cogview_4() -> dict[str, Any]:
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(
            base_shift=0.25, max_shift=0.75, use_dynamic_shifting=True, time_shift_type="linear"
        ),
        "vae": vae(),
        "text_encoder": lively(GlmForCausalLM(GlmConfig(**LANGUAGE))),
        "tokenizer": glm_tokenizer(),
        "transformer": CogView4Transformer2DModel(
            patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8,
            num_attention_heads=4, out_channels=4, text_embed_dim=SIZE, time_embed_dim=8,
            condition_dim=4,
        ),
    }  # fmt: skip


def glm_tokenizer() -> PreTrainedTokenizerFast:
    """One byte, one token, and one before them all; pads on the left."""
    tokenizer = Tokenizer(BPE({token: i for i, token in enumerate(("<pad>", "<sop>", *BYTES))}, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = TemplateProcessing("<sop> $A", special_tokens=[("<sop>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", padding_side="left", model_max_length=1024
    )


def lumina() -> dict[str, Any]:
    text = GemmaConfig(**{**LANGUAGE, "vocab_size": 128, "eos_token_id": 1, "bos_token_id": 2})
    transformer = LuminaNextDiT2DModel(
        sample_size=16, patch_size=2, in_channels=4, hidden_size=32, num_layers=2,
        num_attention_heads=2, num_kv_heads=2, multiple_of=16, learn_sigma=True, qk_norm=True,
        cross_attention_dim=SIZE, scaling_factor=1.0,
    )  # fmt: skip
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(),
        "vae": vae(),
        "text_encoder": lively(GemmaForCausalLM(text)),
        "tokenizer": gemma_tokenizer(padding_side="right"),
        "transformer": filled(transformer, r"\.gate$|norm_out|adaLN|norm1\.linear", 0.5),
    }


def lumina_2() -> dict[str, Any]:
    transformer = Lumina2Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=4, hidden_size=32, num_layers=2,
        num_attention_heads=2, num_kv_heads=2, multiple_of=16, scaling_factor=1.0,
        axes_dim_rope=(8, 4, 4), cap_feat_dim=SIZE,
    )  # fmt: skip
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(),
        "vae": vae(),
        "text_encoder": gemma_text(num_hidden_layers=2),
        "tokenizer": gemma_tokenizer(512, padding_side="right"),
        "transformer": transformer,
    }


def prx_pixel() -> dict[str, Any]:
    """Makes pixels, without a decoder."""
    transformer = PRXTransformer2DModel(
        patch_size=2, in_channels=3, context_in_dim=SIZE, hidden_size=16, mlp_ratio=2.0,
        num_heads=2, depth=1, axes_dim=[4, 4], bottleneck_size=8, resolution_embeds=True,
    )  # fmt: skip
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(),
        "text_encoder": lively(Qwen3Model(qwen3_config())),
        "tokenizer": qwen_tokenizer(),
        "transformer": filled(transformer, "final_layer|modulation", 0.3),
        "prompt_max_tokens": 64,
    }


CALL, OWN = square(32), {"height": 48, "width": 32}
MODELS = {
    "ZImagePipeline": Model(z_image, {**CALL, "max_sequence_length": 96}, OWN),
    "Krea2Pipeline": Model(krea_2, {**CALL, "max_sequence_length": 256}, OWN),
    "HunyuanImagePipeline": Model(hunyuan_image, CALL, OWN, negative=False),
    "HiDreamImagePipeline": Model(hidream, square(128, 1, max_sequence_length=64)),
    "CogView4Pipeline": Model(cogview_4, {**CALL, "max_sequence_length": 64}, OWN),
    "LuminaPipeline": Model(lumina, {**CALL, "clean_caption": False}, OWN),
    "Lumina2Pipeline": Model(lumina_2, {**CALL, "max_sequence_length": 256}, OWN),
    "PRXPixelPipeline": Model(prx_pixel, {**CALL, "use_resolution_binning": False}, OWN),
}
