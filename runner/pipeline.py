"""A model folder → a loaded diffusers pipeline; a batch of tasks → images."""

import importlib
import inspect
import json
import logging
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from runner.encoders import encode_once
from runner.errors import ModelError
from runner.manifest import Manifest, ModelSpec
from runner.model import index_of
from runner.plan import Plan, Task, is_text
from runner.replica import Replica
from runner.settings import nearest
from runner.stop import Stop
from runner.strategies import StrategyBase
from runner.world import World

__all__ = ["DroppedError", "Failure", "Image", "Pipeline", "Renderer", "check", "load"]

log = logging.getLogger(__name__)

ALONE = World()


class DroppedError(Exception):
    """The current batch was given up, since it would not end before the deadline of a stop."""


@dataclass(frozen=True, slots=True)
class Image:
    """A finished image: pixels (H, W, 3 or 4) and how it was made."""

    task: Task
    pixels: NDArray[np.uint8]
    made: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failure:
    task: Task
    kind: str  # error, non-finite, out-of-memory
    error: str
    trace: str = ""


class Renderer(Protocol):
    """What the run needs of a pipeline: `fake.FakePipeline` is another."""

    def render(self, tasks: Sequence[Task]) -> Iterator[Image | Failure]:
        """A result per task, in order. Raises DroppedError, and what no other image survives."""


