"""The demo model's parts, stock diffusers and transformers classes in tiny configurations.

    words -> tokenizer -> T5 (one vector a word) and CLIP (one vector a prompt)
    noise + words -> FluxTransformer2DModel -> latents -> AutoencoderKL decoder -> picture

The transformer sees one token per 2 × 2 latent pixels, so per 16 × 16 picture pixels: 64 tokens at
128 × 128.
"""

from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
)
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
)

from runner.demo.captions import UNKNOWN, WORDS

WIDTH = 128  # of a token, in the transformer and in both text encoders
HEADS = 4  # divisible by 2 and 4, so that attention heads can be split over as many ranks
LATENTS = 12  # channels
TEXT_LENGTH = 32  # tokens
SPECIAL = ("[PAD]", UNKNOWN, "[SPARE]", "[END]")  # CLIPTextModel treats an end id of 2 as legacy
PAD, END = SPECIAL.index("[PAD]"), SPECIAL.index("[END]")


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word, without case or punctuation, ended by [END]."""
    vocabulary = {word: i for i, word in enumerate((*SPECIAL, *sorted(WORDS)))}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("removed")]
    )
    words.post_processor = processors.TemplateProcessing(
        single="$A [END]", special_tokens=[("[END]", END)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token=UNKNOWN, eos_token="[END]",
        model_max_length=TEXT_LENGTH, padding_side="right",
    )  # fmt: skip


def build_text_encoders(vocabulary: int) -> tuple[CLIPTextModel, T5EncoderModel]:
    """Both learn together with the transformer; nothing here was trained before."""
    clip = CLIPTextConfig(
        vocab_size=vocabulary, hidden_size=WIDTH, intermediate_size=2 * WIDTH,
        projection_dim=WIDTH, num_hidden_layers=1, num_attention_heads=HEADS,
        max_position_embeddings=TEXT_LENGTH, hidden_act="gelu", pad_token_id=PAD,
        bos_token_id=None, eos_token_id=END,
    )  # fmt: skip
    t5 = T5Config(
        vocab_size=vocabulary, d_model=WIDTH, d_kv=WIDTH // HEADS, d_ff=2 * WIDTH, num_layers=2,
        num_heads=HEADS, dropout_rate=0.0, feed_forward_proj="gelu", pad_token_id=PAD,
        eos_token_id=END, relative_attention_num_buckets=16, relative_attention_max_distance=32,
    )  # fmt: skip
    return CLIPTextModel(clip), T5EncoderModel(t5)


def build_transformer() -> FluxTransformer2DModel:
    """A FLUX transformer that starts as the identity: at first it predicts its own input.

    At σ = 1 the input is the noise, and noise - picture is what it shall predict: a good start.
    """
    channels = 4 * LATENTS
    flux = FluxTransformer2DModel(
        patch_size=1, in_channels=channels, num_layers=2, num_single_layers=4,
        attention_head_dim=WIDTH // HEADS, num_attention_heads=HEADS, joint_attention_dim=WIDTH,
        pooled_projection_dim=WIDTH, guidance_embeds=False, axes_dims_rope=(8, 12, 12),
    )  # fmt: skip
    nn.init.orthogonal_(flux.x_embedder.weight)
    nn.init.zeros_(flux.x_embedder.bias)
    with torch.no_grad():  # the last norm scales tokens to length sqrt(WIDTH); undo that
        flux.proj_out.weight.copy_(flux.x_embedder.weight.T * (channels / WIDTH) ** 0.5)
    nn.init.zeros_(flux.proj_out.bias)
    for name, module in flux.named_modules():
        # Modulation (adaLN-zero, Peebles and Xie 2022): every block starts as the identity.
        if name.endswith(
            ("norm1.linear", "norm1_context.linear", "norm.linear", "norm_out.linear")
        ):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)
    return flux


def build_autoencoder() -> AutoencoderKL:
    """8 × 8 pixels become one latent pixel. Scale 1, shift 0: the latents have size 1 already."""
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(8, 16, 32, 64), layers_per_block=1, latent_channels=LATENTS,
        norm_num_groups=1, sample_size=128, scaling_factor=1.0, shift_factor=0.0,
        use_quant_conv=False, use_post_quant_conv=False, mid_block_add_attention=False,
    )  # fmt: skip


class PatchBasis(nn.Module):
    """The latents, without any training: principal components of 8 × 8 patches.

    Because the latents are fixed from the start, encoder, decoder and transformer can be trained in
    any order. Each component is divided by its deviation to the power of 0.6, between plain PCA
    (fine detail drowns in the noise) and whitening (all components as loud as the first).
    """

    mean: Tensor  # (3, 8, 8)
    basis: Tensor  # (LATENTS, 3, 8, 8)

    def __init__(self, pictures: list[Tensor]) -> None:
        super().__init__()
        patches = torch.cat([  # (N, 192)
            nn.functional.unfold(picture[None], 8, stride=8)[0].T for picture in pictures
        ]).double()  # fmt: skip
        mean = patches.mean(0)
        values, vectors = torch.linalg.eigh(torch.cov(patches.T))
        values, vectors = values.flip(0)[:LATENTS], vectors.flip(1)[:, :LATENTS]
        basis = vectors * values.sqrt() ** -0.6
        size = ((patches - mean) @ basis).square().mean().sqrt()
        self.register_buffer("mean", mean.float().reshape(3, 8, 8))
        self.register_buffer("basis", (basis / size).T.float().reshape(LATENTS, 3, 8, 8))

    @torch.no_grad()
    def forward(self, pictures: Tensor) -> Tensor:
        """(B, 3, H, W) in [-1, 1] -> (B, LATENTS, H / 8, W / 8)."""
        offset = (self.basis * self.mean).sum((1, 2, 3))
        return nn.functional.conv2d(pictures, self.basis, stride=8) - offset[:, None, None]


def build_pipeline(parts: dict[str, Any]) -> FluxPipeline:
    """The stock pipeline; no shift, because a shift is for pictures larger than these."""
    tokenizer = build_tokenizer()
    return FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0, use_dynamic_shifting=False),
        tokenizer=tokenizer, tokenizer_2=tokenizer, **parts,
    )  # fmt: skip


def pack(latents: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, H / 2 × W / 2, 4 C): 2 × 2 latent pixels a token, as FLUX orders them."""
    batch, channels, height, width = latents.shape
    latents = latents.view(batch, channels, height // 2, 2, width // 2, 2)
    return latents.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * 4)


def token_places(height: int, width: int) -> Tensor:
    """The (0, row, column) of each image token, (height × width, 3)."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([torch.zeros_like(rows), rows, columns], -1).reshape(-1, 3).float()
