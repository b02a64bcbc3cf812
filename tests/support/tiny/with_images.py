"""Pipelines that take input images: image-to-image, inpaint, ControlNet, edit, upscalers."""

from typing import Any

from diffusers import (
    ControlNetModel,
    DDPMScheduler,
    FluxControlNetModel,
)

from support.tiny.flux import components as flux
from support.tiny.flux_2 import klein
from support.tiny.language import z_image
from support.tiny.model import Model, square
from support.tiny.parts import SIZE, filled, lively
from support.tiny.qwen_image import lively_components as qwen_image
from support.tiny.stable_diffusion import BETAS, stable_diffusion, xl
from support.tiny.stable_diffusion_3 import components as stable_diffusion_3

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
    return filled(filled(model, "controlnet_(down|mid)_block", 0.3), "cond_embedding", 0.7)


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


def kontext() -> dict[str, Any]:
    """FLUX, in which the tokens of the input image count for more than at random."""
    parts = flux()
    lively(parts["transformer"], r"x_embedder\.weight|to_(v|out\.0)\.weight|proj_(out|mlp)", 4.0)
    return parts


def seeing_qwen_image() -> dict[str, Any]:
    """Qwen-Image, whose encoder makes latents as large as the noise."""
    parts = qwen_image()
    lively(parts["vae"], r"encoder\.conv_out\.weight", 12.0)
    return parts


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
    "StableDiffusion3Img2ImgPipeline": Model(
        stable_diffusion_3, {**SIDE, **STRONG, "max_sequence_length": 32}, OWN, inputs=IMAGE
    ),
    "FluxImg2ImgPipeline": Model(flux, FLUX, OWN, inputs=IMAGE),
    "FluxInpaintPipeline": Model(flux, FLUX, OWN, inputs=MASKED),
    "QwenImageImg2ImgPipeline": Model(
        seeing_qwen_image, {**EDIT, "strength": 0.3, "true_cfg_scale": 3.0}, OWN, inputs=IMAGE
    ),
    "QwenImageInpaintPipeline": Model(
        qwen_image, {**EDIT, "strength": 0.6, "true_cfg_scale": 3.0}, OWN, inputs=MASKED
    ),
    "ZImageImg2ImgPipeline": Model(
        z_image, {**SIDE, **STRONG, "max_sequence_length": 64}, inputs=IMAGE
    ),
    "StableDiffusionControlNetPipeline": Model(controlled, {**SIDE, **STEPS}, OWN, inputs=IMAGE),
    "FluxControlNetPipeline": Model(
        controlled_flux, {**SIDE, **STEPS, "max_sequence_length": 32}, OWN, inputs=CONTROLLED
    ),
    "FluxKontextPipeline": Model(
        kontext,
        {**EDIT, "max_area": 32 * 32, "_auto_resize": False, "true_cfg_scale": 3.0},
        inputs=IMAGE,
    ),
    "Flux2KleinPipeline/edit": Model(
        klein,
        {**EDIT, "max_sequence_length": 96, "text_encoder_out_layers": [0, 1, 2]},
        OWN,
        negative=False,
        inputs=IMAGE,
        input_side=64,
    ),
    "StableDiffusionInstructPix2PixPipeline": Model(instructed, STEPS, inputs=IMAGE),
    "StableDiffusionUpscalePipeline": Model(upscaler, {**STEPS, "noise_level": 20}, inputs=IMAGE),
}
