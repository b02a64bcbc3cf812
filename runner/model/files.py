"""Model ID → a local folder with all its files, and the identity of those files. No torch.

`demo` and local folders are used as they are. A hub model is used from the cache, without a network
call, if the cache is complete. If not, one process per node downloads it.
"""

import hashlib
import importlib.util
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from runner import demo
from runner.errors import ModelError, OfflineError
from runner.model.safetensors_header import header_bytes
from runner.model.spec import ModelSpec

__all__ = [
    "check_files",
    "configs",
    "download",
    "hub_files",
    "hub_header",
    "identity",
    "index_of",
    "local_folder",
    "resolve",
]

INDEX = "model_index.json"
PICKLES = (".bin", ".ckpt", ".pt", ".pth", ".pkl")
WEIGHTS = (*PICKLES, ".safetensors")
CONFIGS = (".json", ".txt", ".model", ".jinja")
LIBRARIES = ("diffusers", "transformers")
SHARD = re.compile(r"-\d{5}-of-\d{5}")
COMMIT = re.compile(r"[0-9a-f]{40}")
AGAIN = "download the model again"


def resolve(spec: ModelSpec) -> str | None:
    """The model's revision as a commit. A folder and `demo` keep theirs, which may be None.

    Raises ModelError: gated, not found, no such revision, offline and not cached.
    """
    if _folder_of(spec) is not None or COMMIT.fullmatch(spec.revision or ""):
        return spec.revision
    cached = _cached(spec)
    if cached is not None:
        return cached.name
    info = _asking(spec, lambda hub: hub.HfApi().model_info(spec.id, revision=spec.revision))
    return str(info.sha)


def local_folder(spec: ModelSpec) -> Path | None:
    """The folder with all files of the model, or None if they must be downloaded first.

    Raises ModelError for a folder that is not a model, or in which files are missing.
    """
    folder = _folder_of(spec)
    if folder is not None:
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


def configs(spec: ModelSpec) -> Path:
    """A folder with the model's configs, without its weights."""
    folder = local_folder(spec)
    if folder is not None:
        return folder
    patterns = [f"*{suffix}" for suffix in CONFIGS]
    return Path(
        _asking(
            spec,
            lambda hub: hub.snapshot_download(
                spec.id, revision=spec.revision, allow_patterns=patterns
            ),
        )
    )


def download(spec: ModelSpec) -> Path:
    """Download all files of a resolved hub model into the cache. Call it in one process per node.

    Raises ModelError, also if the hub has pickled weights only.
    """
    from diffusers import DiffusionPipeline

    index = index_of(configs(spec), spec.id)
    _check_pickles(spec, index, hub_files(spec))
    folder = _asking(
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
    info = _asking(spec, lambda hub: hub.HfApi().model_info(spec.id, revision=spec.revision))
    return [file.rfilename for file in info.siblings or ()]


def hub_header(spec: ModelSpec, file: str) -> dict[str, tuple[str, list[int]]]:
    """Tensor → (dtype, shape) of a safetensors file on the hub; only its header is read."""
    found = _asking(
        spec,
        lambda hub: hub.HfApi().parse_safetensors_file_metadata(
            spec.id, file, revision=spec.revision
        ),
    )
    return {name: (tensor.dtype, tensor.shape) for name, tensor in found.tensors.items()}


def index_of(folder: Path, shown: str) -> dict[str, Any]:
    """The components of a pipeline: name → [library, class], and its class as `_class_name`."""
    path = folder / INDEX
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{shown}: no {INDEX} in {folder}; not a diffusers pipeline") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {error}; {AGAIN}") from None
    if not isinstance(values, dict) or "_class_name" not in values:
        raise ModelError(f"{path}: names no pipeline class")
    return values


def check_files(spec: ModelSpec, folder: Path) -> None:
    """Raises ModelError: code or pickles that are not allowed, missing shards or weights."""
    index = index_of(folder, spec.id)
    _check_code(spec, index)
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    _check_pickles(spec, index, files)
    for component, has in _weights(index, files).items():
        lacking = [
            shard
            for name in files
            if name.startswith(f"{component}/") and name.endswith(".safetensors.index.json")
            for shard in _shards(folder / name)
            if f"{component}/{shard}" not in files and _is_variant(name, spec.variant)
        ]
        if lacking:
            names = ", ".join(lacking)
            raise ModelError(f"{spec.id}: {component} lacks {names} in {folder}; {AGAIN}")
        if not has and f"{component}/config.json" in files and _is_network(index[component][1]):
            raise ModelError(f"{spec.id}: {component} has no weights in {folder}; {AGAIN}")


def identity(spec: ModelSpec) -> dict[str, Any]:
    """What a fingerprint holds of the model. A folder counts by its configs, and by the names,
    sizes and headers of its weight files: so a copy in another place is the same model."""
    folder = _folder_of(spec)
    variant = {"variant": spec.variant} if spec.variant else {}
    if folder is None:
        return {"id": spec.id, "revision": spec.revision, **variant}
    digest = hashlib.sha256()
    components = [name for name in index_of(folder, spec.id) if not name.startswith("_")]
    paths = [folder / INDEX]
    for component in sorted(components):
        paths += sorted(path for path in (folder / component).rglob("*") if path.is_file())
    for path in paths:
        if path.suffix in CONFIGS:
            digest.update(f"{path.relative_to(folder).as_posix()}\n".encode())
            digest.update(path.read_bytes())
        elif path.suffix in WEIGHTS:
            size = path.stat().st_size
            digest.update(f"{path.relative_to(folder).as_posix()} {size}\n".encode())
            if path.suffix == ".safetensors":
                digest.update(header_bytes(path))
    return {"files": digest.hexdigest(), **variant}


