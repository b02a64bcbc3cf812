"""Kandinsky 2.1, 2.2 (text and prior in one) and 3."""

from typing import Any

from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    Kandinsky3UNet,
    UnCLIPScheduler,
    UNet2DConditionModel,
    VQModel,
)
from diffusers.pipelines.kandinsky.text_encoder import MCLIPConfig, MultilingualCLIP
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
    XLMRobertaTokenizer,
)

from support.tiny.model import Model, square
from support.tiny.parts import (
    SIZE,
    clip_text_projection,
    clip_tokenizer,
    lively,
    t5_text,
    t5_tokenizer,
    unet,
    unigrams,
)
from support.tiny.stable_diffusion import prior

__all__ = ["MODELS"]


def kandinsky_2_1() -> dict[str, Any]:
    text = MCLIPConfig(
        numDims=SIZE, transformerDimensions=SIZE, hidden_size=SIZE, intermediate_size=SIZE,
        num_attention_heads=4, num_hidden_layers=2, vocab_size=256,
    )  # fmt: skip
    special = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    return {
        "text_encoder": lively(MultilingualCLIP(text), "word_embeddings"),
        "tokenizer": XLMRobertaTokenizer(vocab=unigrams(*special), model_max_length=77),
        "unet": denoiser(addition_embed_type="text_image", encoder_hid_dim_type="text_image_proj"),
        "scheduler": scheduler(),
        "movq": movq(),
        **prior_components(),
    }


def kandinsky_2_2() -> dict[str, Any]:
    return {
        "unet": denoiser(addition_embed_type="image", encoder_hid_dim_type="image_proj"),
        "scheduler": scheduler(),
        "movq": movq(),
        **prior_components(),
    }


def kandinsky_3() -> dict[str, Any]:
    return {
        "unet": Kandinsky3UNet(
            in_channels=4, time_embedding_dim=4, groups=2, attention_head_dim=4,
            layers_per_block=3, block_out_channels=(32, 64), cross_attention_dim=4,
            encoder_hid_dim=SIZE,
        ),
        "scheduler": DDPMScheduler(beta_schedule="squaredcos_cap_v2", clip_sample=True),
        "movq": movq(),
        "text_encoder": t5_text(),
        "tokenizer": t5_tokenizer(),
    }  # fmt: skip


def denoiser(**values: Any) -> UNet2DConditionModel:
    """Its outputs are twice as many: mean and variance."""
    return unet(
        down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        block_out_channels=(32, 64), out_channels=8, encoder_hid_dim=SIZE, attention_head_dim=4,
        resnet_time_scale_shift="scale_shift", norm_num_groups=4, **values,
    )  # fmt: skip


def scheduler() -> DDIMScheduler:
    return DDIMScheduler(
        beta_start=0.00085, beta_end=0.012, clip_sample=False, set_alpha_to_one=False,
        steps_offset=1,
    )  # fmt: skip


def movq() -> VQModel:
    return VQModel(
        block_out_channels=[32] * 4, down_block_types=["DownEncoderBlock2D"] * 4,
        up_block_types=["UpDecoderBlock2D"] * 4, in_channels=3, out_channels=3, latent_channels=4,
        layers_per_block=1, norm_num_groups=4, norm_type="spatial", num_vq_embeddings=12,
        vq_embed_dim=4,
    )  # fmt: skip


def prior_components() -> dict[str, Any]:
    eyes = CLIPVisionConfig(
        hidden_size=SIZE, image_size=32, projection_dim=SIZE, intermediate_size=SIZE,
        num_attention_heads=4, num_hidden_layers=1, patch_size=16,
    )  # fmt: skip
    return {
        "prior_prior": prior(),
        "prior_image_encoder": CLIPVisionModelWithProjection(eyes),
        "prior_text_encoder": clip_text_projection(),
        "prior_tokenizer": clip_tokenizer(),
        "prior_scheduler": UnCLIPScheduler(
            variance_type="fixed_small_log", prediction_type="sample", clip_sample_range=10.0
        ),
        "prior_image_processor": CLIPImageProcessor(crop_size=32, size=32),
    }


CALL, OWN = square(64, prior_num_inference_steps=2), {"height": 128, "width": 64}
MODELS = {
    "KandinskyCombinedPipeline": Model(kandinsky_2_1, CALL, OWN),
    "KandinskyV22CombinedPipeline": Model(kandinsky_2_2, CALL, OWN),
    "Kandinsky3Pipeline": Model(kandinsky_3, square(64), OWN),
}
