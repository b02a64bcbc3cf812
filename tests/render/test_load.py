"""Models that do not load: one line, whatever the libraries say."""

import errno
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny
from support.launch import plan_of

from runner.errors import DiskError, ModelError, ReplicaLostError
from runner.launch.stop import Stop
from runner.launch.world import World
from runner.manifest.load import Loaded
from runner.manifest.load import load as load_manifest
from runner.render.load import load
from runner.render.load_faults import model_faults

TRANSFORMER = "transformer/diffusion_pytorch_model.safetensors"
TEXTS = "text_encoder/model.safetensors"


@pytest.fixture
def copy(flux: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(flux, tmp_path / "model"))


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def without_a_tensor(path: Path) -> None:
    values = load_file(path)
    values.pop(sorted(values)[3])
    save_file(values, path, metadata={"format": "pt"})


def with_a_smaller_tensor(path: Path) -> None:
    values = load_file(path)
    name = sorted(values)[3]
    save_file({**values, name: values[name].flatten()[1:]}, path, metadata={"format": "pt"})


def index(component: str, entry: Any) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        tiny.edit_json(path.parents[1] / "model_index.json", **{component: entry})

    return edit


def load_all(job: Loaded) -> None:
    """Load a model and what is left for the first batch, as phases do it."""
    manifest = job.manifest
    folder = Path(manifest.model.id)
    pipe = load(manifest, folder, device=torch.device("cpu"), world=World(), stop=Stop(20))
    pipe.prepare([[plan_of(job).task(0)]])


# Cases 41 and 44. Transformers fill a missing weight with random numbers; diffusers leave it empty.
@pytest.mark.parametrize(
    ("file", "change", "wanted"),
    [
        (TEXTS, cut_off, "cannot be loaded: SafetensorError: "),
        (TRANSFORMER, cut_off, "cannot be loaded: "),
        (TEXTS, without_a_tensor, "its files lack weights, first .* of CLIPTextModel; download"),
        (TRANSFORMER, without_a_tensor, "lack weights, first .* of FluxTransformer2DModel; down"),
        (TEXTS, with_a_smaller_tensor, "cannot be loaded: RuntimeError: "),
        (TRANSFORMER, with_a_smaller_tensor, "cannot be loaded: Cannot load "),
        (
            TEXTS,
            index("transformer", ["diffusers", "NoSuchModel"]),
            "cannot be loaded: |diffusers has no class",
        ),
        (
            TEXTS,
            index("transformer", ["diffusers", "export_to_gif"]),
            "cannot be loaded: |diffusers has no class",
        ),
        (TEXTS, index("vae", None), "cannot be loaded: "),
    ],
)
@pytest.mark.parametrize("kind", ["data_parallel", "device_map"])
def test_a_model_that_does_not_load(
    copy: Path,
    manifest: Callable[..., Path],
    file: str,
    change: Callable[[Path], None],
    wanted: str,
    kind: str,
) -> None:
    strategy = {"kind": kind, "phases": True} if kind == "device_map" else {"kind": kind}
    change(copy / file)
    job = load_manifest(manifest(model=str(copy), strategy=strategy, seed=1, prompts=["a cat"]))
    with pytest.raises(ModelError, match=wanted) as caught:
        load_all(job)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, "Input/output error"),
        OSError(errno.ESTALE, "Stale file handle"),
        torch.OutOfMemoryError("CUDA out of memory"),
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] can't allocate memory"),
        MemoryError(),
        ReplicaLostError("rank 1 is gone"),
        DiskError(errno.ENOSPC, "full"),
    ],
)
def test_what_is_not_the_models_fault_stays_what_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, model_faults("name"):
        raise error
    assert caught.value is error


def test_the_libraries_log_as_before(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("diffusers.models.modeling_utils")
    before = (logger.level, logger.propagate, list(logger.handlers))
    with model_faults("name"):
        logger.warning("a word about something else: %s", json.dumps("| MISSING"))
    assert (logger.level, logger.propagate, logger.handlers) == before
