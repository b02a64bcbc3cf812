"""Trains a LoRA for the demo model: a style that the model itself does not draw.

    python -m runner.demo.train_lora STYLE [--pictures N] [--output FILE]

The pictures and captions are those of the model's own training; a style changes the pictures
alone, so that the LoRA learns the style and no new word. Low-rank adaptation (Hu et al. 2021) adds
the product of two thin matrices to a layer: only those are trained, the model stays as it is.
"""

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path

import torch
from diffusers import FluxPipeline
from diffusers.utils.state_dict_utils import convert_state_dict_to_diffusers
from peft import LoraConfig, get_peft_model_state_dict
from torch import Tensor, nn

from runner.demo import LORA_DIR, MODEL_DIR
from runner.demo.captions import caption, random_scene
from runner.demo.draw import Size, draw
from runner.demo.network import TEXT_LENGTH, pack, token_places
from runner.demo.optimiser import decayed
from runner.demo.train_denoiser import NO_TEXT, SIZES, random_sigma

RANK = 8
BATCH = 8  # pictures: many small steps learn a style sooner than few large ones
LAYERS = [
    *("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"),
    *("ff.net.0.proj", "ff.net.2", "proj_mlp", "proj_out", "x_embedder"),
]
LEARNING_RATE = 5e-3
DECAY_FROM = 0.5  # of the training: where the learning rate begins to fall
SEPIA = torch.tensor([1.0, 0.84, 0.62])[:, None, None]
GRAY = torch.tensor([0.299, 0.587, 0.114])[:, None, None]  # how bright the colours look (BT.601)


def sepia(pictures: Tensor) -> Tensor:
    """An old photograph, brown and white. (B, 3, H, W) from 0 to 1, as is what it returns."""
    return (pictures * GRAY).sum(1, keepdim=True) * SEPIA


STYLES: dict[str, Callable[[Tensor], Tensor]] = {"sepia": sepia}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m runner.demo.train_lora")
    parser.add_argument("style", choices=[*STYLES])
    parser.add_argument("--pictures", type=int, default=3_200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(arguments.seed)
    pipe = FluxPipeline.from_pretrained(MODEL_DIR)
    for part in (pipe.vae, pipe.text_encoder, pipe.text_encoder_2, pipe.transformer):
        part.requires_grad_(False)
    config = LoraConfig(r=RANK, lora_alpha=RANK, init_lora_weights=True, target_modules=LAYERS)
    pipe.transformer.add_adapter(config)
    train(pipe, STYLES[arguments.style], arguments.pictures // BATCH, arguments.seed)
    output: Path = arguments.output or LORA_DIR / f"{arguments.style}.safetensors"
    layers = convert_state_dict_to_diffusers(get_peft_model_state_dict(pipe.transformer))
    FluxPipeline.save_lora_weights(
        output.parent, transformer_lora_layers=layers, weight_name=output.name
    )
    output.chmod(0o644)


def train(pipe: FluxPipeline, style: Callable[[Tensor], Tensor], steps: int, seed: int) -> None:
    """Trains the matrices that are not frozen, on so many batches."""
    trained = [p for p in pipe.transformer.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, LEARNING_RATE, (0.9, 0.98), weight_decay=0.0)
    rng, started, losses = random.Random(f"{seed} LoRA"), time.monotonic(), list[float]()
    for step in range(steps):
        for group in optimiser.param_groups:
            warm = min(1, (step + 1) / 20)
            group["lr"] = LEARNING_RATE * warm * decayed(step / steps, DECAY_FROM)
        size = rng.choices([*SIZES], [*SIZES.values()])[0]
        loss = style_loss(pipe, style, rng, size)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        losses.append(loss.item())
        if (step + 1) % 50 == 0:
            speed = BATCH * (step + 1) / (time.monotonic() - started)
            mean = sum(losses) / len(losses)
            print(
                f"{BATCH * (step + 1)} pictures, loss {mean:.4f}, {speed:.1f} pictures/s",
                flush=True,
            )
            losses.clear()


def style_loss(
    pipe: FluxPipeline, style: Callable[[Tensor], Tensor], rng: random.Random, size: Size
) -> Tensor:
    """Mean square error of the direction, as in the model's own training, on one batch."""
    scenes = [random_scene(rng, held=False) for _ in range(BATCH)]
    drawn = torch.stack([torch.from_numpy(draw(s, size, rng.random() < 0.5)) for s in scenes])
    captions = ["" if rng.random() < NO_TEXT else caption(scene, rng) for scene in scenes]
    with torch.no_grad():
        pictures = style(drawn.permute(0, 3, 1, 2)) * 2 - 1
        latents = pipe.vae.encode(pictures).latent_dist.mode()
        words = pipe.tokenizer(
            captions,
            padding="max_length",
            truncation=True,
            max_length=TEXT_LENGTH,
            return_tensors="pt",
        ).input_ids
        texts = pipe.text_encoder_2(words)[0]
        pooled = pipe.text_encoder(words).pooler_output
    noise, sigma = torch.randn_like(latents), random_sigma(BATCH)
    predicted = pipe.transformer(
        hidden_states=pack(torch.lerp(latents, noise, sigma[:, None, None, None])),
        timestep=sigma,
        encoder_hidden_states=texts,
        pooled_projections=pooled,
        img_ids=token_places(latents.shape[2] // 2, latents.shape[3] // 2),
        txt_ids=torch.zeros(TEXT_LENGTH, 3),
        return_dict=False,
    )[0]
    return nn.functional.mse_loss(predicted, pack(noise - latents))


if __name__ == "__main__":
    main()
