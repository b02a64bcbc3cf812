"""DeepFloyd IF, whose first stage makes pixels."""

from typing import Any

from diffusers import DDPMScheduler
from diffusers.pipelines.deepfloyd_if import IFWatermarker

from support.tiny.model import Model, square
from support.tiny.parts import SIZE, t5_text, t5_tokenizer, unet

__all__ = ["MODELS"]


def deepfloyd() -> dict[str, Any]:
    return {
        "text_encoder": t5_text(),
        "tokenizer": t5_tokenizer(),
        "unet": unet(
            down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
            mid_block_type="UNetMidBlock2DSimpleCrossAttn",
            up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
            block_out_channels=(8, 16), in_channels=3, out_channels=6, encoder_hid_dim=SIZE,
            attention_head_dim=8, addition_embed_type="text", addition_embed_type_num_heads=2,
            cross_attention_norm="group_norm", resnet_time_scale_shift="scale_shift",
            act_fn="gelu", sample_size=32, norm_num_groups=4,
        ),
        "scheduler": DDPMScheduler(
            beta_schedule="squaredcos_cap_v2", thresholding=True, variance_type="learned_range",
            dynamic_thresholding_ratio=0.95, sample_max_value=1.0,
        ),
        "watermarker": IFWatermarker(),
        "safety_checker": None,
        "feature_extractor": None,
        "requires_safety_checker": False,
    }  # fmt: skip


MODELS = {
    "IFPipeline": Model(deepfloyd, square(64, clean_caption=False), {"height": 48, "width": 64})
}
