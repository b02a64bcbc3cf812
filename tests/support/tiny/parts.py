"""Parts that several families share: tokenizers, text encoders, decoders."""

import json
import re
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, AutoencoderKLQwenImage, UNet2DConditionModel
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    Gemma2Config,
    Gemma2Model,
    GemmaTokenizer,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen3Config,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
)

SIZE = 32  # of all texts' hidden states

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


# --- tokenizers -------------------------------------------------------------------------------


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


BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
CLIP_VOCABULARY = ["<|startoftext|>", "<|endoftext|>", *BYTES, *(f"{byte}</w>" for byte in BYTES)]
QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
QWEN_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def clip_tokenizer(length: int = 77) -> CLIPTokenizer:
    """One byte, one token."""
    vocabulary = {token: i for i, token in enumerate(CLIP_VOCABULARY)}
    return CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=length)


def qwen_tokenizer(length: int = 1024, padding_side: str = "right") -> Qwen2Tokenizer:
    """One byte, one token, with a chat template."""
    vocabulary = {token: i for i, token in enumerate((*QWEN_SPECIAL, *BYTES))}
    return Qwen2Tokenizer(
        vocab=vocabulary,
        merges=[],
        model_max_length=length,
        padding_side=padding_side,
        chat_template=QWEN_TEMPLATE,
        extra_special_tokens=list(QWEN_SPECIAL[1:3]),
    )


def t5_tokenizer(length: int = 512) -> T5Tokenizer:
    """Unigrams: whole words where they are known, else letters."""
    return T5Tokenizer(vocab=unigrams("<pad>", "</s>", "<unk>"), model_max_length=length)


def gemma_tokenizer(length: int = 256, padding_side: str = "left") -> GemmaTokenizer:
    """One letter, one token, after one for the start; pads on the left, as the tokenizers of Gemma
    are saved."""
    letters = [*map(chr, range(33, 127)), "▁", "\n"]
    tokens = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *letters)
    return GemmaTokenizer(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=[],
        model_max_length=length,
        padding_side=padding_side,
        add_bos_token=True,
    )


def unigrams(*special: str) -> list[tuple[str, float]]:
    letters = [(letter, -8.0) for letter in map(chr, range(33, 127))]
    words = [(f"▁{word}", -4.0) for word in WORDS]
    return [*((token, 0.0) for token in special), ("▁", -6.0), *letters, *words]


# --- text encoders ----------------------------------------------------------------------------


def clip_config(**values: Any) -> CLIPTextConfig:
    return CLIPTextConfig(
        **{
            "vocab_size": len(CLIP_VOCABULARY), "hidden_size": SIZE, "intermediate_size": SIZE,
            "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 77,
            "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "projection_dim": SIZE,
            **values,
        }
    )  # fmt: skip


def clip_text(**values: Any) -> CLIPTextModel:
    return lively(CLIPTextModel(clip_config(**values)))


def clip_text_projection(**values: Any) -> CLIPTextModelWithProjection:
    return lively(CLIPTextModelWithProjection(clip_config(**values)))


def t5_config(**values: Any) -> T5Config:
    return T5Config(
        **{
            "vocab_size": 256, "d_model": SIZE, "d_kv": 8, "d_ff": SIZE, "num_layers": 1,
            "num_heads": 4, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0,
            **values,
        }
    )  # fmt: skip


def t5_text(**values: Any) -> T5EncoderModel:
    return T5EncoderModel(t5_config(**values))


def gemma_text(**values: Any) -> Gemma2Model:
    config = Gemma2Config(
        **{
            "vocab_size": 128, "hidden_size": SIZE, "intermediate_size": SIZE, "head_dim": 8,
            "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
            "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, **values,
        }
    )  # fmt: skip
    return lively(Gemma2Model(config))


def qwen3_config(**values: Any) -> Qwen3Config:
    return Qwen3Config(
        **{
            "vocab_size": 512, "hidden_size": SIZE, "intermediate_size": SIZE, "head_dim": 8,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 2048, "pad_token_id": 0, "eos_token_id": 0, **values,
        }
    )  # fmt: skip


def qwen_vl_text(**values: Any) -> Qwen2_5_VLForConditionalGeneration:
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 512, "hidden_size": SIZE, "intermediate_size": SIZE,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "pad_token_id": 0, "eos_token_id": 0, "bos_token_id": 0,
            "rope_scaling": {"mrope_section": [1, 1, 2], "rope_type": "default", "type": "default"},
            **values,
        },
        vision_config={
            "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2,
            "out_hidden_size": SIZE,
        },
        image_token_id=505, video_token_id=506, vision_start_token_id=507, vision_end_token_id=508,
    )  # fmt: skip
    return lively(Qwen2_5_VLForConditionalGeneration(config))


# --- decoders and denoisers -------------------------------------------------------------------


def vae(**values: Any) -> AutoencoderKL:
    """8 px a latent, 4 channels, no bottleneck; `values` change that."""
    return AutoencoderKL(
        **{
            "down_block_types": ("DownEncoderBlock2D",) * 4,
            "up_block_types": ("UpDecoderBlock2D",) * 4,
            "block_out_channels": (4, 4, 4, 4),
            "layers_per_block": 1,
            "latent_channels": 4,
            "norm_num_groups": 2,
            "use_quant_conv": False,
            "use_post_quant_conv": False,
            "scaling_factor": 1.0,
            "shift_factor": 0.0,
            **values,
        }
    )


def small_vae(**values: Any) -> AutoencoderKL:
    """2 px a latent, with the bottleneck of the older families."""
    return vae(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(4, 8),
        use_quant_conv=True,
        use_post_quant_conv=True,
        scaling_factor=0.5,
        shift_factor=None,
        **values,
    )


def qwen_vae(**values: Any) -> AutoencoderKLQwenImage:
    """8 px a latent."""
    return AutoencoderKLQwenImage(
        base_dim=8, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, attn_scales=[],
        temperal_downsample=[False, True, True], latents_mean=[0.0] * 4, latents_std=[1.0] * 4,
        **values,
    )  # fmt: skip


def unet(**values: Any) -> UNet2DConditionModel:
    """Its cross-attention counts for more than at random."""
    model = UNet2DConditionModel(
        **{
            "block_out_channels": (4, 8), "layers_per_block": 1, "sample_size": 16,
            "in_channels": 4, "out_channels": 4, "norm_num_groups": 2,
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
            "cross_attention_dim": SIZE, "attention_head_dim": 2, **values,
        }
    )  # fmt: skip
    return lively(model, r"attn2\.to_(v|out\.0)\.weight", 3.0)


# --- weights ----------------------------------------------------------------------------------


def lively(model: Any, pattern: str = r"(token_embedding|embed_tokens|shared)", by: float = 20.0):
    """The model with the weights scaled whose names match: random ones are so small that a text
    would hardly change the image, and a wrong text would not show."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if re.search(pattern, name):
                weight.mul_(by)
    return model


def filled(model: Any, pattern: str, deviation: float = 0.2) -> Any:
    """The model with weights at random where it begins with zeros (or with nothing at all)."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if re.search(pattern, name):
                weight.normal_(0.0, deviation)
    return model


def edit_json(path: Path, **values: object) -> None:
    """Change keys of a JSON file in place."""
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **values}))
