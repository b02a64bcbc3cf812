"""Second stage of the training: the transformer and both text encoders, together, from nothing.

Rectified flow (Liu et al. 2022, Lipman et al. 2022): between a picture x and noise n lies the line
x + σ (n - x); the model sees a point of it, σ and the prompt, and learns the line's direction
n - x. Sampling starts at n (σ = 1) and follows the predicted direction to σ = 0 in a few steps.
"""

import copy
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from diffusers import FluxTransformer2DModel
from torch import Tensor, nn
from transformers import CLIPTextModel, PreTrainedTokenizerFast, T5EncoderModel

from runner.demo.captions import caption, random_scene, with_unknown_words
from runner.demo.draw import Size, draw
from runner.demo.network import (
    TEXT_LENGTH,
    PatchBasis,
    build_text_encoders,
    build_transformer,
    pack,
    token_places,
)
from runner.demo.optimiser import Muon, average_gradients, decayed

BATCH = 24  # pictures a process
SIZES: dict[Size, float] = {(128, 128): 0.7, (96, 160): 0.15, (160, 96): 0.15}  # share of batches
LEARNING_RATE = 2e-3
DECAY_FROM = 0.55  # of the training: where the learning rate begins to fall
NO_TEXT = 0.1  # share of empty prompts, for classifier-free guidance (Ho and Salimans 2022)
# Mostly the text is as short as the longest caption allows, which is faster. Padding is seen, not
# masked, so the full length, which the pipeline uses, must be practised too.
FULL_TEXT = 0.3  # share of batches
UNKNOWN_WORDS = 0.03  # share of places between words where an unknown word is put
PURE_NOISE = 0.2  # share of samples with σ exactly 1, where sampling starts
AVERAGE = 0.995  # the weights that are kept are a running mean of the last few hundred steps'


class Denoiser(nn.Module):
    """What is trained: words and noisy latents in, direction out."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.clip: CLIPTextModel
        self.t5: T5EncoderModel
        self.clip, self.t5 = build_text_encoders(vocabulary)
        self.flux: FluxTransformer2DModel = build_transformer()

    def forward(self, latents: Tensor, sigma: Tensor, words: Tensor) -> Tensor:
        """Latents (B, C, H, W), σ (B,), word ids (B, L) -> directions as packed tokens."""
        height, width = latents.shape[2] // 2, latents.shape[3] // 2
        predicted: Tensor = self.flux(
            hidden_states=pack(latents),
            timestep=sigma,
            encoder_hidden_states=self.t5(words)[0],
            pooled_projections=self.clip(words).pooler_output,
            img_ids=token_places(height, width),
            txt_ids=torch.zeros(words.shape[1], 3),
            return_dict=False,
        )[0]
        return predicted

    def matrices(self) -> Iterator[nn.Parameter]:
        """Muon's share: the matrices between hidden layers."""
        embeddings = {id(m.weight) for m in self.modules() if isinstance(m, nn.Embedding)}
        ends = {id(self.flux.x_embedder.weight), id(self.flux.proj_out.weight)}
        for parameter in self.parameters():
            if parameter.ndim == 2 and id(parameter) not in embeddings | ends:
                yield parameter


@dataclass
class Batch:
    """Latents (B, C, H, W) and word ids (B, L) of one process's pictures in one step."""

    latents: Tensor
    words: Tensor


def make_batch(
    rng: random.Random,
    size: Size,
    full_text: bool,
    basis: PatchBasis,
    tokenizer: PreTrainedTokenizerFast,
) -> Batch:
    """Draws pictures that were never held out, and captions them."""
    scenes = [random_scene(rng, held=False) for _ in range(BATCH)]
    drawn = torch.stack([torch.from_numpy(draw(s, size, rng.random() < 0.5)) for s in scenes])
    captions = [with_unknown_words(caption(s, rng), rng, UNKNOWN_WORDS) for s in scenes]
    captions = ["" if rng.random() < NO_TEXT else text for text in captions]
    words = tokenizer(
        captions,
        padding="max_length" if full_text else True,
        truncation=True,
        max_length=TEXT_LENGTH,
        pad_to_multiple_of=4,
        return_tensors="pt",
    ).input_ids
    return Batch(basis(drawn.permute(0, 3, 1, 2) * 2 - 1), words)


