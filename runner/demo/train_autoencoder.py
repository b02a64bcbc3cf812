"""First stage of the training: an encoder and a decoder for the fixed latents of `PatchBasis`.

The latents keep 12 numbers of the 192 in a patch, so a linear decoder would lose the fine detail;
the convolutional one has seen what pictures look like and fills it in. The encoder only has to
imitate the basis: text-to-image never uses it, image-to-image does.
"""

import random

import torch
import torch.distributed as dist
from diffusers import AutoencoderKL
from torch import Tensor
from torch.nn import functional as F

from runner.demo.captions import random_scene
from runner.demo.draw import Size, draw
from runner.demo.network import PatchBasis
from runner.demo.optimiser import average_gradients, decayed

NATIVE: Size = (128, 128)
BATCH = 8  # pictures a process
CROP = 64  # pixels; the first 60 % of the training sees crops, which are cheap and more varied
CROPS_UNTIL = 0.6
LEARNING_RATE = 3e-3
LATENT_NOISE = 0.25  # at most; the transformer's latents will not be perfect either
NO_NOISE = -20.0  # log variance of what the encoder says: it means its mean


def picture(rng: random.Random, size: Size = NATIVE, held: bool = False) -> Tensor:
    """A random picture (3, H, W) in [-1, 1]."""
    drawn = draw(random_scene(rng, held), size, rng.random() < 0.5)
    return torch.from_numpy(drawn).permute(2, 0, 1) * 2 - 1


def train_autoencoder(
    autoencoder: AutoencoderKL, basis: PatchBasis, pictures: int, seed: int
) -> None:
    """Trains `autoencoder` in place on that many pictures."""
    world, rank = dist.get_world_size(), dist.get_rank()
    rng = random.Random(f"{seed} autoencoder {rank}")
    torch.manual_seed(seed + rank)
    with torch.no_grad():  # the second half of the encoder's output is its log variance
        autoencoder.encoder.conv_out.weight[basis.basis.shape[0] :] = 0
        autoencoder.encoder.conv_out.bias[basis.basis.shape[0] :] = NO_NOISE
    parameters = list(autoencoder.parameters())
    optimiser = torch.optim.AdamW(parameters, LEARNING_RATE, (0.9, 0.98), weight_decay=0.0)
    steps = pictures // (BATCH * world)
    for step in range(steps):
        warmth = min(1.0, (step + 1) / 100)
        for group in optimiser.param_groups:
            group["lr"] = LEARNING_RATE * warmth * decayed(step / steps, 0.3)
        batch = torch.stack([picture(rng) for _ in range(BATCH)])
        if step < CROPS_UNTIL * steps:
            batch = _crops(batch, rng)
        loss = _loss(autoencoder, basis, batch)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        average_gradients(parameters)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        if step % 100 == 0 and rank == 0:
            print(
                f"autoencoder: {step * BATCH * world} pictures, loss {loss.item():.4f}", flush=True
            )


def _crops(batch: Tensor, rng: random.Random) -> Tensor:
    height, width = batch.shape[2:]
    corners = [
        (8 * rng.randint(0, (height - CROP) // 8), 8 * rng.randint(0, (width - CROP) // 8))
        for _ in batch
    ]
    return torch.stack(
        [p[:, y : y + CROP, x : x + CROP] for p, (y, x) in zip(batch, corners, strict=True)]
    )


def _loss(autoencoder: AutoencoderKL, basis: PatchBasis, batch: Tensor) -> Tensor:
    latents = basis(batch)
    noise = torch.randn_like(latents) * torch.rand(len(batch), 1, 1, 1) * LATENT_NOISE
    decoded = autoencoder.decoder(latents + noise)
    half = len(batch) // 2  # the encoder's task is easy: half of the pictures will do
    encoded = autoencoder.encoder(batch[:half])[:, : latents.shape[1]]
    sharp = sum(F.l1_loss(decoded.diff(dim=d), batch.diff(dim=d)) for d in (2, 3))
    return (
        F.l1_loss(decoded, batch)
        + F.mse_loss(decoded, batch)
        + 0.5 * sharp
        + F.mse_loss(encoded, latents[:half])
    )


@torch.no_grad()
def psnr(autoencoder: AutoencoderKL, basis: PatchBasis, count: int = 64) -> dict[str, float]:
    """Decibels on unseen pictures: of the decoder alone, and after the trained encoder."""
    rng = random.Random("psnr")
    pictures = torch.stack([picture(rng, held=True) for _ in range(count)])
    latents = {
        "decoder": basis(pictures),
        "encoder and decoder": autoencoder.encode(pictures).latent_dist.mode(),
    }
    return {
        name: (
            10 * (4 / F.mse_loss(autoencoder.decode(z).sample.clamp(-1, 1), pictures)).log10()
        ).item()
        for name, z in latents.items()
    }
