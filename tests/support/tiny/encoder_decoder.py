"""Families whose text encoder is T5, BERT or the like: AuraFlow, CogView 3, HunyuanDiT."""

from typing import Any

from diffusers import (
    AuraFlowTransformer2DModel,
    CogVideoXDDIMScheduler,
    CogView3PlusTransformer2DModel,
    DDPMScheduler,
    FlowMatchEulerDiscreteScheduler,
    HunyuanDiT2DModel,
)
from transformers import BertConfig, BertModel, BertTokenizer, UMT5Config, UMT5EncoderModel

from support.tiny.model import Model, square
from support.tiny.parts import SIZE, WORDS, filled, lively, t5_text, t5_tokenizer, vae

__all__ = ["MODELS"]


def aura_flow() -> dict[str, Any]:
    text = UMT5Config(
        vocab_size=256, d_model=SIZE, d_kv=8, d_ff=SIZE, num_layers=1, num_heads=4, pad_token_id=0,
        eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    transformer = AuraFlowTransformer2DModel(
        sample_size=32, patch_size=2, in_channels=4, num_mmdit_layers=1, num_single_dit_layers=1,
        attention_head_dim=8, num_attention_heads=4, caption_projection_dim=32,
        joint_attention_dim=SIZE, out_channels=4, pos_embed_max_size=256,
    )  # fmt: skip
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(),
        "vae": vae(),
        "text_encoder": UMT5EncoderModel(text),
        "tokenizer": t5_tokenizer(),
        "transformer": lively(transformer, r"time_step_proj|context_embedder|add_v_proj", 5.0),
    }


def cogview_3() -> dict[str, Any]:
    return {
        "scheduler": CogVideoXDDIMScheduler(),
        "vae": vae(),
        "text_encoder": t5_text(),
        "tokenizer": t5_tokenizer(),
        "transformer": CogView3PlusTransformer2DModel(
            patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8,
            num_attention_heads=4, out_channels=4, text_embed_dim=SIZE, time_embed_dim=8,
            condition_dim=4, pos_embed_max_size=16, sample_size=16,
        ),
    }  # fmt: skip


def hunyuan_dit() -> dict[str, Any]:
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokens = (*special, *letters, *(f"##{letter}" for letter in letters), *WORDS[1:])
    text = BertConfig(
        vocab_size=256, hidden_size=SIZE, intermediate_size=SIZE, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=128,
    )  # fmt: skip
    transformer = HunyuanDiT2DModel(
        sample_size=16, num_layers=2, patch_size=2, attention_head_dim=8, num_attention_heads=3,
        in_channels=4, cross_attention_dim=SIZE, cross_attention_dim_t5=SIZE,
        pooled_projection_dim=16, hidden_size=24, activation_fn="gelu-approximate",
        text_len=77, text_len_t5=256,
    )  # fmt: skip
    return {
        "scheduler": DDPMScheduler(),
        "vae": vae(),
        "text_encoder": lively(BertModel(text), "word_embeddings"),
        "tokenizer": BertTokenizer(
            vocab={token: i for i, token in enumerate(tokens)}, model_max_length=77
        ),
        "text_encoder_2": t5_text(),
        "tokenizer_2": t5_tokenizer(256),
        "transformer": filled(transformer, "proj_out|text_embedding_padding"),
        "safety_checker": None,
        "feature_extractor": None,
        "requires_safety_checker": False,
    }


CALL, OWN = square(32), {"height": 48, "width": 32}
UNBINNED = {**CALL, "use_resolution_binning": False}
MODELS = {
    "AuraFlowPipeline": Model(aura_flow, {**CALL, "max_sequence_length": 64}, OWN),
    "CogView3PlusPipeline": Model(cogview_3, {**CALL, "max_sequence_length": 64}, OWN),
    "HunyuanDiTPipeline": Model(hunyuan_dit, UNBINNED, OWN),
    "HunyuanDiTPAGPipeline": Model(hunyuan_dit, {**UNBINNED, "pag_scale": 2.0}, OWN),
}
