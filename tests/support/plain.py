"""Images by diffusers alone: what the runner's images are compared with.

`main` runs in a forked process (launches.py): same threads, and no state of the runner's.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runner.model.input_names import is_input
from support.conformance import LIMIT

__all__ = ["main"]

Call = dict[str, Any]


def main(arguments: list[str]) -> int:
    """`MODEL CALLS FOLDER`: one image a call, as `plain-<place>.npy`, and `plain.json`, which says
    what diffusers itself does with the first three in one batch, whether a text shows, and whether
    the same call makes the same image."""
    import torch
    from diffusers import DiffusionPipeline

    from runner.render.load import quiet_libraries

    quiet_libraries()
    model, calls_file, folder = map(Path, arguments)
    calls: list[Call] = json.loads(calls_file.read_text())
    try:
        pipe = DiffusionPipeline.from_pretrained(model, dtype=torch.float32, local_files_only=True)
        pipe.set_progress_bar_config(disable=True)
        images = [alone(pipe, call) for call in calls]
        again = alone(pipe, calls[0])
    except Exception as error:
        write(folder, failed=words(error))
        return 0
    for place, image in enumerate(images):
        np.save(folder / f"plain-{place}.npy", image)
    # The first image with the third's text: what the text alone changes.
    other = alone(pipe, {**calls[0], "prompt": calls[2]["prompt"]})
    files = {name: file for name, file in calls[1].items() if is_input(name)}
    shown = apart(alone(pipe, {**calls[0], **files}), images[0]) if files else None
    write(
        folder,
        image=shown,
        is_steady=bool((again == images[0]).all()),
        batch=batch_fault(pipe, calls[:3], images[:3]),
        text=apart(other, images[0]),
    )
    return 0


def alone(pipe: Any, call: Call) -> Any:
    """One image (H, W, C)."""
    return made(pipe, call, generator(call["seed"]))[0]


def batch_fault(pipe: Any, calls: Sequence[Call], images: Sequence[Any]) -> str:
    """How a batch of these calls differs from one call each; nothing where it does not."""
    together = dict(calls[0])
    inputs = [name for name in together if is_input(name)]
    for name in (
        "prompt",
        *inputs,
        *(n for n in together if n.endswith("prompt") and n != "prompt"),
    ):
        together[name] = [call[name] for call in calls]
    try:
        found = made(pipe, together, [generator(call["seed"]) for call in calls])
    except Exception as error:
        return words(error)
    furthest = max(itertools.starmap(apart, zip(found, images, strict=True)))
    return f"{furthest} of 255 off" if furthest > LIMIT else ""


def apart(one: Any, other: Any) -> int:
    return int(np.abs(one - other).max())


def made(pipe: Any, call: Mapping[str, Any], generators: Any) -> list[Any]:
    parameters = {
        name: loaded(value) if is_input(name) else value
        for name, value in call.items()
        if name != "seed"
    }
    output = pipe(**parameters, generator=generators, output_type="pil")
    return [np.asarray(image).astype(np.int16) for image in output.images]


def loaded(value: Any) -> Any:
    from diffusers.utils import load_image

    return [*map(load_image, value)] if isinstance(value, list) else load_image(value)


def generator(seed: int) -> Any:
    import torch

    return torch.Generator("cpu").manual_seed(seed)


def words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def write(folder: Path, **values: Any) -> None:
    (folder / "plain.json").write_text(json.dumps(values))
