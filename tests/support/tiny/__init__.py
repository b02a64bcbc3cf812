"""Tiny random pipelines, built from configs: real classes, real files, no download.

A file a family. `MODELS` has every pipeline class, `save` writes one to a folder.
"""

import importlib
from pathlib import Path

import diffusers
import torch

from support.tiny.flux import flux
from support.tiny.model import Model
from support.tiny.parts import WORDS, edit_json, tokenizer, vae
from support.tiny.qwen_image import qwen_image
from support.tiny.stable_diffusion_3 import stable_diffusion_3

__all__ = [
    "MODELS",
    "WORDS",
    "Model",
    "edit_json",
    "flux",
    "preload",
    "qwen_image",
    "save",
    "stable_diffusion_3",
    "tokenizer",
    "vae",
]

FAMILIES = (
    "stable_diffusion",
    "stable_diffusion_3",
    "flux",
    "qwen_image",
    "sana",
    "pixart",
    "deepfloyd",
    "kandinsky",
    "flux_2",
    "flux_like",
    "language",
    "encoder_decoder",
    "older",
    "with_images",
)

MODELS: dict[str, Model] = {
    name: model
    for family in FAMILIES
    for name, model in importlib.import_module(f"support.tiny.{family}").MODELS.items()
}


def preload() -> None:
    """Import what the pipelines need, which diffusers does late: for a process that forks."""
    for name in MODELS:
        getattr(diffusers, name.partition("/")[0])


def save(class_name: str, folder: Path, *, seed: int = 0) -> Path:
    """Build the pipeline of that class and save it; `class/variant` for one of several."""
    torch.manual_seed(seed)
    pipeline_class = getattr(diffusers, class_name.partition("/")[0])
    pipeline_class(**MODELS[class_name].components()).save_pretrained(folder)
    return folder
