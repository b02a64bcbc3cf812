"""Stable Diffusion 1 and 2, XL, and what was built on them."""

from typing import Any

from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    EulerDiscreteScheduler,
    LCMScheduler,
    PriorTransformer,
)
from diffusers.pipelines.stable_diffusion import (
    StableDiffusionSafetyChecker,
    StableUnCLIPImageNormalizer,
)
from transformers import CLIPConfig, CLIPImageProcessor

from support.tiny.model import Model, square
from support.tiny.parts import (
    SIZE,
    clip_text,
    clip_text_projection,
    clip_tokenizer,
    filled,
    small_vae,
    unet,
    vae,
)

__all__ = ["MODELS"]

BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}


def stable_diffusion(**of_unet: Any) -> dict[str, Any]:
    """2 px a latent; 4 px to the middle of the denoiser."""
    return {
        "scheduler": DDIMScheduler(**BETAS, clip_sample=False, set_alpha_to_one=False),
        "vae": small_vae(),
        "text_encoder": clip_text(),
        "tokenizer": clip_tokenizer(),
        "unet": unet(**of_unet),
        "safety_checker": None,
        "feature_extractor": None,
        "requires_safety_checker": False,
    }


def velocity() -> dict[str, Any]:
    """As in Stable Diffusion 2: velocities, and a text encoder of OpenCLIP's layout."""
    scheduler = EulerDiscreteScheduler(**BETAS, prediction_type="v_prediction")
    text = clip_text(hidden_act="gelu", num_hidden_layers=3)
    parts = stable_diffusion(use_linear_projection=True)
    return {**parts, "scheduler": scheduler, "text_encoder": text}


def checked() -> dict[str, Any]:
    """With a safety checker."""
    eyes = {"hidden_size": SIZE, "image_size": 32, "intermediate_size": SIZE, "patch_size": 16,
            "num_attention_heads": 4, "num_hidden_layers": 1}  # fmt: skip
    config = CLIPConfig(vision_config=eyes, projection_dim=SIZE)
    return {
        **stable_diffusion(),
        "safety_checker": StableDiffusionSafetyChecker(config),
        "feature_extractor": CLIPImageProcessor(crop_size=32, size=32),
        "requires_safety_checker": True,
    }


def guidance_embedded() -> dict[str, Any]:
    """A latent consistency model."""
    scheduler = LCMScheduler(**BETAS, clip_sample=False, set_alpha_to_one=False)
    return {**stable_diffusion(time_cond_proj_dim=32), "scheduler": scheduler}


def latent_diffusion() -> dict[str, Any]:
    parts = stable_diffusion()
    return {
        "vqvae": vae(),  # 8 px a latent, as the call takes for granted
        "bert": parts["text_encoder"],
        **{name: parts[name] for name in ("tokenizer", "unet", "scheduler")},
    }


def xl() -> dict[str, Any]:
    return {
        "scheduler": EulerDiscreteScheduler(**BETAS, steps_offset=1, timestep_spacing="leading"),
        "vae": small_vae(),
        "text_encoder": clip_text(),
        "tokenizer": clip_tokenizer(),
        "text_encoder_2": clip_text_projection(),
        "tokenizer_2": clip_tokenizer(),
        "unet": unet(
            addition_embed_type="text_time",
            addition_time_embed_dim=8,
            transformer_layers_per_block=(1, 2),
            projection_class_embeddings_input_dim=6 * 8 + SIZE,
            cross_attention_dim=2 * SIZE,
            use_linear_projection=True,
        ),
    }


def prior(**values: Any) -> PriorTransformer:
    """Text embedding → image embedding, with statistics that do not erase it."""
    model = PriorTransformer(
        num_attention_heads=2, attention_head_dim=8, embedding_dim=SIZE, num_layers=1, **values
    )
    model.clip_std.data.fill_(1.0)
    return filled(model, "embedding|prd_embedding")


def unclip() -> dict[str, Any]:
    """The image's embedding is made first, from the text, then the image."""
    return {
        "prior_tokenizer": clip_tokenizer(),
        "prior_text_encoder": clip_text_projection(),
        "prior": prior(),
        "prior_scheduler": DDPMScheduler(
            variance_type="fixed_small_log", prediction_type="sample", clip_sample=True,
            clip_sample_range=5.0, beta_schedule="squaredcos_cap_v2",
        ),
        "image_normalizer": StableUnCLIPImageNormalizer(embedding_dim=SIZE),
        "image_noising_scheduler": DDPMScheduler(beta_schedule="squaredcos_cap_v2"),
        "tokenizer": clip_tokenizer(),
        "text_encoder": clip_text(),
        "unet": unet(
            class_embed_type="projection", projection_class_embeddings_input_dim=2 * SIZE,
            use_linear_projection=True,
        ),
        "scheduler": DDIMScheduler(
            **BETAS, prediction_type="v_prediction", set_alpha_to_one=False, steps_offset=1
        ),
        "vae": small_vae(),
    }  # fmt: skip


CALL, OWN = square(32), {"height": 48, "width": 32}
PAG = {**CALL, "pag_scale": 3.0}
MODELS = {
    "StableDiffusionPipeline": Model(stable_diffusion, CALL, OWN),
    "StableDiffusionPipeline/velocity": Model(velocity, CALL, OWN),
    "StableDiffusionPipeline/checked": Model(checked, CALL, OWN),
    "StableDiffusionXLPipeline": Model(xl, CALL, OWN),
    "LatentConsistencyModelPipeline": Model(guidance_embedded, CALL, OWN, negative=False),
    "LDMTextToImagePipeline": Model(
        latent_diffusion, square(64), {"height": 96, "width": 64}, negative=False
    ),
    "StableDiffusionPAGPipeline": Model(stable_diffusion, PAG, OWN),
    "StableDiffusionXLPAGPipeline": Model(xl, PAG, OWN),
    "StableUnCLIPPipeline": Model(unclip, {**CALL, "prior_num_inference_steps": 2}, OWN),
}
