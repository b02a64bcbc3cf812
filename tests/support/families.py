"""Tiny random pipelines in memory, of families that do something that FLUX does not."""

from typing import Any

import torch
from diffusers import (
    AutoencoderDC,
    CogView4Pipeline,
    CogView4Transformer2DModel,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    IFPipeline,
    Kandinsky3Pipeline,
    Kandinsky3UNet,
    SanaPipeline,
    SanaTransformer2DModel,
    UNet2DConditionModel,
    VQModel,
)
from diffusers.pipelines.deepfloyd_if import IFWatermarker
from transformers import (
    Gemma2Config,
    Gemma2Model,
    GlmConfig,
    GlmModel,
    T5Config,
    T5EncoderModel,
)

from support.tiny import tokenizer, vae

SIZE = 32  # numbers a text token

__all__ = ["cogview_4", "deepfloyd_if", "kandinsky_3", "lively", "sana"]


def deepfloyd_if(**parts: Any) -> IFPipeline:
    """Makes pixels without a decoder, and finishes the picture only for `pil` and `np`."""
    torch.manual_seed(0)
    denoiser = UNet2DConditionModel(
        down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        block_out_channels=(8, 16), in_channels=3, out_channels=6, encoder_hid_dim=SIZE,
        attention_head_dim=8, addition_embed_type="text", addition_embed_type_num_heads=2,
        cross_attention_norm="group_norm", resnet_time_scale_shift="scale_shift",
        act_fn="gelu", sample_size=32, norm_num_groups=4, layers_per_block=1,
        cross_attention_dim=SIZE,
    )  # fmt: skip
    scheduler = DDPMScheduler(
        beta_schedule="squaredcos_cap_v2", thresholding=True, variance_type="learned_range",
        dynamic_thresholding_ratio=0.95, sample_max_value=1.0,
    )  # fmt: skip
    components = {
        "unet": denoiser,
        "scheduler": scheduler,
        "watermarker": IFWatermarker(),
        "safety_checker": None,
        "feature_extractor": None,
    }
    pipe = IFPipeline(**{**t5(), **components, **parts}, requires_safety_checker=False)
    return quiet(pipe)


def kandinsky_3() -> Kandinsky3Pipeline:
    """Its texts are cut to the longest of the batch, and the rest of them counts as text."""
    torch.manual_seed(0)
    denoiser = Kandinsky3UNet(
        in_channels=4, time_embedding_dim=4, groups=2, attention_head_dim=4,
        layers_per_block=3, block_out_channels=(32, 64), cross_attention_dim=4,
        encoder_hid_dim=SIZE,
    )  # fmt: skip
    decoder = VQModel(
        block_out_channels=[32] * 4, down_block_types=["DownEncoderBlock2D"] * 4,
        up_block_types=["UpDecoderBlock2D"] * 4, in_channels=3, out_channels=3, latent_channels=4,
        layers_per_block=1, norm_num_groups=4, norm_type="spatial", num_vq_embeddings=12,
        vq_embed_dim=4,
    )  # fmt: skip
    scheduler = DDPMScheduler(beta_schedule="squaredcos_cap_v2", clip_sample=True)
    return quiet(Kandinsky3Pipeline(unet=denoiser, movq=decoder, scheduler=scheduler, **t5()))


def sana() -> SanaPipeline:
    """Its call sets its tokenizer to padding on the right; it is saved with the left."""
    torch.manual_seed(0)
    transformer = SanaTransformer2DModel(
        patch_size=1, in_channels=4, out_channels=4, num_layers=2, num_attention_heads=2,
        attention_head_dim=8, num_cross_attention_heads=2, cross_attention_head_dim=8,
        cross_attention_dim=16, caption_channels=SIZE, sample_size=32,
    )  # fmt: skip
    decoder = AutoencoderDC(
        in_channels=3, latent_channels=4, attention_head_dim=2,
        encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(8, 8), decoder_block_out_channels=(8, 8),
        encoder_qkv_multiscales=((), (5,)), decoder_qkv_multiscales=((), (5,)),
        encoder_layers_per_block=(1, 1), decoder_layers_per_block=(1, 1),
        downsample_block_type="conv", upsample_block_type="interpolate",
        decoder_norm_types="rms_norm", decoder_act_fns="silu", scaling_factor=0.41407,
    )  # fmt: skip
    text = Gemma2Config(
        vocab_size=64, hidden_size=SIZE, intermediate_size=SIZE, head_dim=8,
        num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        pad_token_id=0, eos_token_id=1, bos_token_id=2,
    )  # fmt: skip
    scheduler = DPMSolverMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
    )
    words = tokenizer(256)
    words.padding_side = "left"
    pipe = SanaPipeline(words, lively(Gemma2Model(text)), decoder, transformer, scheduler)
    with torch.no_grad():
        pipe.transformer.caption_norm.weight.fill_(1.0)
    return quiet(pipe)


def cogview_4() -> CogView4Pipeline:
    """Its texts are padded to the longest of the batch, and the padding counts as text."""
    torch.manual_seed(0)
    transformer = CogView4Transformer2DModel(
        patch_size=2, in_channels=4, num_layers=2, attention_head_dim=4, num_attention_heads=4,
        out_channels=4, text_embed_dim=SIZE, time_embed_dim=8, condition_dim=4,
    )  # fmt: skip
    text = GlmConfig(
        vocab_size=64, hidden_size=SIZE, intermediate_size=SIZE, head_dim=8,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, pad_token_id=0,
    )  # fmt: skip
    scheduler = FlowMatchEulerDiscreteScheduler(
        base_shift=0.25, max_shift=0.75, base_image_seq_len=256, use_dynamic_shifting=True,
        time_shift_type="linear",
    )  # fmt: skip
    encoder = lively(GlmModel(text))
    return quiet(CogView4Pipeline(tokenizer(256), encoder, vae(), transformer, scheduler))


def lively(encoder: Any) -> Any:
    """Random embeddings are so small that a wrong text would hardly show."""
    with torch.no_grad():
        encoder.get_input_embeddings().weight.mul_(20)
    return encoder


def t5() -> dict[str, Any]:
    config = T5Config(
        vocab_size=64, d_model=SIZE, d_kv=8, d_ff=SIZE, num_layers=1, num_heads=4,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    return {"tokenizer": tokenizer(128), "text_encoder": lively(T5EncoderModel(config))}


def quiet(pipe: Any) -> Any:
    """As it comes from a folder: without a progress bar, and without dropout."""
    for component in pipe.components.values():
        if isinstance(component, torch.nn.Module):
            component.eval()
    pipe.set_progress_bar_config(disable=True)
    return pipe
