"""Families of their own that are rarely asked for by now: Stable Cascade, Würstchen, aMUSEd,
UnCLIP, and variants of Stable Diffusion."""

from typing import Any

from diffusers import (
    AmusedScheduler,
    DDPMWuerstchenScheduler,
    ErnieImageTransformer2DModel,
    FlowMatchEulerDiscreteScheduler,
    LatteTransformer3DModel,
    UnCLIPScheduler,
    UNet2DModel,
    UVit2DModel,
    VQModel,
)
from diffusers.models.unets.unet_stable_cascade import StableCascadeUNet
from diffusers.pipelines.deprecated.unclip.text_proj import UnCLIPTextProjModel
from diffusers.pipelines.deprecated.wuerstchen import (
    PaellaVQModel,
    WuerstchenDiffNeXt,
    WuerstchenPrior,
)
from transformers import Qwen3Model

from support.tiny.flux_2 import flux_2_vae
from support.tiny.model import Model, square
from support.tiny.parts import (
    SIZE,
    clip_text,
    clip_text_projection,
    clip_tokenizer,
    filled,
    lively,
    qwen3_config,
    qwen_tokenizer,
    unet,
)
from support.tiny.pixart import pixart
from support.tiny.stable_diffusion import prior, stable_diffusion

__all__ = ["MODELS"]


def cascade() -> dict[str, Any]:
    """A prior makes a small latent of the text, a decoder a larger one of that."""
    first = StableCascadeUNet(
        conditioning_dim=32, block_out_channels=(32, 32), num_attention_heads=(2, 2),
        down_num_layers_per_block=(1, 1), up_num_layers_per_block=(1, 1),
        clip_image_in_channels=32, switch_level=(False,), clip_text_in_channels=SIZE,
        clip_text_pooled_in_channels=SIZE, timestep_ratio_embedding_dim=16,
    )  # fmt: skip
    block = ("SDCascadeResBlock", "SDCascadeTimestepBlock")
    second = StableCascadeUNet(
        in_channels=4, out_channels=4, conditioning_dim=32, block_out_channels=(16, 32),
        num_attention_heads=(-1, 2), down_num_layers_per_block=(1, 1),
        up_num_layers_per_block=(1, 1), down_blocks_repeat_mappers=(1, 1),
        up_blocks_repeat_mappers=(1, 1), switch_level=None, clip_text_pooled_in_channels=SIZE,
        block_types_per_layer=(block, (*block, "SDCascadeAttnBlock")), dropout=(0.1, 0.1),
        effnet_in_channels=16, timestep_ratio_embedding_dim=16,
    )  # fmt: skip
    return {
        "tokenizer": clip_tokenizer(),
        "text_encoder": clip_text_projection(),
        "decoder": second,
        "scheduler": DDPMWuerstchenScheduler(),
        "vqgan": paella(),
        "prior_prior": first,
        "prior_text_encoder": clip_text_projection(),
        "prior_tokenizer": clip_tokenizer(),
        "prior_scheduler": DDPMWuerstchenScheduler(),
        "prior_feature_extractor": None,
        "prior_image_encoder": None,
    }


def wuerstchen() -> dict[str, Any]:
    decoder = WuerstchenDiffNeXt(
        c_cond=SIZE, c_hidden=[16, 16], nhead=[-1, 2], blocks=[1, 1], level_config=["CT", "CTA"],
        inject_effnet=[False, True], clip_embd=SIZE, c_r=16, effnet_embd=16,
    )  # fmt: skip
    return {
        "tokenizer": clip_tokenizer(),
        "text_encoder": clip_text(),
        "decoder": decoder,
        "scheduler": DDPMWuerstchenScheduler(),
        "vqgan": paella(),
        "prior_prior": WuerstchenPrior(c_in=16, c=32, c_cond=SIZE, c_r=16, depth=1, nhead=2),
        "prior_text_encoder": clip_text(),
        "prior_tokenizer": clip_tokenizer(),
        "prior_scheduler": DDPMWuerstchenScheduler(),
    }


def paella() -> PaellaVQModel:
    return PaellaVQModel(bottleneck_blocks=1, num_vq_embeddings=16, embed_dim=16)


