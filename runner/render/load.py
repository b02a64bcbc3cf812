"""A model folder → a loaded pipeline, where the strategy puts it."""

import contextlib
import ctypes
import gc
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from runner.launch.replica import Replica
from runner.launch.stop import Stop
from runner.launch.world import World
from runner.manifest.input_images import InputFiles
from runner.manifest.schema import Manifest
from runner.model.configs import ModelConfigs
from runner.plan import Task
from runner.render.adapters import fuse, load_loras
from runner.render.compiled import compile_blocks
from runner.render.load_faults import model_faults
from runner.render.pipeline import Pipeline
from runner.strategies import DataParallel, StrategyBase

__all__ = ["load", "load_plain"]

log = logging.getLogger(__name__)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # as malloc.h has them


def quiet_libraries() -> None:
    """No bars of the libraries: the runner has one progress line of its own."""
    import diffusers.utils.logging
    import transformers.utils.logging

    for logging_of in (diffusers.utils.logging, transformers.utils.logging):
        logging_of.disable_progress_bar()


def reuse_buffers() -> None:
    """Let glibc keep freed buffers for the next layer, where it would give those over 128 KiB back
    to the kernel and have them zeroed again, page by page: a third of a decoder's time on a CPU."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 * 2**20)  # the most that glibc takes
        mallopt(_M_TRIM_THRESHOLD, 2**30)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model folder as strategies load it."""

    folder: Path
    manifest: Manifest
    only_loras: Mapping[str, float] | None = None  # of all images

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.manifest.dtype)
        return dtype

    def pipeline(self, **arguments: Any) -> Any:
        import diffusers

        spec = self.manifest.model
        pipeline_class = diffusers.DiffusionPipeline
        if self.manifest.pipeline or spec.controlnet:
            configs = ModelConfigs.read(
                self.folder, spec.id, self.manifest.pipeline, spec.controlnet
            )
            pipeline_class = getattr(diffusers, configs.pipeline_class)
        with model_faults(spec.id):
            if spec.controlnet:
                arguments["controlnet"] = configs.class_of("controlnet").from_pretrained(
                    spec.controlnet, dtype=self.dtype, **{**self._common(), "variant": None}
                )
            pipe = pipeline_class.from_pretrained(
                self.folder,
                dtype=self.dtype,
                trust_remote_code=spec.trust_remote_code,
                **self._common(),
                **arguments,
            )
        for component in pipe.components.values():
            _name_text_model(component)
        # Before any strategy puts hooks on the layers, which LoRAs wrap.
        load_loras(pipe, self.manifest)
        if self.only_loras:
            fuse(pipe, self.only_loras)
        return pipe

    def component(self, name: str, *, model_class: Any = None, **arguments: Any) -> Any:
        with model_faults(self.manifest.model.id):
            model_class = model_class or ModelConfigs.read(self.folder).class_of(name)
            component = model_class.from_pretrained(
                self.folder,
                subfolder=name,
                dtype=self.dtype,
                **self._common(),
                **arguments,
            )
        _name_text_model(component)
        return component

    def _common(self) -> dict[str, Any]:
        spec = self.manifest.model
        return {
            "variant": spec.variant,
            "use_safetensors": None if spec.allow_pickle else True,
            "local_files_only": True,
        }


def _name_text_model(component: Any) -> None:
    """Pipelines look into the `text_model` of a CLIP text encoder, for `clip_skip` above all. Since
    transformers 5 the encoder is that model itself."""
    if type(component).__name__ == "CLIPTextModel" and not hasattr(component, "text_model"):
        vars(component)["text_model"] = component  # not as a part, of which it would be one itself


def load(
    manifest: Manifest,
    folder: Path,
    *,
    device: torch.device,
    world: World,
    stop: Stop,
    replica: Replica | None = None,
    comes_again: Callable[[Task], bool] = lambda task: False,
    inputs: InputFiles | None = None,
    only_loras: Mapping[str, float] | None = None,
) -> Pipeline:
    """The manifest's pipeline from a model folder, where its strategy puts it; `inputs` are the
    files that fingerprints are made from, `only_loras` the LoRAs of all images, which are fused.
    Raises ModelError for whatever is wrong with the model."""
    pipe = _load(ModelSource(folder, manifest, only_loras), manifest.strategy, device, world)
    if manifest.compile:
        compile_blocks(pipe, manifest.dtype, world.local_world_size)
    for name, component in pipe.components.items():
        if isinstance(component, torch.nn.Module):
            log.info("%s: %s, %s", name, type(component).__name__, _dtypes(component))
    _begin_collecting()
    return Pipeline(
        pipe,
        device=device,
        dtype=manifest.dtype,
        strategy=manifest.strategy,
        stop=stop,
        on_out_of_memory=manifest.on_out_of_memory,
        on_flagged=manifest.on_flagged,
        replica=replica,
        inputs=inputs or InputFiles(manifest.inputs),
        comes_again=comes_again,
        is_compiled=manifest.compile,
    )


def load_plain(manifest: Manifest, folder: Path, device: torch.device, world: World) -> Any:
    """The pipeline as diffusers itself loads it, whole on one device. Raises ModelError where
    diffusers refuses."""
    return _load(ModelSource(folder, manifest), DataParallel(), device, world)


def _load(source: ModelSource, strategy: StrategyBase, device: torch.device, world: World) -> Any:
    quiet_libraries()
    if device.type == "cpu":
        reuse_buffers()
    if source.manifest.dtype == "float32":
        # cuDNN rounds float32 to TF32, which has 10 bits, where nobody says no; cuBLAS does not.
        torch.backends.cudnn.allow_tf32 = False
    with model_faults(source.manifest.model.id):  # also where it is moved to the device
        pipe = strategy.load(source, device, world)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _begin_collecting() -> None:
    """Turn the garbage collector on, where the command line left it off. What is there by now, the
    modules above all, stays out of its sight for good: also at exit, where it takes a second."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _dtypes(module: torch.nn.Module) -> str:
    """The dtypes that a component really has: some keep a few layers in float32."""
    kinds = {parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()}
    return ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds)) or "no weights"
