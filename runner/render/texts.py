"""The texts in a PNG: all that is needed to make the image again, and the same for other programs.

Equal for equal images, whichever rank made them and how long it took. Nothing tells where on the
machine a model lies.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.manifest.input_images import inputs_of
from runner.manifest.schema import Manifest
from runner.plan import Fingerprints, Task, own
from runner.render.results import Image

__all__ = ["texts"]

# Parameters of diffusers → names in the text that other programs read.
NAMES = {
    "num_inference_steps": "Steps",
    "guidance_scale": "CFG scale",
    "true_cfg_scale": "CFG scale",
}


def texts(image: Image, manifest: Manifest, fingerprints: Fingerprints) -> Mapping[str, Any]:
    task, spec = image.task, manifest.model
    name = Path(spec.id).name if spec.folder else spec.id
    return {
        "Software": f"runner {manifest.versions.get('runner', '')}",
        "parameters": _for_other_programs(image, name),
        "prompt": task.prompt,
        "seed": str(task.seed),
        "call": dict(task.parameters),
        "model": {"id": name, **fingerprints.model},
        **({"pipeline": manifest.pipeline} if manifest.pipeline else {}),
        **_inputs(image, fingerprints),
        "dtype": manifest.dtype,
        "index": str(task.index),
        **_loras(task, manifest, fingerprints),
        **own(task),
        "fingerprint": fingerprints.of(task),
        "versions": manifest.versions,
        "made": {key: value for key, value in image.made.items() if key != "seconds"},
    }


def _inputs(image: Image, fingerprints: Fingerprints) -> dict[str, Any]:
    """The input images by their names, and the sums of what was in them."""
    files = dict.fromkeys(file for _, file in inputs_of(image.task.parameters))
    sums = {file: fingerprints.inputs.sha256(file) for file in files}
    return {"inputs": sums} if sums else {}


def _loras(task: Task, manifest: Manifest, fingerprints: Fingerprints) -> dict[str, Any]:
    """What each LoRA of an image is; of a local one not where it lies."""
    names = task.parameters.get("loras", {})
    found = {
        lora.own_name: {
            "id": lora.id if lora.path is None or lora.id == "demo" else lora.path.name,
            **({"file": lora.file} if lora.file else {}),
            **fingerprints.loras.get(lora.own_name, {}),
        }
        for lora in manifest.loras
        if lora.own_name in names
    }
    return {"loras": found} if found else {}


def _for_other_programs(image: Image, model: str) -> str:
    """The form of Stable Diffusion web UI, which most programs and sites read: the prompt, the
    negative one, and a line of settings."""
    task, made = image.task, image.made
    negative = task.parameters.get("negative_prompt")
    settings = {"Steps": made.get("steps"), "Sampler": made.get("scheduler", "unknown")}
    scheduler = task.parameters.get("scheduler")
    if isinstance(scheduler, Mapping) and scheduler.get("use_karras_sigmas"):
        settings["Schedule type"] = "Karras"
    for name, known_as in NAMES.items():
        value = task.parameters.get(name)
        settings[known_as] = settings.get(known_as) if value is None else value
    settings |= {"Seed": task.seed, "Size": f"{image.pixels.shape[1]}x{image.pixels.shape[0]}"}
    settings |= {"Model": model, "Version": "runner"}
    given = {name: value for name, value in settings.items() if value is not None}
    line = ", ".join(f"{name}: {value}" for name, value in given.items())
    lines = [task.prompt, *([f"Negative prompt: {negative}"] if negative else []), line]
    return "\n".join(lines)