def random_sigma(count: int) -> Tensor:
    """Noise levels: often exactly 1, else spread around 0.6 (logit-normal, as in SD 3)."""
    sigma = torch.sigmoid(0.4 + 1.1 * torch.randn(count))
    return torch.where(torch.rand(count) < PURE_NOISE, torch.ones(count), sigma)


def flow_loss(denoiser: nn.Module, batch: Batch) -> Tensor:
    """Mean square error of the direction."""
    noise = torch.randn_like(batch.latents)
    sigma = random_sigma(len(noise))
    noisy = torch.lerp(batch.latents, noise, sigma[:, None, None, None])
    return nn.functional.mse_loss(denoiser(noisy, sigma, batch.words), pack(noise - batch.latents))


def train_denoiser(
    basis: PatchBasis,
    tokenizer: PreTrainedTokenizerFast,
    pictures: int,
    seed: int,
    checkpoint: Path,
    every: int,
    report: Callable[[int, Denoiser], None],
) -> Denoiser:
    """Trains on that many pictures and returns the averaged weights.

    `report` gets them every `every` pictures and at the end, on all processes. `checkpoint` is
    written as often, and continued from if it exists.
    """
    world, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(seed)
    denoiser = Denoiser(len(tokenizer))
    average = copy.deepcopy(denoiser).requires_grad_(False)
    matrices = list(denoiser.matrices())
    others = [p for p in denoiser.parameters() if all(p is not m for m in matrices)]
    optimisers = [
        Muon(matrices, LEARNING_RATE),
        torch.optim.AdamW(others, LEARNING_RATE, (0.9, 0.98), weight_decay=0.0),
    ]
    first = _load(checkpoint, denoiser, average, optimisers) if checkpoint.exists() else 0
    steps, per_step = pictures // (BATCH * world), BATCH * world
    started, losses = time.monotonic(), list[float]()
    for step in range(first, steps):
        # Randomness is a function of seed, step and rank: continuing needs no generator state.
        # What decides the cost of a step is the same on all ranks, so that none waits.
        shared = random.Random(f"{seed} size {step}")
        size = shared.choices([*SIZES], [*SIZES.values()])[0]
        full_text = shared.random() < FULL_TEXT
        rng = random.Random(f"{seed} pictures {step} {rank}")
        torch.manual_seed(rng.getrandbits(60))
        for optimiser in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = (
                    LEARNING_RATE * min(1, (step + 1) / 100) * decayed(step / steps, DECAY_FROM)
                )
        loss = flow_loss(denoiser, make_batch(rng, size, full_text, basis, tokenizer))
        denoiser.zero_grad()
        torch.autograd.backward(loss)
        average_gradients(denoiser.parameters())
        nn.utils.clip_grad_norm_(denoiser.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
        _follow(average, denoiser, min(AVERAGE, (step + 1) / (step + 10)))
        losses.append(loss.item())
        if (step + 1) % 50 == 0 and rank == 0:
            speed = (step + 1 - first) * per_step / (time.monotonic() - started)
            print(
                f"denoiser: {(step + 1) * per_step} pictures, "
                f"loss {sum(losses) / len(losses):.4f}, {speed:.1f} pictures/s",
                flush=True,
            )
            losses.clear()
        if (step + 1) % (every // per_step) == 0 or step + 1 == steps:
            if rank == 0:
                _save(checkpoint, step + 1, denoiser, average, optimisers)
            report((step + 1) * per_step, average)
    return average


@torch.no_grad()
def _follow(average: nn.Module, model: nn.Module, inertia: float) -> None:
    for kept, new in zip(average.parameters(), model.parameters(), strict=True):
        kept.lerp_(new, 1 - inertia)


def _save(
    path: Path,
    step: int,
    denoiser: nn.Module,
    average: nn.Module,
    optimisers: list[torch.optim.Optimizer],
) -> None:
    state = {
        "step": step,
        "denoiser": denoiser.state_dict(),
        "average": average.state_dict(),
        "optimisers": [optimiser.state_dict() for optimiser in optimisers],
    }
    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def _load(
    path: Path, denoiser: nn.Module, average: nn.Module, optimisers: list[torch.optim.Optimizer]
) -> int:
    state = torch.load(path)
    denoiser.load_state_dict(state["denoiser"])
    average.load_state_dict(state["average"])
    for optimiser, saved in zip(optimisers, state["optimisers"], strict=True):
        optimiser.load_state_dict(saved)
    return int(state["step"])
