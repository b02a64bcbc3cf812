"""What a model's configs say: its classes, heads, and how many tokens an image has."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.errors import ModelError
from runner.model.controlnet import class_of_controlnet
from runner.model.json_file import read_json
from runner.model.pipeline_class import pipeline_class_of
from runner.model.pipeline_index import index_of

__all__ = ["ModelConfigs", "divisors", "takes_padded_heads"]

# The length of the text that a transformer sees, by its class: padded to max_sequence_length, which
# has this default; or as long as the prompt, up to that.
FIXED_TEXT = {"FluxTransformer2DModel": 512, "Flux2Transformer2DModel": 512}
VARYING_TEXT = {"QwenImageTransformer2DModel": 512}
MASKED_TEXT = ("LTXVideoTransformer3DModel", "LTX2VideoTransformer3DModel")  # a single text too
# Pipelines that halve their latents once more, which their configs do not say; and those that count
# on one VAE, whose pixels a latent are a number in their code. As in diffusers 0.42.1.
HALVING = ("ZImagePipeline", "ZImageOmniPipeline", "Lumina2Pipeline", "QwenImage21Pipeline")
OWN_FACTOR = {"QwenImage21Pipeline": 16, "BriaFiboPipeline": 16}
DEFAULT_LATENTS = 128  # latents a side where height and width are left to the pipeline
TEXTS_AT_ONCE = 1000


def divisors(number: int) -> list[int]:
    return [low for low in range(1, number + 1) if number % low == 0]


def takes_padded_heads(heads: int, degree: int) -> bool:
    """Whether Ulysses with any number of heads can split them: diffusers pads them to a multiple of
    the degree, and the padding must be less than what one rank gets."""
    padding = -heads % degree
    return padding < (heads + padding) // degree


@dataclass(frozen=True, slots=True, eq=False)
class ModelConfigs:
    """A model folder's configs, read once."""

    folder: Path
    index: Mapping[str, Any]
    denoiser: str  # "transformer" or "unet"; "" where there is neither
    config: Mapping[str, Any]  # the denoiser's
    vae: Mapping[str, Any]  # the decoder's
    scheduler: Mapping[str, Any]  # the scheduler's

    @classmethod
    def read(
        cls,
        folder: Path,
        shown: str = "",
        pipeline: str | None = None,
        controlnet: str | None = None,
    ) -> "ModelConfigs":
        """`shown` is what errors call the model, `pipeline` the manifest's choice of a class,
        `controlnet` its folder of one. Raises ModelError for a folder that is no pipeline, or a
        config that is no JSON."""
        shown = shown or str(folder)
        index = index_of(folder, shown)
        index["_class_name"] = pipeline_class_of(
            index["_class_name"], pipeline, shown, has_controlnet=controlnet is not None
        )
        if controlnet is not None:
            index["controlnet"] = ["diffusers", class_of_controlnet(Path(controlnet))]
        denoiser = next((name for name in ("transformer", "unet") if index.get(name)), "")
        config, vae = (_read(folder / name / "config.json") for name in (denoiser, "vae"))
        scheduler = _read(folder / "scheduler" / "scheduler_config.json")
        return cls(folder, index, denoiser, config, vae, scheduler)

    def config_of(self, component: str) -> dict[str, Any]:
        return _read(self.folder / component / "config.json")

    def class_of(self, component: str) -> Any:
        """A component's class. Raises ModelError for one that is not installed."""
        library, name = self.index[component]
        # A safety checker's library is a module of diffusers' pipelines.
        modules = (f"diffusers.pipelines.{library}", library)
        found = next(filter(importlib.util.find_spec, modules), None)
        model_class = getattr(importlib.import_module(found), name, None) if found else None
        if not isinstance(model_class, type):
            raise ModelError(
                f"{self.folder / 'model_index.json'}: {component}: {library} has no class {name}; "
                f"install the version of {library} that the model was saved with"
            )
        return model_class

    @property
    def scheduler_class(self) -> str:
        entry = self.index.get("scheduler")
        return str(entry[1]) if isinstance(entry, list) and len(entry) > 1 else ""

    @property
    def networks(self) -> list[str]:
        """The components with weights."""
        return [
            name
            for name, entry in self.index.items()
            # Only models have a config.json; a safety checker's library is a module of diffusers.
            if isinstance(entry, list) and entry[0] and self.config_of(name)
        ]

    @property
    def pipeline_class(self) -> str:
        return str(self.index.get("_class_name", ""))

    @property
    def denoiser_class(self) -> str:
        """The denoiser's class, or the pipeline's where there is none."""
        entry = self.index.get(self.denoiser)
        return str(entry[1]) if entry else self.pipeline_class

    @property
    def heads(self) -> int | None:
        heads = self.config.get("num_attention_heads")
        return heads if isinstance(heads, int) and heads > 0 else None

    @property
    def text_varies(self) -> bool:
        """Whether the text is as long as the prompt."""
        return self.denoiser_class in VARYING_TEXT

    def has_mask(self, batch_size: int) -> bool:
        """Whether attention may get a mask: in a batch, texts of unequal length are padded."""
        is_padded = batch_size > 1 and self.denoiser_class not in FIXED_TEXT
        return is_padded or self.denoiser_class in MASKED_TEXT

    def plan_of(self, attribute: str) -> Any:
        """The denoiser class's `_cp_plan` or `_tp_plan`; None where diffusers gives it none."""
        import diffusers

        return getattr(getattr(diffusers, self.denoiser_class, None), attribute, None)

    @property
    def token_side(self) -> int | None:
        """Pixels a token along one side: two latents. None for models that may pack otherwise."""
        if self.denoiser_class not in (*FIXED_TEXT, *VARYING_TEXT):
            return None
        return 2 * self.vae_factor

    @property
    def vae_factor(self) -> int:
        """Pixels a latent along one side."""
        known = OWN_FACTOR.get(self.pipeline_class) or self.vae.get("spatial_compression_ratio")
        if isinstance(known, int):
            return known
        if self.vae.get("block_out_channels"):
            return int(2 ** (len(self.vae["block_out_channels"]) - 1))
        return int(2 ** len(self.vae.get("temperal_downsample", (1, 1, 1))))

    @property
    def size_multiple(self) -> int:
        """What height and width must be multiples of: pixels a latent times the transformer's patch
        (FLUX and Qwen-Image pack 2×2 latents before it, and so have 4 times the VAE's channels).
        1 where the VAE's config does not say."""
        if self.pipeline_class in HALVING:
            return 2 * self.vae_factor
        if not (self.vae.get("block_out_channels") or self.vae.get("temperal_downsample")):
            return 1
        transformer = self.config_of("transformer")
        latents = self.vae.get("latent_channels") or self.vae.get("z_dim")
        if latents and transformer.get("in_channels") == 4 * latents:
            return 2 * self.vae_factor
        patch = transformer.get("patch_size")
        return self.vae_factor * (patch if isinstance(patch, int) else 1)

    def size(self, parameters: Mapping[str, Any]) -> tuple[int, int]:
        """(height, width) in pixels; the pipeline's default where the parameters do not say."""
        default = DEFAULT_LATENTS * self.vae_factor
        height, width = (parameters.get(side) or default for side in ("height", "width"))
        return int(height), int(width)

    def width(self, default: int) -> int:
        """Numbers a token in the transformer."""
        head = self.config.get("attention_head_dim")
        return self.heads * head if self.heads and isinstance(head, int) else default

    @property
    def decoder_class(self) -> str:
        entry = self.index.get("vae")
        return str(entry[1]) if isinstance(entry, list) and len(entry) > 1 else ""

    def decoder_channels(self, default: int) -> int:
        """Channels of the decoder's last wide layer, which is as large as the image."""
        channels = self.vae.get("block_out_channels")
        if channels:
            return int(channels[min(1, len(channels) - 1)])
        return int(self.vae["base_dim"] * 2) if "base_dim" in self.vae else default

    def image_tokens(self, parameters: Mapping[str, Any]) -> int | None:
        if self.token_side is None:
            return None
        height, width = self.size(parameters)
        return (height // self.token_side) * (width // self.token_side)

    def text_tokens(self, parameters: Mapping[str, Any]) -> int | None:
        """Tokens of the text, at most where it varies; None where that is not known."""
        default = {**FIXED_TEXT, **VARYING_TEXT}.get(self.denoiser_class)
        return None if default is None else int(parameters.get("max_sequence_length") or default)

    def tokens_of(self, texts: Sequence[str]) -> list[int]:
        """How many tokens of each text the transformer sees, before any cut. For models whose text
        varies: the pipeline puts it into a template and drops the template's head again.

        Raises ModelError for a tokenizer that cannot be read."""
        import diffusers
        from transformers import AutoTokenizer

        folder = self.folder / "tokenizer"
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise ModelError(f"{folder}: cannot be read: {str(error).splitlines()[0]}") from None
        parts = dict.fromkeys(("scheduler", "vae", "text_encoder", "transformer"))
        pipe = getattr(diffusers, self.pipeline_class)(tokenizer=tokenizer, **parts)
        lengths: list[int] = []
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            some = texts[start : start + TEXTS_AT_ONCE]
            found = tokenizer([pipe.prompt_template_encode.format(text) for text in some])
            lengths += [len(ids) - pipe.prompt_template_encode_start_idx for ids in found.input_ids]
        return lengths


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file. Raises ModelError."""
    return read_json(path) if path.exists() else {}
