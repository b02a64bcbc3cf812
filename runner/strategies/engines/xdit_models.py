"""What xfuser 0.7.0 supports, as a copy: a test compares every line with the installed package.
A copy, because xfuser cannot be imported without a GPU."""

from typing import Any, NamedTuple

from runner.strategies.checks.packages import Package

__all__ = ["FAILS", "MODELS", "SCHEDULERS", "XFUSER", "Supported"]

XFUSER = Package("xfuser", "0.7.0")
_TRANSFORMERS = "xfuser.model_executor.models.transformers"


class Supported(NamedTuple):
    """Which degrees over 1 xfuser takes for a pipeline that makes images from prompts."""

    ulysses: bool = True
    ring: bool = True
    pipefusion: bool = False
    cfg: bool = False
    # "module:class" of a transformer that goes into diffusers' pipeline. Without one, or with
    # PipeFusion, xfuser wraps the pipeline and replaces its call.
    transformer: str = ""
    asks_size: bool = False  # that transformer reads the image's size from xfuser's state
    wraps: bool = True  # xfuser has a wrapper for the pipeline
    ignores: tuple[str, ...] = ()  # parameters that the wrapper's call accepts and drops


# By pipeline class. Not listed: those that need an image or make videos, and those that only
# xfuser's own runner can set up (Z-Image, Krea 2, Ideogram 4).
MODELS = {
    "Flux2KleinPipeline": Supported(
        pipefusion=True,
        transformer=f"{_TRANSFORMERS}.transformer_flux2:xFuserFlux2Transformer2DWrapper",
    ),
    "Flux2Pipeline": Supported(
        pipefusion=True,
        transformer=f"{_TRANSFORMERS}.transformer_flux2:xFuserFlux2Transformer2DWrapper",
    ),
    "FluxPipeline": Supported(
        pipefusion=True,
        transformer=f"{_TRANSFORMERS}.transformer_flux:xFuserFlux1Transformer2DWrapper",
        asks_size=True,
        ignores=("negative_prompt", "negative_prompt_2", "sigmas", "true_cfg_scale"),
    ),
    "HunyuanDiTPipeline": Supported(pipefusion=True, cfg=True),
    "Lumina2Pipeline": Supported(ring=False, cfg=True),
    "PixArtAlphaPipeline": Supported(pipefusion=True, cfg=True),
    "PixArtSigmaPipeline": Supported(pipefusion=True, cfg=True),
    "QwenImagePipeline": Supported(
        transformer=f"{_TRANSFORMERS}.transformer_qwen:xFuserQwenImageTransformerWrapper",
        wraps=False,
    ),
    "SanaPipeline": Supported(pipefusion=True, cfg=True),
    "SanaSprintPipeline": Supported(pipefusion=True),
    "StableDiffusion3Pipeline": Supported(
        pipefusion=True,
        cfg=True,
        ignores=(
            "max_sequence_length",
            "mu",
            "sigmas",
            "skip_guidance_layers",
            "skip_layer_guidance_scale",
            "skip_layer_guidance_start",
            "skip_layer_guidance_stop",
        ),
    ),
    "StableDiffusionXLPipeline": Supported(ulysses=False, ring=False, cfg=True),
}

# Degrees that xfuser accepts and that failed with tiny models, by pipeline.
_NO_SANA = "fails as it loads: xfuser does not fit the version of yunchang that it asks for"
FAILS = {
    ("Flux2KleinPipeline", "pipefusion"): "reads other layers of the text encoder than diffusers",
    ("SanaPipeline", "pipefusion"): "draws a wrong image (8e-2 off)",
    ("SanaPipeline", "ring"): _NO_SANA,
    ("SanaPipeline", "ulysses"): _NO_SANA,
    ("SanaSprintPipeline", "pipefusion"): "is not implemented",
    ("SanaSprintPipeline", "ring"): _NO_SANA,
    ("SanaSprintPipeline", "ulysses"): _NO_SANA,
}

# Those that xfuser can run on parts of an image, with the config values that make them add noise at
# each step: ranks would draw the same noise for different parts. DDPM and SCM always add noise.
SCHEDULERS: dict[str, dict[str, tuple[Any, ...]]] = {
    "DDIMScheduler": {},
    "DPMSolverMultistepScheduler": {"algorithm_type": ("sde-dpmsolver", "sde-dpmsolver++")},
    "FlowMatchEulerDiscreteScheduler": {"stochastic_sampling": (True,)},
}