def amused() -> dict[str, Any]:
    """Tokens of a picture, guessed a few at a time."""
    transformer = UVit2DModel(
        hidden_size=32, cond_embed_dim=SIZE, micro_cond_encode_dim=8, micro_cond_embed_dim=40,
        encoder_hidden_size=SIZE, vocab_size=48, codebook_size=32, in_channels=32,
        block_out_channels=32, num_res_blocks=1, block_num_heads=2, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=32, sample_size=8, downsample=True, upsample=True,
    )  # fmt: skip
    vqvae = VQModel(
        act_fn="silu", block_out_channels=[8] * 2, down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2, latent_channels=32, layers_per_block=1,
        norm_num_groups=4, num_vq_embeddings=32, sample_size=32, mid_block_add_attention=False,
        lookup_from_codebook=True,
    )  # fmt: skip
    return {
        "vqvae": lively(vqvae, "quantize.embedding", 30.0),
        "tokenizer": clip_tokenizer(),
        "text_encoder": clip_text_projection(),
        "transformer": transformer,
        "scheduler": AmusedScheduler(mask_token_id=47),
    }


def unclip() -> dict[str, Any]:
    """Prior, decoder, and twice a larger picture of the smaller."""
    decoder = unet(
        sample_size=16, in_channels=3, out_channels=6, cross_attention_dim=16,
        down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        mid_block_type="UNetMidBlock2DSimpleCrossAttn", block_out_channels=(32, 64),
        attention_head_dim=4, resnet_time_scale_shift="scale_shift",
        class_embed_type="identity", norm_num_groups=4,
    )  # fmt: skip
    return {
        "prior": prior(),
        "decoder": decoder,
        "text_encoder": clip_text_projection(),
        "tokenizer": clip_tokenizer(),
        "text_proj": UnCLIPTextProjModel(
            clip_embeddings_dim=SIZE, time_embed_dim=32 * 4, cross_attention_dim=16
        ),
        "super_res_first": larger(),
        "super_res_last": larger(),
        "prior_scheduler": UnCLIPScheduler(
            variance_type="fixed_small_log", prediction_type="sample", clip_sample_range=5.0
        ),
        "decoder_scheduler": UnCLIPScheduler(variance_type="learned_range"),
        "super_res_scheduler": UnCLIPScheduler(variance_type="fixed_small_log"),
    }


def larger() -> UNet2DModel:
    return UNet2DModel(
        sample_size=32, layers_per_block=1, in_channels=6, out_channels=3,
        down_block_types=("ResnetDownsampleBlock2D", "ResnetDownsampleBlock2D"),
        up_block_types=("ResnetUpsampleBlock2D", "ResnetUpsampleBlock2D"),
        block_out_channels=(32, 64),
    )  # fmt: skip


def ernie() -> dict[str, Any]:
    """A decoder as FLUX.2 has it, and one stream of tokens."""
    transformer = ErnieImageTransformer2DModel(
        hidden_size=32, num_attention_heads=2, num_layers=2, ffn_hidden_size=32,
        in_channels=16, out_channels=16, text_in_dim=SIZE, rope_axes_dim=(4, 6, 6),
    )  # fmt: skip
    return {
        "transformer": filled(transformer, "adaLN|final_linear"),
        "vae": flux_2_vae(),
        "text_encoder": lively(Qwen3Model(qwen3_config())),
        "tokenizer": qwen_tokenizer(),
        "scheduler": FlowMatchEulerDiscreteScheduler(),
        "pe": None,
        "pe_tokenizer": None,
    }


def latte() -> dict[str, Any]:
    """Makes videos."""
    transformer = LatteTransformer3DModel(
        sample_size=16, num_layers=1, patch_size=2, attention_head_dim=8, num_attention_heads=3,
        caption_channels=SIZE, in_channels=4, cross_attention_dim=24, out_channels=8,
        attention_bias=True, activation_fn="gelu-approximate", num_embeds_ada_norm=1000,
        norm_type="ada_norm_single", norm_elementwise_affine=False, norm_eps=1e-6,
    )  # fmt: skip
    return {**pixart(), "transformer": filled(transformer, "proj_out")}


CALL, OWN = square(32), {"height": 48, "width": 32}
TWO_STAGES = square(128, prior_num_inference_steps=2, prior_guidance_scale=4.0)
MODELS = {
    "StableCascadeCombinedPipeline": Model(cascade, TWO_STAGES, {"height": 256}),
    "WuerstchenCombinedPipeline": Model(wuerstchen, TWO_STAGES, {"height": 256}),
    "AmusedPipeline": Model(amused, CALL, OWN),
    "UnCLIPPipeline": Model(
        unclip,
        {
            "prior_num_inference_steps": 2,
            "decoder_num_inference_steps": 2,
            "super_res_num_inference_steps": 2,
        },
        negative=False,
    ),
    "StableDiffusionPanoramaPipeline": Model(stable_diffusion, square(64), {"width": 128}),
    "StableDiffusionSAGPipeline": Model(stable_diffusion, {**CALL, "sag_scale": 0.75}, OWN),
    "ErnieImagePipeline": Model(ernie, CALL, OWN),
    "LattePipeline": Model(latte, {**CALL, "video_length": 1, "clean_caption": False}, OWN),
}
