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
)

MODELS: dict[str, Model] = {
    name: model
    for family in FAMILIES
    for name, model in importlib.import_module(f"support.tiny.{family}").MODELS.items()
}


def save(class_name: str, folder: Path, *, seed: int = 0) -> Path:
    """Build the pipeline of that class and save it."""
    torch.manual_seed(seed)
    pipeline = getattr(diffusers, class_name)(**MODELS[class_name].components())
    pipeline.save_pretrained(folder)
    return folder
