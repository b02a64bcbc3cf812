"""What a pipeline returns → pixels, and whether they are what was asked for.

The reference is what a pipeline itself calls the picture: `output_type="pil"`. Tensors are faster,
and are asked for only where the pipeline's own source says that they are the same picture.
"""

import ast
import inspect
from typing import Any

import numpy as np
import torch
from diffusers.image_processor import VaeImageProcessor
from numpy.typing import NDArray
from PIL import Image

from runner.plan import Task

__all__ = ["as_tensor", "flags_of", "output_type_of", "to_pixels", "wrong_size"]

SLACK = 0.01  # how far from 0 to 1 a value may be: half precision rounds


def output_type_of(pipe: Any) -> str:
    """`pt` where the pipeline hands every picture to diffusers' own image processor, whatever type
    is asked for; else `pil`. Some pipelines (DeepFloyd IF, Kandinsky) leave out the last steps for
    tensors: the range, the safety checker, the watermark."""
    processor = getattr(pipe, "image_processor", None)
    postprocess = getattr(type(processor), "postprocess", None)
    is_known = postprocess is VaeImageProcessor.postprocess
    return "pt" if is_known and _treats_all_types_alike(type(pipe).__call__) else "pil"


def _treats_all_types_alike(call: Any) -> bool:
    """By the source: `output_type` is compared with "latent" alone, and given to `postprocess`."""
    try:
        tree = ast.parse("class _:\n" + inspect.getsource(inspect.unwrap(call)))
    except (OSError, TypeError, SyntaxError):
        return False
    compared, is_processed = set(), False
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and "output_type" in (text := ast.unparse(node)):
            compared.add(text.replace("!=", "=="))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("processor.postprocess"):
            is_processed = is_processed or "output_type" in ast.unparse(node)
    return is_processed and compared <= {"output_type == 'latent'"}


def as_tensor(images: Any, count: int) -> torch.Tensor:
    """The images of a call as one tensor (B, 3 or 4, H, W): bytes of PIL images, else floats from
    0 to 1. Raises TypeError for anything but `count` images."""
    if isinstance(images, list | tuple) and all(isinstance(one, Image.Image) for one in images):
        rows = [torch.from_numpy(_bytes_of(one)) for one in images]
        images = torch.stack(rows).permute(0, 3, 1, 2) if rows else None
    if not isinstance(images, torch.Tensor) or images.ndim != 4 or len(images) != count:
        raise TypeError("the pipeline did not return one image a prompt")
    channels = images.shape[1]
    if channels not in (1, 3, 4):
        raise TypeError(f"the pipeline's images have {channels} channels, neither RGB nor RGBA")
    return images if channels > 1 else images.expand(-1, 3, -1, -1)  # grey, as PIL converts it


def _bytes_of(image: Image.Image) -> NDArray[np.uint8]:
    """(H, W, 3 or 4). Grey becomes RGB."""
    if image.mode in ("L", "1", "P"):
        image = image.convert("RGB")
    if image.mode not in ("RGB", "RGBA"):
        raise TypeError(f"the pipeline's images are {image.mode}, neither RGB nor RGBA")
    return np.array(image)


def to_pixels(images: torch.Tensor) -> tuple[NDArray[np.uint8], list[bool]]:
    """(B, C, H, W), bytes or floats from 0 to 1 → bytes (B, H, W, C), rounded as diffusers does for
    PIL images, and which of them are finite. Converted on the device: a quarter of the bytes to
    move. Raises ValueError for floats of another range."""
    if not images.is_floating_point():
        return images.permute(0, 2, 3, 1).cpu().numpy(), [True] * len(images)
    finite = torch.isfinite(images)
    values = torch.where(finite, images, 0.0).float()
    least, most = (float(value) for value in torch.aminmax(values))
    if least < -SLACK or most > 1 + SLACK:
        raise ValueError(f"the images have values from {least:.3g} to {most:.3g}, not 0 to 1")
    scaled = (values * 255).round().clamp(0, 255).to(torch.uint8)
    return scaled.permute(0, 2, 3, 1).cpu().numpy(), finite.flatten(1).all(1).tolist()


def flags_of(output: Any, count: int) -> list[bool]:
    """Which of a call's images a safety checker found. DeepFloyd IF has another name for it."""
    for name in ("nsfw_content_detected", "nsfw_detected"):
        found = getattr(output, name, None)
        if found is not None and len(found) == count:
            return [bool(one) for one in found]
    return [False] * count


def wrong_size(task: Task, pixels: NDArray[np.uint8]) -> str:
    """In words, where an image (H, W, C) has not the size that was asked for, or one side of it."""
    height, width = pixels.shape[:2]
    sides = {"width": width, "height": height}
    wrong = {
        name: task.parameters[name]
        for name, made in sides.items()
        if isinstance(task.parameters.get(name), int) and task.parameters[name] != made
    }
    if not wrong:
        return ""
    asked = " and ".join(f"{name} {size}" for name, size in wrong.items())
    alone = "" if task.parameters.keys() >= sides.keys() else "give both height and width, or "
    return (
        f"asked for {asked}, but the pipeline made {width} × {height} (width × height); {alone}"
        f"ask for a size that this model makes"
    )
