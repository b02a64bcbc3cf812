"""Tiny random pipelines, built from configs: real classes, real files, no download."""

import json
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    T5Config,
    T5EncoderModel,
)

WORDS = [
    "a",
    "an",
    "the",
    "red",
    "blue",
    "cat",
    "dog",
    "on",
    "under",
    "sun",
    "moon",
    "sea",
    "house",
    "tree",
    "fox",
    "in",
    "snow",
    "green",
    "hill",
]


def tokenizer(length: int) -> PreTrainedTokenizerFast:
    """One word, one token."""
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<end>", "<unk>", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="$A <end>", special_tokens=[("<end>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        model_max_length=length,
        pad_token="<pad>",
        eos_token="<end>",
        unk_token="<unk>",
    )


def flux(
    folder: Path,
    *,
    heads: int = 4,
    width: int = 8,
    layers: int = 1,
    double_layers: int | None = None,
    seed: int = 0,
) -> Path:
    """A FLUX pipeline of about 50,000 weights: 8 px a latent, 16 px a token; `layers` of each
    kind, unless `double_layers` says how many are double."""
    torch.manual_seed(seed)
    size = 32
    clip = CLIPTextConfig(
        vocab_size=64, hidden_size=size, intermediate_size=size, num_hidden_layers=1,
        num_attention_heads=4, max_position_embeddings=77, eos_token_id=1, bos_token_id=0,
        pad_token_id=0, projection_dim=size,
    )  # fmt: skip
    t5 = T5Config(
        vocab_size=64, d_model=size, d_kv=8, d_ff=size, num_layers=1, num_heads=4,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    transformer = FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_single_layers=layers,
        num_layers=layers if double_layers is None else double_layers,
        attention_head_dim=width, num_attention_heads=heads, joint_attention_dim=size,
        pooled_projection_dim=size, guidance_embeds=False, axes_dims_rope=(2, 2, width - 4),
    )  # fmt: skip
    FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=vae(),
        text_encoder=CLIPTextModel(clip),
        tokenizer=tokenizer(77),
        text_encoder_2=T5EncoderModel(t5),
        tokenizer_2=tokenizer(64),
        transformer=transformer,
    ).save_pretrained(folder)
    return folder


def stable_diffusion_3(folder: Path, *, seed: int = 0) -> Path:
    """A Stable Diffusion 3 pipeline: classifier-free guidance, 8 px a latent, 16 px a token."""
    torch.manual_seed(seed)
    size = 32
    clip = CLIPTextConfig(
        vocab_size=64, hidden_size=size, intermediate_size=size, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=77, eos_token_id=1, bos_token_id=0,
        pad_token_id=0, projection_dim=size,
    )  # fmt: skip
    t5 = T5Config(
        vocab_size=64, d_model=2 * size, d_kv=8, d_ff=size, num_layers=1, num_heads=4,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    transformer = SD3Transformer2DModel(
        sample_size=32, patch_size=2, in_channels=4, out_channels=4, num_layers=2,
        attention_head_dim=8, num_attention_heads=4, caption_projection_dim=32,
        joint_attention_dim=2 * size, pooled_projection_dim=2 * size, pos_embed_max_size=32,
    )  # fmt: skip
    StableDiffusion3Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=vae(),
        text_encoder=CLIPTextModelWithProjection(clip),
        tokenizer=tokenizer(77),
        text_encoder_2=CLIPTextModelWithProjection(clip),
        tokenizer_2=tokenizer(77),
        text_encoder_3=T5EncoderModel(t5),
        tokenizer_3=tokenizer(77),
        transformer=transformer,
    ).save_pretrained(folder)
    return folder


def qwen_image(folder: Path, *, heads: int = 4, width: int = 8, seed: int = 0) -> Path:
    """A Qwen-Image pipeline: 8 px a latent, 16 px a token, the text as long as the prompt."""
    torch.manual_seed(seed)
    size = 32
    text = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 64, "hidden_size": size, "intermediate_size": size,
            "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
            "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 0,
            "rope_scaling": {"mrope_section": [1, 1, 2], "rope_type": "default", "type": "default"},
        },
        vision_config={
            "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2,
            "out_hidden_size": size,
        },
        image_token_id=61, video_token_id=62, vision_start_token_id=60, vision_end_token_id=63,
    )  # fmt: skip
    transformer = QwenImageTransformer2DModel(
        patch_size=2, in_channels=16, out_channels=4, num_layers=2, attention_head_dim=width,
        num_attention_heads=heads, joint_attention_dim=size, guidance_embeds=False,
        axes_dims_rope=(2, 2, width - 4),
    )  # fmt: skip
    autoencoder = AutoencoderKLQwenImage(
        base_dim=8, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, attn_scales=[],
        temperal_downsample=[False, True, True], latents_mean=[0.0] * 4, latents_std=[1.0] * 4,
    )  # fmt: skip
    QwenImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=autoencoder,
        text_encoder=Qwen2_5_VLForConditionalGeneration(text),
        tokenizer=tokenizer(1100),
        transformer=transformer,
    ).save_pretrained(folder)
    return folder


def vae() -> AutoencoderKL:
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(4, 4, 4, 4),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=2,
        use_quant_conv=False,
        use_post_quant_conv=False,
        scaling_factor=1.0,
        shift_factor=0.0,
    )


def edit_json(path: Path, **values: object) -> None:
    """Change keys of a JSON file in place."""
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **values}))


__all__ = ["WORDS", "edit_json", "flux", "qwen_image", "stable_diffusion_3", "tokenizer", "vae"]
