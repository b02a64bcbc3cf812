"""Pipelines that take input images: image-to-image, inpaint, ControlNet, edit, upscalers."""

from typing import Any

from diffusers import (
    ControlNetModel,
    DDPMScheduler,
    FluxControlNetModel,
)
from transformers import Qwen2VLImageProcessor, Qwen2VLProcessor

from support.tiny.flux import components as flux
from support.tiny.model import Model, square
from support.tiny.parts import SIZE, filled, qwen_tokenizer, qwen_vae, qwen_vl_text
from support.tiny.qwen_image import lively_components as qwen_image
from support.tiny.stable_diffusion import BETAS, stable_diffusion, xl

__all__ = ["MODELS"]

IMAGE, MASKED, CONTROLLED = ("image",), ("image", "mask_image"), ("control_image",)


def control_net(**values: Any) -> ControlNetModel:
    model = ControlNetModel(
        **{
            "block_out_channels": (4, 8), "layers_per_block": 1, "in_channels": 4,
            "norm_num_groups": 2, "cross_attention_dim": SIZE, "attention_head_dim": 2,
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "conditioning_embedding_out_channels": (2, 4), **values,
        }
    )  # fmt: skip
    return filled(model, "controlnet_(down|mid)_block|controlnet_cond_embedding.conv_out", 0.3)


def controlled() -> dict[str, Any]:
    """2 px a latent, as the embedding of the control image has it."""
    return {**stable_diffusion(), "controlnet": control_net()}


def controlled_flux() -> dict[str, Any]:
    parts = flux()
    net = FluxControlNetModel.from_transformer(
        parts["transformer"], num_layers=1, num_single_layers=1, attention_head_dim=8,
        num_attention_heads=4, load_weights_from_transformer=False,
    )  # fmt: skip
    return {**parts, "controlnet": filled(net, "controlnet_|blocks", 0.3)}


def instructed() -> dict[str, Any]:
    """InstructPix2Pix: the input image's latents beside those of the image."""
    return stable_diffusion(in_channels=8)


def inpainted() -> dict[str, Any]:
    """A UNet of its own for inpainting: mask and masked image beside the latents."""
    return stable_diffusion(in_channels=9)


def upscaler() -> dict[str, Any]:
    """As Stable Diffusion's x4 upscaler, but by 2: the small image beside the latents."""
    parts = stable_diffusion(in_channels=7, num_class_embeds=1000)
    for name in ("requires_safety_checker", "safety_checker", "feature_extractor"):
        del parts[name]
    return {**parts, "low_res_scheduler": DDPMScheduler(**BETAS), "max_noise_level": 350}


def qwen_edit() -> dict[str, Any]:
    parts = qwen_image()
    tokenizer = qwen_tokenizer(1100)
    return {
        **parts,
        "text_encoder": qwen_vl_text(),
        "tokenizer": tokenizer,
        "vae": qwen_vae(),
        "processor": Qwen2VLProcessor(Qwen2VLImageProcessor(), tokenizer),
    }


STEPS = {"num_inference_steps": 4}
STRONG = {**STEPS, "strength": 0.6}
SIDE, OWN = square(32), {"height": 48, "width": 32}
KEPT = {key: STRONG[key] for key in STRONG}  # of the input image's own size
FLUX = {**SIDE, **STRONG, "max_sequence_length": 32, "true_cfg_scale": 3.0}
EDIT = {**SIDE, **STEPS, "max_sequence_length": 32}
MODELS = {
    "StableDiffusionImg2ImgPipeline": Model(stable_diffusion, KEPT, inputs=IMAGE),
    "StableDiffusionInpaintPipeline": Model(
        stable_diffusion, {**SIDE, **STRONG}, OWN, inputs=MASKED
    ),
    "StableDiffusionInpaintPipeline/own": Model(
        inpainted, {**SIDE, **STEPS, "strength": 1.0}, OWN, inputs=MASKED
    ),
    "StableDiffusionXLImg2ImgPipeline": Model(xl, KEPT, inputs=IMAGE),
    "StableDiffusionXLInpaintPipeline": Model(xl, {**SIDE, **STRONG}, OWN, inputs=MASKED),
}