class Pipeline:
    """A diffusers pipeline on its device, called with one batch of tasks at a time."""

    def __init__(
        self,
        pipe: Any,
        device: torch.device,
        dtype: str,
        kind: str,
        stop: Stop,
        replica: Replica | None = None,
    ) -> None:
        self.pipe = pipe
        self.stop = stop
        self.replica = replica
        self.has_images = replica is None or replica.layout.is_leader
        self.about = {"strategy": kind, "device": device.type, "dtype": dtype}
        accepted = inspect.signature(pipe.__call__).parameters
        self._has_callback = "callback_on_step_end" in accepted

    def render(self, tasks: Sequence[Task]) -> Iterator[Image | Failure]:
        """A batch that fails as a whole is made again one by one: the others must not suffer.

        Only the leader of a replica yields; its other ranks compute along.
        """
        failure = yield from self._attempt(tasks, [])
        if failure is None:
            return
        if len(tasks) == 1:
            yield failure
            return
        log.warning("a batch failed (%s); its images are made one by one", failure.error)
        for task in tasks:
            alone = yield from self._attempt([task], ["batch split"])
            if alone is not None:
                yield alone

    def _attempt(self, tasks: Sequence[Task], degraded: list[str]) -> Any:
        """Yield the batch's images; return a Failure where the call itself failed.

        The exception is gone when this returns: its frames would keep the batch's tensors alive.
        """
        start = time.perf_counter()
        failure = None
        try:
            images = self.images(tasks)
            if self.has_images:
                pixels, finite = to_pixels(images)
        except DroppedError:
            raise
        except Exception as error:
            kind = "out-of-memory" if isinstance(error, torch.OutOfMemoryError) else "error"
            words = f"{type(error).__name__}: {error}"
            failure = Failure(tasks[0], kind, words, traceback.format_exc())
            if is_fatal(error):
                raise
        if self.replica is not None:
            verdict = self.replica.settle(failure.error if failure else None)
            if not self.has_images:
                return Failure(tasks[0], "error", verdict) if verdict else None
        if failure is None:
            seconds = round((time.perf_counter() - start) / len(tasks), 4)
            for task, image, is_finite in zip(tasks, pixels, finite, strict=True):
                if not is_finite:
                    yield Failure(task, "non-finite", "the image has values that are not finite")
                    continue
                height, width = image.shape[:2]
                size = {"width": width, "height": height}
                how = {"batch_size": len(tasks), "degraded": degraded, "seconds": seconds}
                yield Image(task, image, {**size, **self.about, **how})
            return None
        if failure.kind == "out-of-memory" and torch.accelerator.is_available():
            torch.accelerator.empty_cache()
        return failure

    def images(self, tasks: Sequence[Task]) -> Any:
        """Float images (B, C, H, W) from 0 to 1, on the pipeline's device; on a rank that does not
        lead its replica perhaps nothing.

        The noise comes from one CPU generator an image, so that it depends on the image's seed
        alone: not on the batch, the rank, the number of GPUs or their kind.
        """
        output = self.pipe(**self._arguments(tasks))
        images = getattr(output, "images", None)
        if not self.has_images:
            return images
        if not isinstance(images, torch.Tensor) or images.ndim != 4 or len(images) != len(tasks):
            raise TypeError(f"{type(self.pipe).__name__} did not return one image a prompt")
        return images

    def _arguments(self, tasks: Sequence[Task]) -> dict[str, Any]:
        """Of the pipeline call."""
        generators = [torch.Generator("cpu").manual_seed(task.seed) for task in tasks]
        single = len(tasks) == 1
        arguments = dict(tasks[0].parameters)
        for name in [] if single else filter(is_text, tasks[0].parameters):
            arguments[name] = [task.parameters[name] for task in tasks]
        if self._has_callback:
            arguments["callback_on_step_end"] = self._on_step(time.monotonic())
        return {
            **arguments,
            "prompt": tasks[0].prompt if single else [task.prompt for task in tasks],
            "generator": generators[0] if single else generators,
            "output_type": "pt",
        }

    def prepare(self, batches: Sequence[Sequence[Task]]) -> None:
        """Batches that will be rendered next, for a pipeline that makes several at once."""
        if hasattr(self.pipe, "prepare"):
            self.pipe.prepare([self._arguments(tasks) for tasks in batches])

    def _on_step(self, start: float) -> Any:
        def is_too_late(pipe: Any, step: int) -> bool:
            if not self.stop.requested:
                return False
            a_step = (time.monotonic() - start) / (step + 1)
            steps_left = getattr(pipe, "num_timesteps", step + 1) - step - 1
            return a_step * (steps_left + 1) > self.stop.left_s()  # one step more for the decoder

        def on_step(pipe: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
            drops = is_too_late(pipe, step)
            if self.replica is not None:
                drops = self.replica.drops(step, drops)
            if drops:
                raise DroppedError
            return values

        return on_step


def to_pixels(images: torch.Tensor) -> tuple[NDArray[np.uint8], list[bool]]:
    """(B, C, H, W) from 0 to 1 → bytes (B, H, W, C), rounded as diffusers does for PIL images, and
    which of them are finite. Converted on the device: a quarter of the bytes to move."""
    finite = torch.isfinite(images).flatten(1).all(1)
    scaled = (torch.nan_to_num(images.float()) * 255).round().clamp(0, 255).to(torch.uint8)
    pixels = scaled.permute(0, 2, 3, 1).cpu().numpy()
    return pixels, finite.tolist()


def is_fatal(error: Exception) -> bool:
    """Whether the process can make no more images: a device error poisons every later call."""
    return isinstance(error, torch.AcceleratorError | MemoryError)


def quiet_libraries() -> None:
    """No bars and no advice from the libraries: the runner has one progress line of its own."""
    import diffusers.utils.logging
    import transformers.utils.logging

    for logging_of in (diffusers.utils.logging, transformers.utils.logging):
        logging_of.disable_progress_bar()
        logging_of.set_verbosity_error()


def check(plan: Plan, folder: Path) -> None:
    """Everything that the model's configs tell about the manifest, before weights load.

    Raises ModelError for a pipeline that is unknown or takes no prompt, parameters that its call
    does not take, sizes that it would round.
    """
    quiet_libraries()
    spec = plan.manifest.model
    index = index_of(folder, spec.id)
    if isinstance(index["_class_name"], str):
        _check_parameters(plan, spec, index["_class_name"])
    multiple = _size_multiple(folder, index)
    for size, place in plan.sizes.items():
        for name, value in zip(("height", "width"), size, strict=True):
            if value is not None and value % multiple:
                low = value // multiple * multiple
                valid = " or ".join(str(v) for v in (low, low + multiple) if v)
                raise ModelError(
                    f"prompts[{place}]: {name} {value} is no multiple of {multiple}, which "
                    f"{spec.id} needs; use {valid}"
                )


def _check_parameters(plan: Plan, spec: ModelSpec, class_name: str) -> None:
    import diffusers

    pipeline_class = getattr(diffusers, class_name, None)
    if pipeline_class is None:
        raise ModelError(f"{spec.id}: diffusers {diffusers.__version__} has no {class_name}")
    accepted = inspect.signature(pipeline_class.__call__).parameters
    if "prompt" not in accepted or "generator" not in accepted:
        raise ModelError(f"{spec.id}: {class_name} makes no images from prompts")
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values()):
        return
    known = {name: name for name in accepted if name not in ("self", "prompt")}
    unknown = [
        f"prompts[{place}]: {class_name} takes no {name}{nearest(name, known)}"
        for name, place in plan.names.items()
        if name not in known
    ]
    if unknown:
        raise ModelError("\n".join(unknown))