def _folder_of(spec: ModelSpec) -> Path | None:
    if spec.id == "demo":
        return demo.MODEL_DIR
    path = Path(spec.id)
    if path.is_absolute():
        return path
    return None


def _cached(spec: ModelSpec) -> Path | None:
    found = _asking(
        spec, lambda hub: hub.try_to_load_from_cache(spec.id, INDEX, revision=spec.revision)
    )
    return Path(found).parent if isinstance(found, str) else None


def _asking(spec: ModelSpec, ask: Callable[[Any], Any]) -> Any:
    """Ask the hub. Each failure gets a message of ours: the hub's own may hold a token."""
    import huggingface_hub as hub
    from huggingface_hub import errors

    name = spec.id
    try:
        return ask(hub)
    except errors.GatedRepoError:
        message = (
            f"{name}: gated; accept its terms at https://huggingface.co/{name} and set HF_TOKEN"
        )
    except errors.RepositoryNotFoundError:
        message = f"{name}: no such model on the hub, or private and HF_TOKEN gives no access"
    except errors.RevisionNotFoundError:
        message = f"{name}: no revision {spec.revision}"
    except errors.HFValidationError:
        message = f"{name}: neither a folder nor a hub ID (owner/name)"
    except errors.LocalEntryNotFoundError as error:  # offline mode, or the hub does not answer
        raise _offline(name, error) from None
    except errors.EntryNotFoundError:
        message = f"{name}: no {INDEX}; not a diffusers pipeline"
    except Exception as error:
        # Without a network: an OSError, or an error of the HTTP library, which is not an OSError.
        library = type(error).__module__.partition(".")[0]
        if not isinstance(error, OSError) and not library.startswith(("httpx", "httpcore")):
            raise
        raise _offline(name, error) from None
    raise ModelError(message) from None


def _offline(name: str, error: Exception) -> OfflineError:
    return OfflineError(
        f"{name}: not in the cache, and the hub cannot be reached ({type(error).__name__}); "
        f"download it where there is a network: hf download {name}"
    )


def _check_code(spec: ModelSpec, index: Mapping[str, Any]) -> None:
    """Refuse a pipeline or a component whose class is in the model's own Python files."""
    if spec.trust_remote_code:
        return
    if not isinstance(index["_class_name"], str):
        raise ModelError(
            f"{spec.id}: its pipeline is code of its own ({index['_class_name'][0]}.py), which "
            f"runs only with model: {{trust_remote_code: true}}"
        )
    for component, value in index.items():
        library = value[0] if isinstance(value, list) and value else None
        if component.startswith("_") or not isinstance(library, str):
            continue
        if library not in LIBRARIES and not _in_diffusers(library):
            raise ModelError(
                f"{spec.id}: {component} is code of its own ({library}), which runs only with "
                f"model: {{trust_remote_code: true}}"
            )


def _in_diffusers(library: str) -> bool:
    """Whether diffusers has a pipeline module of that name (a safety checker is in one)."""
    found = importlib.util.find_spec("diffusers")
    home = Path(found.origin).parent if found and found.origin else Path()
    return library.isidentifier() and (home / "pipelines" / library).is_dir()


def _is_network(class_name: str) -> bool:
    return not re.search("Tokenizer|Processor|Extractor|Scheduler|Guider", class_name)


def _check_pickles(spec: ModelSpec, index: Mapping[str, Any], files: Iterable[str]) -> None:
    if spec.allow_pickle:
        return
    for component, has in _weights(index, files).items():
        if has and not any(name.endswith(".safetensors") for name in has):
            raise ModelError(
                f"{spec.id}: {component} has pickled weights only ({', '.join(has)}); pickles can "
                f"run code: allow them with model: {{allow_pickle: true}}"
            )


def _weights(index: Mapping[str, Any], files: Iterable[str]) -> dict[str, list[str]]:
    """Component → its weight files."""
    components: dict[str, list[str]] = {
        name: []
        for name, value in index.items()
        if not name.startswith("_") and isinstance(value, list) and value and value[0]
    }
    for name in files:
        path = PurePosixPath(name)
        if len(path.parts) == 2 and path.parts[0] in components and path.suffix in WEIGHTS:
            components[path.parts[0]].append(path.name)
    return components


def _is_variant(name: str, variant: str | None) -> bool:
    """Whether this weight index is the one to read: `….index.fp16.json` is a variant's."""
    parts = PurePosixPath(name).name.split(".")
    return (variant in parts) if variant else len(parts) == 4


def _shards(path: Path) -> list[str]:
    values = json.loads(path.read_text(encoding="utf-8"))
    return sorted(set(values.get("weight_map", {}).values()))
