"""Model ID → a local folder with all its files, and the identity of those files. No torch.

`demo` and local folders are used as they are. A hub model is used from the cache, without a network
call, if the cache is complete. If not, one process per node downloads it.
"""

from pathlib import Path

from runner.errors import ModelError
from runner.model.complete import check_code, check_files, check_names
from runner.model.configs import ModelConfigs
from runner.model.hub import ask_hub, cached_file, commit_of
from runner.model.identity import CONFIGS, changed_files, digests, identity
from runner.model.pipeline_index import INDEX, index_of
from runner.model.spec import ModelSpec

__all__ = [
    "changed_files",
    "configs",
    "digests",
    "download",
    "hub_files",
    "hub_header",
    "identity",
    "index_of",
    "local_folder",
    "resolve",
]


def resolve(spec: ModelSpec) -> str | None:
    """The model's revision as a commit. A folder and `demo` keep theirs, which may be None.

    Raises ModelError: gated, not found, no such revision, offline and not cached.
    """
    return commit_of(spec, INDEX) if spec.folder is None else spec.revision


def local_folder(spec: ModelSpec) -> Path | None:
    """The folder with all files of the model, or None if they must be downloaded first.

    Raises ModelError for a folder that is not a model, or in which files are missing.
    """
    folder = spec.folder
    if folder is not None:
        if not spec.is_bundled:
            check_files(spec, folder)
        return folder
    cached = _cached(spec)
    if cached is None:
        return None
    try:
        check_files(spec, cached)
    except ModelError:
        return None  # the download did not finish; it will be continued
    return cached


def configs(spec: ModelSpec, pipeline: str | None = None) -> ModelConfigs:
    """The model's configs, which need no weights; `pipeline` is the manifest's. Raises ModelError,
    and OfflineError where the hub would be asked."""
    folder = local_folder(spec)
    if folder is None:
        patterns = [f"*{suffix}" for suffix in CONFIGS]
        folder = ask_hub(
            spec,
            lambda hub: hub.snapshot_download(
                spec.id, revision=spec.revision, allow_patterns=patterns
            ),
        )
    return ModelConfigs.read(Path(folder), spec.id, pipeline, spec.controlnet)


def download(spec: ModelSpec) -> Path:
    """Download all files of a resolved hub model into the cache. Call it in one process per node.

    Raises ModelError, also if the hub has pickled weights only.
    """
    from diffusers import DiffusionPipeline

    index = configs(spec).index
    names = hub_files(spec)
    check_code(spec, index, names)
    check_names(spec, index, names)
    folder = ask_hub(
        spec,
        lambda hub: DiffusionPipeline.download(
            spec.id,
            revision=spec.revision,
            variant=spec.variant,
            use_safetensors=None if spec.allow_pickle else True,
            trust_remote_code=spec.trust_remote_code,
        ),
    )
    check_files(spec, Path(folder))
    return Path(folder)


def hub_files(spec: ModelSpec) -> list[str]:
    """The names of all files of a hub model."""
    info = ask_hub(spec, lambda hub: hub.HfApi().model_info(spec.id, revision=spec.revision))
    return [file.rfilename for file in info.siblings or ()]


def hub_header(spec: ModelSpec, file: str) -> dict[str, tuple[str, list[int]]]:
    """Tensor → (dtype, shape) of a safetensors file on the hub; only its header is read."""
    found = ask_hub(
        spec,
        lambda hub: hub.HfApi().parse_safetensors_file_metadata(
            spec.id, file, revision=spec.revision
        ),
    )
    return {name: (tensor.dtype, tensor.shape) for name, tensor in found.tensors.items()}


def _cached(spec: ModelSpec) -> Path | None:
    found = cached_file(spec, INDEX)
    return found.parent if found else None