def _size_multiple(folder: Path, index: Mapping[str, Any]) -> int:
    """What height and width must be multiples of: the VAE's factor times the transformer's patch
    (FLUX and Qwen-Image pack 2×2 latents before it, and so have 4 times the VAE's channels)."""
    vae = _config(folder, "vae")
    blocks = vae.get("block_out_channels") or vae.get("temperal_downsample")
    if not blocks:
        return 1
    factor = 2 ** (len(blocks) - ("block_out_channels" in vae))
    transformer = _config(folder, "transformer")
    latents = vae.get("latent_channels") or vae.get("z_dim")
    if latents and transformer.get("in_channels") == 4 * latents:
        return int(factor * 2)
    patch = transformer.get("patch_size")
    return int(factor * (patch if isinstance(patch, int) else 1))


def _config(folder: Path, component: str) -> dict[str, Any]:
    path = folder / component / "config.json"
    values = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return values if isinstance(values, dict) else {}


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model folder as strategies load it."""

    folder: Path
    manifest: Manifest

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.manifest.dtype)
        return dtype

    def pipeline(self, **arguments: Any) -> Any:
        import diffusers

        spec = self.manifest.model
        return diffusers.DiffusionPipeline.from_pretrained(
            self.folder,
            dtype=self.dtype,
            trust_remote_code=spec.trust_remote_code,
            **self._common(),
            **arguments,
        )

    def component(self, name: str, *, model_class: Any = None, **arguments: Any) -> Any:
        library, class_name = index_of(self.folder, self.manifest.model.id)[name]
        model_class = model_class or getattr(importlib.import_module(library), class_name)
        return model_class.from_pretrained(
            self.folder,
            subfolder=name,
            dtype=self.dtype,
            **self._common(),
            **arguments,
        )

    def _common(self) -> dict[str, Any]:
        spec = self.manifest.model
        return {
            "variant": spec.variant,
            "use_safetensors": None if spec.allow_pickle else True,
            "local_files_only": True,
        }


def load(
    manifest: Manifest,
    folder: Path,
    strategy: StrategyBase,
    device: torch.device,
    stop: Stop,
    world: World = ALONE,
    replica: Replica | None = None,
) -> Pipeline:
    """The pipeline where the strategy puts it. Raises ModelError where diffusers refuses."""
    quiet_libraries()
    try:
        pipe = strategy.load(ModelSource(folder, manifest), device, world)
    except (OSError, ValueError, ImportError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"{manifest.model.id}: cannot be loaded: {lines[0]}") from error
    pipe.set_progress_bar_config(disable=True)
    encode_once(pipe)
    for name, component in pipe.components.items():
        if isinstance(component, torch.nn.Module):
            log.info("%s: %s, %s", name, type(component).__name__, _dtypes(component))
    return Pipeline(pipe, device, manifest.dtype, strategy.kind, stop, replica)


def _dtypes(module: torch.nn.Module) -> str:
    """The dtypes that a component really has: some keep a few layers in float32."""
    kinds = {parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()}
    return ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds)) or "no weights"
