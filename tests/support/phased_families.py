"""Tiny random pipelines of more families, for strategies that take a pipeline's call apart."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderDC,
    AutoencoderKL,
    AutoencoderKLFlux2,
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Transformer2DModel,
    PixArtSigmaPipeline,
    PixArtTransformer2DModel,
    SanaPipeline,
    SanaTransformer2DModel,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
    ZImagePipeline,
    ZImageTransformer2DModel,
)
from diffusers.pipelines.stable_diffusion import StableDiffusionSafetyChecker
from tokenizers import pre_tokenizers
from transformers import (
    CLIPConfig,
    CLIPImageProcessor,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    Gemma2Config,
    Gemma2Model,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3Model,
    T5Config,
    T5EncoderModel,
)

from runner.manifest.schema import Manifest
from runner.model.spec import ModelSpec
from runner.render.load import ModelSource
from support import tiny

__all__ = ["PARAMETERS", "call", "plain", "save", "source_of"]

SIZE = 32  # of all texts' hidden states
BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
CLIP = CLIPTextConfig(
    vocab_size=64, hidden_size=SIZE, intermediate_size=SIZE, num_hidden_layers=2,
    num_attention_heads=4, max_position_embeddings=77, bos_token_id=0, eos_token_id=1,
    pad_token_id=0, projection_dim=SIZE,
)  # fmt: skip
QWEN_3 = Qwen3Config(
    vocab_size=512, hidden_size=SIZE, intermediate_size=SIZE, head_dim=8, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048, pad_token_id=0,
    eos_token_id=0,
)  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}"
)


SQUARE = {"height": 64, "width": 64, "num_inference_steps": 2}
LANGUAGE = {**SQUARE, "max_sequence_length": 64}
GUIDED = {"guidance_scale": 3.0}
PARAMETERS: dict[str, dict[str, Any]] = {
    "flux": {**SQUARE, "max_sequence_length": 16},
    "qwen": {**SQUARE, "true_cfg_scale": 2.0, "negative_prompt": "a dog"},
    "sd3": {**SQUARE, **GUIDED},
    "sd": {**SQUARE, **GUIDED},
    "sd-checked": {**SQUARE, **GUIDED},
    "sdxl": {**SQUARE, **GUIDED},
    "pixart": {**SQUARE, **GUIDED, "num_inference_steps": 1, "clean_caption": False},
    "sana": {**SQUARE, **GUIDED, "complex_human_instruction": None, "clean_caption": False},
    "klein": {**LANGUAGE, **GUIDED, "text_encoder_out_layers": [0, 1, 2]},
    "z-image": {**LANGUAGE, **GUIDED},
}


def save(family: str, folder: Path) -> Path:
    torch.manual_seed(0)
    FAMILIES[family]().save_pretrained(folder)
    return folder


def source_of(folder: Path, dtype: str = "float32") -> ModelSource:
    return ModelSource(folder, Manifest(model=ModelSpec(id="m"), dtype=dtype, prompts=["a"]))


def plain(source: ModelSource) -> Any:
    pipe = source.pipeline()
    pipe.set_progress_bar_config(disable=True)
    return pipe


def call(seed: int, prompt: str, **parameters: Any) -> dict[str, Any]:
    generator = torch.Generator("cpu").manual_seed(seed)
    return {**parameters, "prompt": prompt, "generator": generator, "output_type": "pt"}


def qwen_tokenizer() -> Qwen2Tokenizer:
    """One byte, one token, with a chat template."""
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    return Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate((*special, *letters))},
        merges=[],
        model_max_length=512,
        padding_side="right",
        chat_template=TEMPLATE,
        extra_special_tokens=list(special[1:]),
    )


def stable_diffusion(*, checker: bool = False) -> StableDiffusionPipeline:
    """8 px a latent."""
    eyes = {"hidden_size": SIZE, "image_size": 32, "intermediate_size": SIZE, "patch_size": 16,
            "num_attention_heads": 4, "num_hidden_layers": 1}  # fmt: skip
    return StableDiffusionPipeline(
        scheduler=DDIMScheduler(**BETAS, clip_sample=False, set_alpha_to_one=False, steps_offset=1),
        vae=_vae(use_quant_conv=True, use_post_quant_conv=True, shift_factor=None),
        text_encoder=CLIPTextModel(CLIP),
        tokenizer=tiny.tokenizer(77),
        unet=_unet(),
        safety_checker=StableDiffusionSafetyChecker(
            CLIPConfig(vision_config=eyes, projection_dim=SIZE)
        )
        if checker
        else None,
        feature_extractor=CLIPImageProcessor(crop_size=32, size=32) if checker else None,
        requires_safety_checker=checker,
    )


def stable_diffusion_xl() -> StableDiffusionXLPipeline:
    """8 px a latent. Its VAE says that it needs more than half precision."""
    return StableDiffusionXLPipeline(
        scheduler=EulerDiscreteScheduler(**BETAS, steps_offset=1, timestep_spacing="leading"),
        vae=_vae(use_quant_conv=True, use_post_quant_conv=True, shift_factor=None),
        text_encoder=CLIPTextModel(CLIP),
        tokenizer=tiny.tokenizer(77),
        text_encoder_2=CLIPTextModelWithProjection(CLIP),
        tokenizer_2=tiny.tokenizer(77),
        unet=_unet(
            addition_embed_type="text_time",
            addition_time_embed_dim=8,
            projection_class_embeddings_input_dim=6 * 8 + SIZE,
            cross_attention_dim=2 * SIZE,
            use_linear_projection=True,
        ),
    )


def pixart() -> PixArtSigmaPipeline:
    """8 px a latent. The call makes one of a few sizes of about 256² px, and cuts it down."""
    transformer = PixArtTransformer2DModel(
        sample_size=32, num_layers=2, patch_size=2, attention_head_dim=8, num_attention_heads=3,
        caption_channels=SIZE, in_channels=4, cross_attention_dim=24, out_channels=8,
        norm_type="ada_norm_single", norm_elementwise_affine=False, norm_eps=1e-6,
    )  # fmt: skip
    t5 = T5Config(
        vocab_size=64, d_model=SIZE, d_kv=8, d_ff=SIZE, num_layers=1, num_heads=4,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    return PixArtSigmaPipeline(
        transformer=_filled(transformer, "proj_out"),
        vae=_vae(),
        scheduler=DDIMScheduler(),
        text_encoder=T5EncoderModel(t5),
        tokenizer=tiny.tokenizer(300),
    )


def sana() -> SanaPipeline:
    """16 px a latent. It bins sizes as PixArt does, to about 512² px."""
    transformer = SanaTransformer2DModel(
        patch_size=1, in_channels=4, out_channels=4, num_layers=2, num_attention_heads=2,
        attention_head_dim=8, num_cross_attention_heads=2, cross_attention_head_dim=8,
        cross_attention_dim=16, caption_channels=SIZE, sample_size=16,
    )  # fmt: skip
    levels, plain = 5, ("ResBlock",) * 4
    vae = AutoencoderDC(
        in_channels=3, latent_channels=4, attention_head_dim=2,
        encoder_block_types=(*plain, "EfficientViTBlock"),
        decoder_block_types=(*plain, "EfficientViTBlock"),
        encoder_block_out_channels=(8,) * levels, decoder_block_out_channels=(8,) * levels,
        encoder_qkv_multiscales=((), (), (), (), (5,)),
        decoder_qkv_multiscales=((), (), (), (), (5,)),
        encoder_layers_per_block=(1,) * levels, decoder_layers_per_block=(1,) * levels,
        downsample_block_type="conv", upsample_block_type="interpolate",
        decoder_norm_types="rms_norm", decoder_act_fns="silu", scaling_factor=0.41407,
    )  # fmt: skip
    gemma = Gemma2Config(
        vocab_size=64, hidden_size=SIZE, intermediate_size=SIZE, head_dim=8, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return SanaPipeline(
        scheduler=DPMSolverMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
        vae=vae,
        text_encoder=Gemma2Model(gemma),
        tokenizer=tiny.tokenizer(300),
        transformer=_filled(transformer, "caption_norm", 1.0),
    )


def klein() -> Flux2KleinPipeline:
    """FLUX.2: 8 px a latent, 16 px a token. Its call reads numbers of the VAE."""
    transformer = Flux2Transformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=3 * SIZE, timestep_guidance_channels=32,
        axes_dims_rope=(4, 4, 4, 4), guidance_embeds=False,
    )  # fmt: skip
    vae = AutoencoderKLFlux2(
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(4, 4, 4, 4), layers_per_block=1, latent_channels=4,
        norm_num_groups=2, use_quant_conv=False, use_post_quant_conv=False,
    )  # fmt: skip
    vae.bn.running_mean.normal_()
    return Flux2KleinPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=vae,
        text_encoder=Qwen3ForCausalLM(QWEN_3),
        tokenizer=qwen_tokenizer(),
        transformer=transformer,
        is_distilled=False,
    )


def z_image() -> ZImagePipeline:
    """8 px a latent, 16 px a token."""
    transformer = ZImageTransformer2DModel(
        all_patch_size=(2,), all_f_patch_size=(1,), in_channels=4, dim=32, n_layers=2,
        n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=SIZE, axes_dims=[8, 4, 4],
        axes_lens=[512, 32, 32],
    )  # fmt: skip
    return ZImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=_vae(),
        text_encoder=Qwen3Model(QWEN_3),
        tokenizer=qwen_tokenizer(),
        transformer=_filled(transformer, "pad_token", 1.0),
    )


FAMILIES: dict[str, Callable[[], Any]] = {
    "sd": stable_diffusion,
    "sd-checked": lambda: stable_diffusion(checker=True),
    "sdxl": stable_diffusion_xl,
    "pixart": pixart,
    "sana": sana,
    "klein": klein,
    "z-image": z_image,
}


def _vae(**values: Any) -> AutoencoderKL:
    config = {**tiny.vae().config, "force_upcast": True, **values}
    return AutoencoderKL.from_config(config)


def _unet(**values: Any) -> UNet2DConditionModel:
    config = {
        "block_out_channels": (4, 8), "layers_per_block": 1, "sample_size": 8, "in_channels": 4,
        "out_channels": 4, "norm_num_groups": 2, "attention_head_dim": 2,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"), "cross_attention_dim": SIZE,
    }  # fmt: skip
    return UNet2DConditionModel(**{**config, **values})


def _filled(model: Any, pattern: str, deviation: float = 0.2) -> Any:
    """The model with weights at random where it begins with zeros."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if re.search(pattern, name):
                weight.normal_(0.0, deviation)
    return model
